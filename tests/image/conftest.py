"""A real Docker engine, the built image, and containers that are strict by default.

Every WARNING or ERROR line in a container's log fails its test unless the test allows it by `allow=`, and every
container that a test starts is removed by its id. VARIANT chooses the variant (default cu130).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.engine import base
from tests.engine.engine import Engine, EngineUnavailable, ensure
from torchtap.variants import DEFAULT

ROOT = Path(__file__).resolve().parents[2]
VARIANT = os.environ.get("VARIANT") or DEFAULT
# Beside the user's own torchtap:VARIANT; another name lets two checkouts test on one engine.
NAME = os.environ.get("TORCHTAP_TEST_IMAGE") or "torchtap-test"
CA_BUNDLE = Path(os.environ.get("TORCHTAP_CA_BUNDLE") or "/etc/ssl/certs/ca-certificates.crt")
ALARM = re.compile(r"^(?:WARNING|ERROR)\b.*|^Traceback.*|^\[[EC] .*", re.MULTILINE)
# jupyter_server's own last word at every stop.
FAREWELL = re.compile(r"^\[C .*received signal 15, stopping$", re.MULTILINE)
NO_KEY = r"WARNING ssh: not started, no public key"
OFF = {"TORCHTAP_SELFTEST": "off"}
READ_ONLY = ("--read-only", "--tmpfs", "/run:mode=1777", "--tmpfs", "/tmp:mode=1777")
KEPT = ("-v", "/home/dev", "-v", "/var/lib/torchtap")
# As compose.yaml; that it is the same list is tested without Docker (tests/unit/docker/test_compose.py).
POWERS = ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID", "SYS_CHROOT")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.image)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine of this machine, or one of our own; always our own where TORCHTAP_TEST_OWN_ENGINE is set."""
    try:
        found = ensure(own=bool(os.environ.get("TORCHTAP_TEST_OWN_ENGINE")))
    except EngineUnavailable as error:
        pytest.skip(f"no Docker engine: {error}")
    yield found
    if getattr(found, "started_here", False):
        found.stop()


@pytest.fixture(scope="session")
def simulated(engine: Engine) -> Engine:
    """An engine whose GPUs are simulated: only our own is."""
    if not engine.owned:
        pytest.skip(
            "simulated GPUs need the engine that the tests start themselves (TORCHTAP_TEST_OWN_ENGINE=1)"
        )
    return engine


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """What images are built on here: the stand-in in our own engine, else the variant's real base."""
    if not engine.owned:
        return os.environ.get("BASE_IMAGE", "")
    return base.ensure_base(engine)


