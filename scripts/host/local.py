"""Local mode: JupyterLab from the virtual environment, on loopback, with a token, as a process of its own.

Everything it keeps lies in one folder a host (`Paths.local`), readable by the owner alone: the token, the
configuration that carries it, the log, and `running.json`, which says which process is ours. A process counts
as ours only with the same start time in the same boot: a process id alone may be somebody else's by now.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from host import ports, proc, verdict
from host.paths import Paths
from host.settings import Settings
from host.show import Problem, say, ticking
from host.venv import Venv

READY_PATIENCE_S = 60.0
LOG_KEPT_BYTES = 5_000_000


@dataclass(frozen=True, slots=True)
class Instance:
    """A JupyterLab that was started here."""

    pid: int
    start_ticks: int
    boot: str
    address: str
    port: int
    workspace: str
    began: float

    @property
    def base(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self.port}"


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def running(paths: Paths) -> Instance | None:
    """The JupyterLab that runs now, if it is ours."""
    try:
        instance = Instance(**json.loads((paths.local / "running.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return instance if alive(instance) else None


def alive(instance: Instance) -> bool:
    return instance.boot == boot_id() and start_ticks(instance.pid) == instance.start_ticks


def write_private(path: Path, text: str) -> None:
    """Write a file that only the owner can read, whole or not at all."""
    draft = path.with_name(f"{path.name}.tmp")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(text)
    draft.replace(path)


def token(paths: Paths) -> str:
    """JupyterLab's token: made once, then kept, so that bookmarks hold."""
    path = paths.local / "jupyter-token"
    try:
        kept = path.read_text().strip()
    except OSError:
        kept = ""
    if not kept:
        kept = secrets.token_hex(24)
        write_private(path, kept + "\n")
    path.chmod(0o600)
    return kept


def url(paths: Paths, instance: Instance) -> str:
    return f"{instance.base}/lab?token={token(paths)}"


def workspace_path(paths: Paths, settings: Settings) -> Path:
    """Where the user's code lies; it need not be there yet. Raises `Problem` when a file is in the way."""
    wish = settings.get("WORKSPACE", "./workspace")
    path = paths.root / Path(wish).expanduser()
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
    except OSError as error:  # a folder above it that we may not look into, a name that is too long
        raise no_workspace(paths, path, error) from None
    if not there.is_dir():
        which = "" if there == path else f": {paths.short(there)}"
        raise Problem(f"WORKSPACE={wish}{which} is a file, not a folder")
    return path


def no_workspace(paths: Paths, path: Path, error: OSError) -> Problem:
    return Problem(f"the workspace {paths.short(path)} cannot be made: {error.strerror}")


def workspace(paths: Paths, settings: Settings) -> Path:
    """The folder for the user's code, made when it is not there. Raises `Problem` when that is impossible."""
    path = workspace_path(paths, settings)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_workspace(paths, path, error) from None
    return path.resolve()


def configuration(secret: str, address: str, port: int, folder: Path) -> dict[str, Any]:
    """JupyterLab's configuration. The token stands here and nowhere else: not in argv, environment or log."""
    return {
        "ServerApp": {
            "ip": address,
            "port": port,
            "port_retries": 0,
            "open_browser": False,
            "root_dir": str(folder),
            "allow_root": os.geteuid() == 0,
        },
        "IdentityProvider": {"token": secret},
    }


def visible_gpus(wish: str) -> dict[str, str]:
    """What GPUS means without Docker: CUDA's own variable.

    >>> visible_gpus("count=2"), visible_gpus("all")
    ({'CUDA_VISIBLE_DEVICES': '0,1'}, {})
    """
    if wish in {"", "all"}:
        return {}
    if wish.startswith("count="):
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(str(each) for each in range(int(wish.removeprefix("count="))))
        }
    return {"CUDA_VISIBLE_DEVICES": wish}


