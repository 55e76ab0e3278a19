"""Health of real containers: what is said when something ends, is lost or is missing, and how it recovers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engine.engine import Engine
from tests.engine.simulate.hosts import load
from tests.engine.simulate.smi import render

from .conftest import OFF, Container, Run, wait_until

KILLED = r"WARNING {}: ended \(signal 9, SIGKILL\) after \d+ s; starts again in \d s"


def health(container: Container, *, root: bool = True) -> tuple[bool, str]:
    """What the HEALTHCHECK would say now."""
    done = container.exec("/opt/torchtap/bin/health", root=root, check=False)
    return done.returncode == 0, done.stdout.strip()


def is_healthy(container: Container) -> bool:
    return health(container)[0]


def kill(container: Container, name: str) -> float:
    """kill -9 of the process that s6 keeps; seconds until it has a successor that is past its wait."""
    script = f"""
        cd /run/torchtap/services/{name}
        pkill -KILL -P "$(pgrep -f '^s6-supervise {name}$')"
        killed=$(date +%s%N)
        until [ -e ended.json ]; do sleep 0.01; done
        until [ -e began ]; do sleep 0.01; done
        echo $((($(date +%s%N) - killed) / 1000000))
    """
    return int(container.exec("sh", "-c", script, root=True).stdout) / 1000


def test_services_that_are_killed_start_again_after_a_second(run: Run) -> None:
    """jupyter and sshd killed -9: said, mended, and a tmux session goes on meanwhile."""
    container = run(key=True, env=OFF, allow=(KILLED.format("jupyter"), KILLED.format("sshd")))
    container.wait_healthy()
    container.ssh("tmux new-session -d -s work 'sleep 1000'")
    took_s = [kill(container, "sshd"), kill(container, "jupyter")]
    assert max(took_s) < 5, f"{took_s}: a second, and what a busy machine adds"
    well, said = health(container)  # JupyterLab may be that quick
    assert well or "jupyter: does not run: ended (signal 9, SIGKILL); starts again now; gpu: " in said
    wait_until(lambda: is_healthy(container), 30, lambda: health(container)[1])
    assert "work" in container.ssh("tmux list-sessions").stdout


def test_a_container_stops_at_once_while_a_service_waits_for_its_next_start(run: Run) -> None:
    """And what ends again and again is said with how often, and when it is tried again."""
    ends = r"WARNING jupyter: ended \(exit code 1\) after \d+ s; starts again in 8 s"
    broken = ("-e", "JUPYTER_RUNTIME_DIR=/proc/nowhere")
    container = run(
        "jupyter", key=True, env=OFF, options=broken, allow=(r"WARNING jupyter: ended", r"Traceback")
    )
    container.wait_log(ends, limit_s=120)
    well, said = health(container)
    assert not well
    assert re.search(
        r"does not run: ended \(exit code 1\), 4 times in a row; starts again (in \d s|now)", said
    ), said
    code, took_s = container.stop()
    assert code in (0, 143)
    assert took_s < 4, "of the 8 s that the service waits"


# ---- the GPU ----
class Host:
    """A GPU host that can become another one under a running container: its nvidia-smi lies in a mounted folder.

    What the engine's simulated toolkit mounts cannot be changed later. A managed cluster mounts such a folder too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.options = ("-v", f"{folder}:/usr/local/nvidia/bin")

    def is_now(self, name: str) -> None:
        draft = self.folder / "draft"
        draft.write_text(render(load(name)))
        draft.chmod(0o755)
        draft.replace(self.folder / "nvidia-smi")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    found.is_now("h200-good")
    return found


def ask_again(container: Container) -> None:
    """As if a minute had passed."""
    container.exec("sh", "-c", "touch -d '2 minutes ago' /run/torchtap/gpu.json", root=True)
    health(container)


def wait_said(container: Container, pattern: str, limit_s: float = 60) -> bool:
    """Whether it is healthy once it says so."""
    wait_until(lambda: re.search(pattern, health(container)[1]), limit_s, lambda: health(container)[1])
    return health(container)[0]


def test_c17_c18_a_gpu_lost_while_running_is_unhealthy_with_what_to_do(run: Run, host: Host) -> None:
    """NVML Unknown Error after a daemon-reload (nvidia-container-toolkit#48); a driver updated meanwhile (#394)."""
    container = run("jupyter", env=OFF, options=host.options).wait_healthy()
    assert wait_said(container, r"gpu: 1 answers$")
    for name, says in (
        (
            "nvml-unknown-error",
            "the container lost its right to use the GPU devices .often after systemctl daemon-reload.. Recreate ",
        ),
        (
            "version-mismatch",
            "the driver's libraries and its kernel module are of different versions. The host's driver was updated ",
        ),
    ):
        host.is_now(name)
        ask_again(container)
        assert not wait_said(container, f"gpu: lost while running: {says}")
    host.is_now("h200-good")
    ask_again(container)
    assert wait_said(container, r"gpu: 1 answers$")


def test_an_nvidia_smi_that_begins_to_hang_is_said_and_given_no_company(run: Run, host: Host) -> None:
    """And the stop, which waits for every process, does not wait for it."""
    container = run("jupyter", env=OFF, options=host.options).wait_healthy()
    assert wait_said(container, r"gpu: 1 answers$")
    host.is_now("hang")
    for _ in range(4):
        ask_again(container)
    hanging = container.exec("ps", "-C", "sleep", "-o", "user=,args=", root=True).stdout.splitlines()
    assert [line.split() for line in hanging] == [["dev", "sleep", "86400"]], "one, and not as root"
    assert not wait_said(container, "gpu: lost while running: nvidia-smi gave no answer in ")
    ask_again(container)
    assert container.stop()[1] < 5


def test_a_gpu_that_the_toolkit_brings_is_asked(simulated: Engine, run: Run) -> None:
    assert wait_said(run("jupyter", env=OFF, options=("--gpus", "all")).wait_healthy(), r"gpu: 1 answers$")


def test_a_gpu_that_never_answered_leaves_health_to_the_services(simulated: Engine, run: Run) -> None:
    options = ("--gpus", "all", "-e", "TORCHTAP_SIMULATED_HOST=nvml-unknown-error")
    container = run("jupyter", env=OFF, options=options).wait_healthy()
    assert wait_said(
        container, "gpu: no answer since the start: the container lost its right to use the GPU devices"
    )


@pytest.mark.parametrize(
    ("variables", "well", "says"),
    [
        ({"TORCHTAP_DEVICE": "cpu"}, True, "gpu: none, by design (TORCHTAP_DEVICE=cpu)"),
        (
            {"TORCHTAP_DEVICE": "gpu"},
            False,
            "gpu: TORCHTAP_DEVICE=gpu, and there is none in this container; recreate ",
        ),
    ],
    ids=["by design", "asked for"],
)
def test_without_a_gpu(run: Run, variables: dict[str, str], well: bool, says: str) -> None:
    container = run("jupyter", env={**OFF, **variables})
    wait_until(lambda: "jupyter: answers" in health(container)[1], 60, lambda: container.logs)
    found = health(container)
    assert found[0] is well
    assert says in found[1]
