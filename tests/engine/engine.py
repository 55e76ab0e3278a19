"""A Docker engine for the image tests, on machines that have none.

    python3 tests/engine/engine.py start [--gpu hook|cdi|none]   about 25 s the first time, 2 s later
    eval "$(python3 tests/engine/engine.py env)"                 docker, docker compose, docker buildx use it
    python3 tests/engine/engine.py stop | status | restart | remove

From Python: `ensure()` gives an `Engine`: one that is reachable already, or one of our own. Standard
library only.

Everything lies in one folder (TORCHTAP_ENGINE_DIR, default .torchtap/engine in the repository). dockerd
runs as a child of a small init in mount and PID namespaces of its own: when that init ends, the kernel ends
every process of the engine and takes every mount away, also after a `kill -9`. It is stopped by its process
id only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine import privateroot
from tests.engine.network import Network, NetworkError
from tests.engine.processes import child_of, send_signal, start_time, wait_gone
from tests.engine.simulate import cdi, hosts, stubs

REPOSITORY = Path(__file__).resolve().parents[2]
Gpu = Literal["hook", "cdi", "none"]
"""How the engine hands out the simulated GPU: NVIDIA's runtime hook, a CDI specification, or not at all."""

STATE_VARIABLE = "TORCHTAP_ENGINE_DIR"
DEFAULT_SOCKET = Path("/var/run/docker.sock")

HOOK_FOLDER = "/torchtap/tests/engine/simulate/hook"
SOCKET_LIMIT = 100  # of the 107 bytes a socket's path may have
NEW_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
DATA_LOCK = "lock-of-data"  # held by enter-root.sh and all that it starts
OVERLAY_TEST = "lowerdir=lower,upperdir=upper,workdir=work"
START_LIMIT_S = 60
STOP_LIMIT_S = 40
# runc's words, on a busy machine, before anything of the container or of a build's step has run.
HICCUP = "read init-p: connection reset by peer"
TRIES = 3
PAUSE_S = 1.0


class EngineUnavailable(RuntimeError):  # noqa: N818  the name callers see; it is a state of the machine, not a fault
    """No Docker engine is reachable and none can be started here. The message is one reason."""


class EngineError(RuntimeError):
    """A docker command, or a start or stop of our own engine, failed."""