def environment(paths: Paths, settings: Settings, venv: Venv, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of JupyterLab, its kernels and `make shell`."""
    drop = {"JUPYTER_TOKEN", "JUPYTER_PORT", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    kept = {key: value for key, value in environ.items() if key not in drop}
    own = {
        # The user's own Jupyter configuration may hold a password, certificates, another address.
        "JUPYTER_CONFIG_DIR": str(paths.local / "config"),
        "JUPYTER_RUNTIME_DIR": str(paths.local / "runtime"),
        "TORCHTAP_STATE": str(paths.local),
    }
    return venv.environment({**kept, **own, **visible_gpus(settings.get("GPUS"))})


def selftest(paths: Paths, env: Mapping[str, str], venv: Venv) -> dict[str, Any] | None:
    """Run the self-test and return its report, which stays in the state folder. None when it gave none."""
    target = paths.local / "selftest.json"
    target.unlink(missing_ok=True)
    with ticking("selftest") as ticker:
        ask: list[str | Path] = [venv.bin / "torchtap", "selftest", "--output", target]
        done = proc.follow(
            ask, lambda elapsed, _: ticker.tick(elapsed, "GPU, driver, CUDA and PyTorch"), env=env
        )
    if done.rc == 2 or not target.exists():
        say("selftest", f"could not run: {done.said}")
        return None
    return verdict.read(target.read_text())


def start(paths: Paths, settings: Settings, venv: Venv, env: Mapping[str, str]) -> Instance:
    """Start JupyterLab and wait for an answer to the token. Raises `Problem`; then nothing is left running."""
    address = settings.get("BIND_ADDRESS", "127.0.0.1").strip("[]")
    port = int(settings.get("JUPYTER_PORT", "8888"))
    folder = workspace(paths, settings)
    ports.check("JUPYTER_PORT", address, port)
    for name in ("config", "runtime"):
        (paths.local / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.local.chmod(0o700)
    secret = token(paths)
    config = paths.local / "jupyter.json"
    write_private(config, json.dumps(configuration(secret, address, port, folder), indent=1) + "\n")
    log = paths.local / "jupyter.log"
    if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as output:
        log.chmod(0o600)
        child = subprocess.Popen(
            [str(venv.python), "-m", "jupyterlab", f"--config={config}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=folder,
            start_new_session=True,  # Ctrl-C and a closed terminal do not reach it
        )
    instance = Instance(
        child.pid, start_ticks(child.pid) or 0, boot_id(), address, port, str(folder), round(time.time(), 1)
    )
    write_private(paths.local / "running.json", json.dumps(asdict(instance)) + "\n")
    try:
        wait_ready(instance, secret, child, log)
    except BaseException:
        stop(paths, instance)
        raise
    return instance


def wait_ready(instance: Instance, secret: str, child: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for an authenticated answer. Raises `Problem` with the log's last lines shown when it does not come."""
    began = time.monotonic()
    with ticking("start") as ticker:
        while not answers(instance, secret):
            elapsed = time.monotonic() - began
            trouble = None
            if child.poll() is not None:
                trouble = f"ended with exit code {child.returncode}"
            elif elapsed > READY_PATIENCE_S:
                trouble = f"gave no answer in {READY_PATIENCE_S:g} s"
            if trouble:
                ticker.done()
                print("\n".join(tail(log, 15)))
                raise Problem(f"JupyterLab {trouble} (its last words are above)", code=1)
            ticker.tick(elapsed, "JupyterLab")
            time.sleep(0.1)


def answers(instance: Instance, secret: str) -> bool:
    """Whether JupyterLab answers a request that carries the token. No proxy variable has a say in it."""
    host = "127.0.0.1" if instance.address == "0.0.0.0" else instance.address
    connection = http.client.HTTPConnection(host, instance.port, timeout=5)
    try:
        connection.request("GET", "/api/status", headers={"Authorization": f"token {secret}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file that may be long."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 200 * lines - 2000))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def stop(paths: Paths, instance: Instance, patience_s: float = 30.0) -> None:
    """Ask JupyterLab to end, so that kernels run their `finally`; after `patience_s` insist."""
    began = time.monotonic()
    signals = iter([(0.0, signal.SIGTERM), (patience_s, signal.SIGKILL)])
    due, number = next(signals)
    with ticking("stop") as ticker:
        while alive(instance):
            elapsed = time.monotonic() - began
            if elapsed >= due:
                send(instance, number)
                if number == signal.SIGKILL:
                    say("stop", f"no end after {patience_s:g} s: killed")
                due, number = next(signals, (float("inf"), signal.SIGKILL))
            if elapsed > patience_s + 5:
                raise Problem(f"JupyterLab (pid {instance.pid}) does not end, not even when killed", code=1)
            ticker.tick(elapsed, "JupyterLab ends its kernels")
            reap(instance.pid)
            time.sleep(0.05)
    (paths.local / "running.json").unlink(missing_ok=True)


def send(instance: Instance, number: signal.Signals) -> None:
    kill = os.killpg if number == signal.SIGKILL else os.kill
    with contextlib.suppress(ProcessLookupError):
        kill(instance.pid, number)


def reap(pid: int) -> None:
    """Collect the process if it is our own child: it was started by this very run."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