@pytest.fixture(scope="session")
def build(engine: Engine, base_image: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`docker build` with this machine's base and certificates."""

    def run(*options: str, check: bool = True, **arguments: str) -> subprocess.CompletedProcess[str]:
        # All that compose.yaml gives, so that both share one build cache.
        arguments = {"VARIANT": VARIANT, "BASE_IMAGE": base_image, "TORCH_INDEX": "", **arguments}
        flags = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        if CA_BUNDLE.exists():
            flags.append(f"--secret=id=ca_bundle,src={CA_BUNDLE}")
        return engine.docker(
            "build", "--progress=plain", *flags, *options, str(ROOT), check=check, timeout=3000
        )

    return run


@pytest.fixture(scope="session")
def image(build: Callable[..., Any]) -> str:
    """The image under test."""
    name = f"{NAME}:{VARIANT}"
    build("-t", name)
    return name


@dataclass
class Container:
    """A running container, and the questions that tests ask it."""

    engine: Engine
    id: str
    key: Path
    allow: list[str] = field(default_factory=list)
    user: str | None = "dev"  # None: the one that --user gave

    def exec(
        self, *command: str, root: bool = False, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        user = () if root or self.user is None else ("-u", self.user)
        return self.engine.docker("exec", "-i", *user, self.id, *command, check=check, **options)

    def python(self, code: str) -> str:
        """Run code with the image's Python, as dev; what it printed."""
        return self.exec("python", "-", input=code).stdout.strip()

    @property
    def logs(self) -> str:
        """Both streams, in order."""
        done = self.engine.docker(
            "logs", self.id, capture_output=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return done.stdout

    def state(self, what: str) -> Any:
        return json.loads(self.engine.docker("inspect", "-f", f"{{{{json {what}}}}}", self.id).stdout)

    def port(self, inside: int) -> int:
        return int(self.engine.docker("port", self.id, str(inside)).stdout.splitlines()[0].rpartition(":")[2])

    def wait_healthy(self, limit_s: float = 60) -> Container:
        def healthy() -> bool:
            state = self.state(".State")
            assert state["Running"], f"the container ended:\n{self.logs}"
            return bool(state["Health"]["Status"] == "healthy")

        wait_until(healthy, limit_s, lambda: f"not healthy: {self.state('.State.Health')}\n{self.logs}")
        return self

    def wait_log(self, pattern: str, limit_s: float = 60) -> re.Match[str]:
        wait_until(lambda: re.search(pattern, self.logs), limit_s, lambda: f"no {pattern!r} in:\n{self.logs}")
        found = re.search(pattern, self.logs)
        assert found
        return found

    def wait_end(self, limit_s: float = 60) -> int:
        return int(self.engine.docker("wait", self.id, timeout=limit_s).stdout)

    def stop(self) -> tuple[int, float]:
        """`docker stop`; the exit code and how long it took."""
        began = time.monotonic()
        self.engine.docker("stop", self.id)
        return self.state(".State.ExitCode"), time.monotonic() - began

    def ssh(
        self, *command: str, user: str = "dev", options: tuple[str, ...] = (), check: bool = True, **run: Any
    ) -> subprocess.CompletedProcess[str]:
        arguments = ["ssh", *SSH_OPTIONS, "-p", str(self.port(22)), "-i", str(self.key), *options]
        arguments += [f"{user}@127.0.0.1", *command]
        environment = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=60, check=False, **run
        )
        assert not check or done.returncode == 0, (
            f"ssh {command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs}"
        )
        return done

    @property
    def token(self) -> str:
        return self.exec("torchtap-url").stdout.strip().rpartition("token=")[2]

    def api(self, path: str, token: str | None, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Status and JSON of JupyterLab's answer."""
        headers = {"Authorization": f"token {token}"} if token is not None else {}
        data = json.dumps(body).encode() if body is not None else None
        url = f"http://127.0.0.1:{self.port(8888)}{path}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, None

    def kernel(self, code: str, *, wait: bool = True) -> str:
        """Run code in a new kernel of the server; what it printed. With wait=False return once it is busy."""
        status, kernel = self.api("/api/kernels", self.token, "POST", {"name": "python3"})
        assert status == 201, f"no kernel: {status}\n{self.logs}"
        return self.python(KERNEL_CLIENT.format(id=kernel["id"], code=code, wait=wait))


# Nothing of this machine's own configuration, and no host key remembered.
SSH_OPTIONS = """-F none -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no
    -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR""".split()  # noqa: SIM905 - as one types it
KERNEL_CLIENT = """
import glob, os, time
from jupyter_client import BlockingKernelClient
from jupyter_core.paths import jupyter_runtime_dir

path = os.path.join(jupyter_runtime_dir(), "kernel-{id}.json")
client = BlockingKernelClient(connection_file=path)
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=60)
code = {code!r}
if {wait}:
    def show(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            print(content["text"], end="")
        elif message["msg_type"] == "error":
            print("".join(content["traceback"]))
    client.execute_interactive(code, timeout=120, output_hook=show)
else:
    client.execute(code)
    while client.get_iopub_msg(timeout=30)["content"].get("execution_state") != "busy":
        pass
client.stop_channels()
"""


def wait_until(true: Callable[[], object], limit_s: float, complaint: Callable[[], str]) -> None:
    """Poll until `true()`; fail with the complaint after the deadline."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.1)


@pytest.fixture(scope="session")
def ssh_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key pair made for this run."""
    path = tmp_path_factory.mktemp("ssh") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


Run = Callable[..., Container]


@pytest.fixture
def run(engine: Engine, image: str, ssh_key: Path) -> Iterator[Run]:
    """Start a container: run("dev", env={...}, options=("--gpus", "all"), allow=("WARNING ...",), key=True)."""
    with containers(engine, image, ssh_key) as start:
        yield start


@pytest.fixture(scope="module")
def shared(engine: Engine, image: str, ssh_key: Path) -> Iterator[Container]:
    """One container in role dev with a key, for the tests of a module that only look."""
    with containers(engine, image, ssh_key) as start:
        yield start(key=True, env={"TORCHTAP_SELFTEST": "off"}).wait_healthy()


@contextlib.contextmanager
def containers(engine: Engine, image: str, ssh_key: Path) -> Iterator[Run]:
    started: list[Container] = []

    def start(
        *command: str,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
        allow: tuple[str, ...] = (),
        key: bool = False,
        of: str = image,
    ) -> Container:
        variables = dict(env or {})
        if key:
            variables["SSH_PUBLIC_KEY"] = ssh_key.with_suffix(".pub").read_text()
        flags = [f"--env={name}={value}" for name, value in variables.items()]
        ports = (
            []
            if any(option.startswith("--network") for option in options)
            else ["-p", "127.0.0.1::8888", "-p", "127.0.0.1::22"]
        )
        done = engine.docker("run", "-d", *ports, *flags, *options, of, *command)
        user = None if "--user" in options else "dev"
        started.append(Container(engine, done.stdout.strip(), ssh_key, list(allow), user))
        return started[-1]

    try:
        yield start
        for container in started:
            check_log(container.logs, container.allow)
    finally:
        for container in started:
            engine.docker("rm", "-f", "-v", container.id, check=False)


def check_log(logs: str, allow: list[str]) -> None:
    """Only the alarms that a test allows may be there, and each of those must be."""
    alarms = ALARM.findall(FAREWELL.sub("", logs))
    unexpected = [line for line in alarms if not any(re.search(pattern, line) for pattern in allow)]
    assert not unexpected, f"not expected in the log: {unexpected}\n{logs}"
    for pattern in allow:
        assert re.search(pattern, logs), f"expected in the log: {pattern!r}\n{logs}"


def on_host(name: str) -> tuple[str, ...]:
    """Options of `docker run` for a simulated host of tests/engine/simulate/hosts."""
    return ("--gpus", "all", "-e", f"TORCHTAP_SIMULATED_HOST={name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