@dataclass
class Engine:
    """A reachable engine. `env` is the whole environment for subprocesses that talk to it."""

    env: dict[str, str]
    owned: ClassVar[bool] = False

    def docker(
        self, *arguments: str | Path, check: bool = True, timeout: float = 600, **run: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker ARGUMENTS` with output captured as text.

        Raises `EngineError`, with the command and what it said, when it fails and `check` is set, or takes
        longer than `timeout` seconds. `run` goes to `subprocess.run` (input, cwd, ...); an `env` there is
        added to ours. What runc's hiccup kept from starting is tried again.
        """
        command = ["docker", *map(str, arguments)]
        options = {"capture_output": True, "text": True, "errors": "replace"}  # output need not be UTF-8
        env = {**self.env, **run.pop("env", {})}
        for left in reversed(range(TRIES)):
            try:
                done = subprocess.run(command, env=env, timeout=timeout, check=False, **{**options, **run})
            except subprocess.TimeoutExpired:
                raise EngineError(f"{shlex.join(command)}: no end after {timeout:g} s") from None
            if done.returncode == 0 or HICCUP not in f"{done.stdout}{done.stderr}" or not left:
                break
            time.sleep(PAUSE_S)
        if check and done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip())[-2000:]
            raise EngineError(f"{shlex.join(command)}: exit status {done.returncode}\n{said}")
        return done

    def restart(self, gpu: Gpu) -> None:
        """Change how GPUs are handed out. Raises `EngineError`: an engine that is not ours stays as it is."""
        raise EngineError(f"cannot restart an engine that is not ours with gpu={gpu!r}; use ensure(own=True)")

    def simulate(self, host: str) -> None:
        """Choose the simulated host of containers made from now on. Raises `EngineError`: not ours, no simulation."""
        raise EngineError(f"cannot simulate {host!r} on an engine that is not ours; use ensure(own=True)")

    def add_host(self, name: str, description: Mapping[str, Any]) -> None:
        """Make a simulated host. Raises `EngineError`: not ours, no simulation."""
        raise EngineError(f"cannot add {name!r} to an engine that is not ours; use ensure(own=True)")

    def stop(self) -> None:
        """End the engine if it is ours; nothing otherwise."""


@dataclass
class OwnEngine(Engine):
    """An engine in a private root. `started_here`: by this object, so its maker should also stop it."""

    state: Path
    owned: ClassVar[bool] = True
    started_here: bool = False

    @property
    def root(self) -> Path:
        return self.state / "root"

    @property
    def simulation(self) -> Path:
        """The simulation's changing part: the `current` host, hosts made by tests, compiled libraries."""
        return self.state / "simulate"

    @property
    def log(self) -> Path:
        return self.state / "dockerd.log"

    @property
    def gpu(self) -> Gpu | None:
        """How the running engine hands out GPUs; None when it does not run."""
        running = self._running()
        return running["gpu"] if running else None

    def start(self, gpu: Gpu = "hook") -> None:
        """Start, unless it runs and answers like this already; running otherwise, it is restarted.

        Raises `EngineUnavailable` where it cannot run, `EngineError` where it should and does not.
        """
        with self._lock():
            running = self._running()
            # Running but mute: it is just being ended by a kill, or hangs.
            if running and running["gpu"] == gpu and answers(_socket_folder(self.state) / "docker.sock"):
                return
            if running:
                self._stop()
            self._start(gpu)

    def restart(self, gpu: Gpu) -> None:
        """Stop (containers too) and start with another way to hand out GPUs. Images and volumes stay."""
        with self._lock():
            self._stop()
            self._start(gpu)

    def simulate(self, host: str) -> None:
        """Choose the simulated host of containers made from now on, by its name.

        A container's own TORCHTAP_SIMULATED_HOST wins where the hook is used. Raises `HostError` for unknown names.
        """
        loaded = hosts.load(host, self.simulation / "hosts", hosts.HOSTS)
        _write(self.simulation / "current", host)
        if self.gpu == "cdi":
            cdi.write(loaded, self.simulation)

    def add_host(self, name: str, description: Mapping[str, Any]) -> None:
        """Make a host for a test (keys: simulate/hosts.py); `simulate(name)` then chooses it.

        Raises `HostError` if it is not understood.
        """
        hosts.parse(description, name)
        _write(self.simulation / "hosts" / name / "host.json", json.dumps(description))

    def stop(self) -> None:
        """End the engine and all its containers, and take its network away. Fine when it does not run."""
        with self._lock():
            self._stop()

    def remove(self) -> None:
        """Stop, and delete images, volumes, the private root: the whole state folder."""
        with self._lock():
            self._stop()
        shutil.rmtree(self.state)
        shutil.rmtree(_socket_folder(self.state), ignore_errors=True)  # elsewhere for a deep state folder

    def _start(self, gpu: Gpu) -> None:
        _refuse_where_impossible()
        self._refuse_a_second_daemon()
        began = time.monotonic()
        try:
            privateroot.build(self.root, say)
        except privateroot.RootError as error:
            raise EngineUnavailable(str(error)) from None
        privateroot.refresh(self.root)
        self._prepare_simulation(gpu)
        sockets = _socket_folder(self.state)
        for folder in (self.state / "data", sockets):
            folder.mkdir(parents=True, exist_ok=True)
        (sockets / "docker.sock").unlink(missing_ok=True)
        self._write_client_configuration()
        network = self._network()
        network.down()  # what an engine that was killed has left
        try:
            network.up()
        except NetworkError as error:
            say(f"WARNING no network for containers: {error}")
        daemon = {
            **network.daemon_options(),
            "storage-driver": _storage_driver(self.state),
            "exec-opts": ["native.cgroupdriver=cgroupfs"],  # no systemd in the private root
            "features": {"cdi": True},
            "cdi-spec-dirs": ["/torchtap/simulate/cdi"],
            "shutdown-timeout": 5,
        }
        _write(self.root / "etc/docker/daemon.json", json.dumps(daemon, indent=2))
        path = f"{HOOK_FOLDER}:{privateroot.SYSTEM_PATH}" if gpu == "hook" else privateroot.SYSTEM_PATH
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("wb") as log:
            # The launcher only waits; what gets our signals is its child, the init.
            launcher = subprocess.Popen(
                [
                    *NEW_NAMESPACES,
                    *(
                        "sh",
                        Path(__file__).with_name("enter-root.sh"),
                        self.root,
                        self.state / "data",
                        sockets,
                    ),
                    *(REPOSITORY / "tests", self.simulation, REPOSITORY, path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=privateroot.system_environment(),
            )
        # At once: an engine that is not recorded could be neither stopped nor told from none.
        record = {"launcher": launcher.pid, "started": start_time(launcher.pid), "gpu": gpu}
        _write(self.state / "running.json", json.dumps(record))
        try:
            self._wait_until_it_answers(launcher, sockets / "docker.sock")
        except BaseException:  # an interrupt too: nothing is left half started
            self._stop()
            raise
        self.started_here = True
        say(f"engine ready after {time.monotonic() - began:.1f} s (GPU: {gpu}; log: {self.log})")

    def _refuse_a_second_daemon(self) -> None:
        """Two daemons would spoil each other's images: one that lost its record still holds this lock."""
        with (self.state / DATA_LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EngineError(
                    f"another engine runs in {self.state}, though running.json does not know it; end its dockerd first"
                ) from None

    def _prepare_simulation(self, gpu: Gpu) -> None:
        # Nothing is left over from an earlier run: a host that a test chose must not surprise the next one.
        for leftover in ("hosts", "cdi", "rendered"):
            shutil.rmtree(self.simulation / leftover, ignore_errors=True)
            (self.simulation / leftover).mkdir(parents=True)
        try:
            stubs.build(self.simulation / "lib")
        except stubs.StubError as error:
            raise EngineError(str(error)) from None
        _write(self.simulation / "current", hosts.DEFAULT_HOST)
        if gpu == "cdi":
            cdi.write(hosts.load(hosts.DEFAULT_HOST), self.simulation)

    def _wait_until_it_answers(self, launcher: subprocess.Popen[bytes], address: Path) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if launcher.poll() is not None:
                raise EngineError(f"dockerd ended with exit status {launcher.returncode}; {self._log_end()}")
            if answers(address):
                return
            time.sleep(0.05)
        raise EngineError(f"dockerd gave no answer in {START_LIMIT_S} s; {self._log_end()}")

    def _stop(self) -> None:
        if running := self._running():
            init, launcher = running["pid"], running["launcher"]
            if init:
                send_signal(
                    init, signal.SIGTERM
                )  # it passes the signal on to dockerd, which ends its containers
            if not wait_gone(launcher, running["started"], STOP_LIMIT_S):
                say(f"dockerd has not stopped in {STOP_LIMIT_S} s: killed")
                send_signal(
                    launcher, signal.SIGKILL
                )  # --kill-child: the init, and with it the namespace, goes too
                wait_gone(launcher, running["started"], 10)
            with contextlib.suppress(ChildProcessError):  # ours to reap if this process started it
                os.waitpid(launcher, 0)
            say("engine stopped")
        if (self.state / "network.json").exists() and self.root.exists():
            self._network().down()
        (self.state / "running.json").unlink(missing_ok=True)
        (_socket_folder(self.state) / "docker.sock").unlink(missing_ok=True)

    def _running(self) -> dict[str, Any] | None:
        """The record of the running engine, and its init's "pid" (None: it is just starting or ending).

        A record of an engine that has ended (killed, machine restarted) counts as none.
        """
        try:
            record: dict[str, Any] = json.loads((self.state / "running.json").read_text())
        except (OSError, ValueError):
            return None
        # A pid is given out again; together with its start time it is not.
        if start_time(record["launcher"]) != record["started"]:
            return None
        return {**record, "pid": child_of(record["launcher"])}

    def _network(self) -> Network:
        """This engine's network, with the range it had before: its stored networks lie in it."""
        remembered = self.state / "network.json"
        engine_id = _short_hash(self.state)
        if remembered.exists():
            return Network(self.root, f"ttap-{engine_id}", json.loads(remembered.read_text())["range"])
        network = Network.choose(self.root, engine_id)
        _write(remembered, json.dumps({"range": network.range}))
        return network

    def _write_client_configuration(self) -> None:
        """A client configuration of our own (~/.docker is the user's), and a client for machines without."""
        plugins = self.state / "docker-config" / "cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        for plugin in (self.root / "usr/libexec/docker/cli-plugins").iterdir():
            _link(plugins / plugin.name, plugin)
        (self.state / "bin").mkdir(exist_ok=True)
        _link(self.state / "bin" / "docker", self.root / "usr/bin/docker")

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-12:] if self.log.exists() else []
        return f"the end of {self.log}:\n  " + "\n  ".join(lines)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One start or stop at a time for a state folder, over processes."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def ensure(*, own: bool = False, gpu: Gpu = "hook", state: Path | None = None) -> Engine:
    """An engine to test with: one that answers already (unless `own`), else our own, started if need be.

    `gpu` says how our own hands out GPUs; one that is not ours is taken as it is (`engine.owned` tells).
    Raises `EngineUnavailable` with one reason where neither can be had.
    """
    folder = (state or state_folder()).resolve()
    mine = OwnEngine(env=own_environment(folder), state=folder)
    if not own and (found := _reachable()) is not None and found != _socket_folder(folder) / "docker.sock":
        return Engine(env=dict(os.environ))
    mine.start(gpu)
    return mine


def state_folder() -> Path:
    """Where our own engine lives: TORCHTAP_ENGINE_DIR, else .torchtap/engine in the repository."""
    return Path(os.environ.get(STATE_VARIABLE) or REPOSITORY / ".torchtap" / "engine").resolve()


def own_environment(state: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which `docker`, `docker compose` and `docker buildx` use this folder's engine."""
    env = dict(os.environ if base is None else base)
    env.update(own_variables(state, env.get("PATH", "")))
    for other in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        env.pop(other, None)
    return env


def own_variables(state: Path, path: str) -> dict[str, str]:
    """What `own_environment` sets: the client is added to PATH only where the machine has none."""
    variables = {
        "DOCKER_HOST": f"unix://{_socket_folder(state)}/docker.sock",
        "DOCKER_CONFIG": str(state / "docker-config"),
    }
    client = shutil.which("docker", path=path)
    if client is None or Path(client).parent == state / "bin":
        variables["PATH"] = f"{state / 'bin'}:{path}" if client is None else path
    return variables


def answers(address: Path, timeout: float = 2) -> bool:
    """Whether a Docker engine answers on a UNIX socket."""
    connection = http.client.HTTPConnection("localhost", timeout=timeout)
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(timeout)
        connection.sock.connect(str(address))
        connection.request("GET", "/_ping")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def say(text: str) -> None:
    """One progress line, on stderr: stdout is for `env`."""
    sys.stderr.write(f"engine: {text}\n")
    sys.stderr.flush()


def _reachable() -> Path | str | None:
    """The engine that `docker` would talk to, if it answers: a socket's path, or another kind of address."""
    address = os.environ.get("DOCKER_HOST", "")
    if address and not address.startswith("unix://"):
        client = shutil.which("docker")
        asked = client and subprocess.run([client, "version"], capture_output=True, check=False, timeout=20)
        return address if asked and asked.returncode == 0 else None
    path = Path(address.removeprefix("unix://")) if address else DEFAULT_SOCKET
    return path if answers(path) else None


def _refuse_where_impossible() -> None:
    if not sys.platform.startswith("linux"):
        raise EngineUnavailable("no Docker engine is reachable, and one of our own needs Linux")
    if os.geteuid() != 0:
        raise EngineUnavailable("no Docker engine is reachable, and starting one of our own needs root")
    if not (privateroot.is_installed("mmdebstrap") or privateroot.is_installed("apt-get")):
        raise EngineUnavailable("no Docker engine is reachable, and one of our own needs Debian's apt-get")
    env = privateroot.system_environment()
    tried = subprocess.run([*NEW_NAMESPACES, "true"], env=env, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        why = tried.stderr.strip()
        raise EngineUnavailable(f"no Docker engine is reachable, and new namespaces are refused here ({why})")


def _storage_driver(state: Path) -> str:
    """overlay2 where the state folder's file system can be stacked, else vfs, which copies every layer."""
    with tempfile.TemporaryDirectory(dir=state, prefix="overlay-test.") as folder:
        for part in ("lower", "upper", "work", "merged"):
            (Path(folder) / part).mkdir()
        tried = subprocess.run(
            [*NEW_NAMESPACES, "mount", "-t", "overlay", "overlay", "-o", OVERLAY_TEST, "merged"],
            cwd=folder,
            env=privateroot.system_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    if tried.returncode == 0:
        return "overlay2"
    why = tried.stderr.strip()
    say(f"WARNING no overlay file system in {state} ({why}): using vfs, which is slow and takes much disk")
    return "vfs"


def _socket_folder(state: Path) -> Path:
    folder = state / "sockets"
    if len(str(folder / "docker.sock")) <= SOCKET_LIMIT:
        return folder
    return Path(tempfile.gettempdir()) / f"torchtap-engine-{_short_hash(state)}"


def _short_hash(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:8]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(text + "\n")
    beside.replace(path)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _status(engine: OwnEngine) -> int:
    running = engine._running()
    if not running:
        sys.stdout.write(f"not running ({engine.state})\n")
        return 1
    asked = engine.docker("version", "--format", "{{.Server.Version}}", check=False, timeout=20)
    version = asked.stdout.strip()
    sys.stdout.write(
        f"running: Docker {version or '(no answer)'}, pid {running['pid']}, GPU: {running['gpu']}\n"
        f"state: {engine.state}\nDOCKER_HOST={engine.env['DOCKER_HOST']}\n"
    )
    return 0 if version else 1


def _print_env(engine: OwnEngine) -> int:
    for name, value in own_variables(engine.state, os.environ.get("PATH", "")).items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    sys.stdout.write("unset DOCKER_CONTEXT DOCKER_TLS_VERIFY DOCKER_CERT_PATH\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1: not running (`status`) or failed; 2: usage, or impossible here."""
    parser = argparse.ArgumentParser(prog="engine.py", description="A Docker engine for the image tests.")
    parser.add_argument("command", choices=("start", "stop", "restart", "status", "env", "remove"))
    parser.add_argument("--gpu", choices=get_args(Gpu), default="hook", help="how GPUs are handed out")
    chosen = parser.parse_args(arguments)
    state = state_folder()
    engine = OwnEngine(env=own_environment(state), state=state)
    try:
        if chosen.command == "status":
            return _status(engine)
        if chosen.command == "env":
            return _print_env(engine)
        if chosen.command in ("start", "restart"):
            getattr(engine, chosen.command)(chosen.gpu)
        else:
            getattr(engine, chosen.command)()
    except EngineUnavailable as error:
        say(str(error))
        return 2
    except EngineError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
