"""GPU hosts of every kind, end to end: container start, verdict in the log, login message, health, exit code.

The hosts are simulated (tests/engine); one table says what each must come to. Their containers are started once and
only looked at, but for the one whose GPU is lost while it runs.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine import Engine

from .conftest import NAME, VARIANT, Container, Run, containers, on_host, wait_until
from .test_health import Host, ask_again, health, wait_said
from .test_up import Checkout

DONE = r"\b(PASS|WARN|FAIL|UNKNOWN) +self-test: "
ANY_DRIVER = ("-e", "NVIDIA_DISABLE_REQUIRE=1")
ROOM = ("--shm-size=1g",)  # as compose.yaml has it; Docker's 64 MB are a warning of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a host must come to. `health`: a pattern in the line of its HEALTHCHECK, which the services decide."""

    status: str
    cause: str
    login: str
    health: str
    script: int | None  # exit code of scripts/selftest; None: not asked here
    options: tuple[str, ...] = ()


GOOD = Case(  # as good as a simulated host can be
    status="warn",
    cause="simulated",
    login="WARN, just now: this GPU is simulated",
    health=r"gpu: 1 answers$",
    script=0,
)
HOSTS = {
    "h200-good": GOOD,
    "h100-mig": GOOD,
    "rtx2080s-610": GOOD,
    "one-of-two-lost": Case(
        status="fail",
        cause="gpu_lost",
        login='FAIL, just now: GPU 1: no answer any more ("GPU is lost")',
        health=r"gpu: no answer since the start: GPU 1: no answer any more .*Stop the work on this host",
        script=1,
    ),
    "h100-mig-no-instances": Case(
        status="fail",
        cause="mig_no_instance",
        login="FAIL, just now: the GPU: MIG is on, but no MIG instance is here",
        health=r"gpu: no answer since the start: .*MIG is on, but no MIG instance",
        script=None,
    ),
    "version-mismatch": Case(
        status="fail",
        cause="driver_library_mismatch",
        login="FAIL, just now: the driver's libraries and its kernel module are of different versions",
        health=r"gpu: no answer since the start: the driver's libraries .*reboot the host",
        script=1,
    ),
    "nvml-unknown-error": Case(
        status="fail",
        cause="devices_revoked",
        login="FAIL, just now: the container lost its right to use the GPU devices",
        health=r"gpu: no answer since the start: the container lost its right .*Recreate the container",
        script=1,
    ),
    "garbage": Case(
        status="unknown",
        cause="smi_unreadable",
        login="UNKNOWN, just now: nvidia-smi answered something that Torchtap cannot read",
        health=r"gpu: no answer since the start: nvidia-smi answered something",
        script=None,
    ),
    # The toolkit refuses this one before anything starts: scripts/selftest says so and fails.
    "t4-old-driver-550": Case(
        status="fail",
        cause="driver_too_old",
        login="FAIL, just now: driver 550.163.01 is too old",
        health=r"gpu: 2 answer$",
        script=1,
        options=ANY_DRIVER,
    ),
    "hang": Case(
        status="fail",
        cause="smi_hung",
        login="FAIL, just now: nvidia-smi gave no answer in 3 s",
        health=r"gpu: no answer since the start: nvidia-smi gave no answer in \d+ s: .*reboot the host",
        script=None,
        options=("-e", "TORCHTAP_SMI_TIMEOUT=3"),
    ),
}


def report_of(container: Container) -> Any:
    """The report of the start, once it is there."""
    container.wait_log(DONE, limit_s=150)
    return json.loads(container.exec("cat", "/var/lib/torchtap/selftest.json").stdout)


def login(container: Container) -> str:
    """What a person sees at a terminal after `ssh`, in one line."""
    shown = container.ssh(options=("-tt",), input="exit\n").stdout
    return re.sub(r"\s+", " ", shown)


@pytest.fixture(scope="module")
def started(simulated: Engine, image: str, ssh_key: Path) -> Iterator[dict[str, Container]]:
    """All of them. Two self-tests at a time: with ten, the steps of each would take longer than they may."""
    names = list(HOSTS)
    found: dict[str, Container] = {}
    with containers(simulated, image, ssh_key) as start:
        for two in (names[at : at + 2] for at in range(0, len(names), 2)):
            for name in two:
                found[name] = start("ssh", key=True, options=(*on_host(name), *ROOM, *HOSTS[name].options))
            for name in two:
                found[name].wait_log(DONE, limit_s=150)
        yield found


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_end_to_end(started: dict[str, Container], name: str) -> None:
    """Its verdict and first cause in log and report, and at login; health tells it without being unhealthy."""
    case, container = HOSTS[name], started[name]
    report = report_of(container)
    assert (report["verdict"], report["first_cause"]["cause_id"]) == (case.status, case.cause)
    assert re.search(rf"\n{case.status.upper()} +self-test: ", container.logs)
    assert re.search(rf"\ncause +{case.cause}: ", container.logs)
    shown = login(container)
    assert f"self-test {case.login}" in re.sub(r"\d min ago", "just now", shown), shown
    assert " do " in shown
    assert "all of it torchtap selftest" in shown
    assert container.ssh("echo", "well").stdout == "well\n", "a command is not greeted"
    assert wait_said(container, case.health)
    container.wait_healthy()


@pytest.fixture(scope="module")
def checkout(
    simulated: Engine, image: str, ssh_key: Path, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Checkout]:
    """A checkout whose image is the tested one, on whatever host is chosen."""
    copy = Checkout(simulated, tmp_path_factory.mktemp("hosts"), ssh_key, base_image)
    copy.env |= {"TORCHTAP_IMAGE": NAME, "VARIANT": VARIANT, "MODE": "gpu"}
    yield copy
    simulated.simulate("h200-good")


@pytest.mark.parametrize("name", [name for name, case in HOSTS.items() if case.script is not None])
def test_scripts_selftest_ends_with_the_verdicts_exit_code(
    checkout: Checkout, simulated: Engine, name: str
) -> None:
    simulated.simulate(name)
    command = [str(checkout.folder / "scripts/selftest"), "--json"]
    done = subprocess.run(
        command,
        cwd=checkout.folder,
        env=checkout.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == HOSTS[name].script, done.stdout + done.stderr
    report = json.loads(done.stdout)
    if name == "t4-old-driver-550":
        assert "unsatisfied condition: cuda>=" in done.stderr
        assert report["first_cause"]["id"] == "device.nodes"
    else:
        assert report["first_cause"]["cause_id"] == HOSTS[name].cause


# cuInit's code, the variables beside it, and the cause that it must have.
CODES = [
    (3, {}, "cuda_incomplete_driver"),
    (34, {}, "libcuda_stub"),
    (46, {}, "gpu_busy"),
    (100, {}, "no_cuda_device"),
    (100, {"CUDA_VISIBLE_DEVICES": "7"}, "cuda_visible_devices"),
    (101, {"CUDA_VISIBLE_DEVICES": "0,7"}, "invalid_device_ordinal"),
    (304, {}, "os_call_failed"),
    (802, {}, "not_ready_without_fabric"),  # nvidia-smi says there that the fabric is up
    (803, {}, "driver_library_mismatch"),
    (804, {}, "compat_not_supported"),
    (999, {}, "cuda_unknown_error"),
    (777, {}, "cuda_error"),
]


@pytest.mark.parametrize(("code", "variables", "cause"), CODES, ids=str)
def test_each_code_of_cuinit_has_its_cause(
    started: dict[str, Container], code: int, variables: dict[str, str], cause: str
) -> None:
    container = started["h200-good"]
    if code == 304 and "Seccomp:\t0" in container.exec("cat", "/proc/self/status").stdout:
        cause = "driver_call_failed"  # an engine without a security profile
    variables = {"TORCHTAP_SIMULATED_CUINIT": str(code), **variables}
    words = [f"{name}={value}" for name, value in variables.items()]
    done = container.exec("env", *words, "selftest", "--only", "cuda.init", "--json", check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, report["first_cause"]) == (1, {"id": "cuda.init", "cause_id": cause})
    (result,) = (each for each in report["results"] if each["id"] == "cuda.init")
    assert str(code) in result["seen"]
    assert result["remedy"]


def test_c17_a_gpu_that_is_lost_after_the_start(simulated: Engine, run: Run, tmp_path: Path) -> None:
    """NVML Unknown Error after a daemon-reload (nvidia-docker#1730): health and a new self-test name it alike."""
    good = json.loads((Path(__file__).parents[1] / "engine/simulate/hosts/h200-good/host.json").read_text())
    simulated.add_host("h200-without-smi", {**good, "missing": ["nvidia-smi"]})
    host = Host(tmp_path)
    host.is_now("h200-good")
    often = ("--health-interval=1s", "--health-retries=1")
    container = run("ssh", key=True, options=(*on_host("h200-without-smi"), *host.options, *often, *ROOM))
    assert report_of(container)["verdict"] == "warn"
    assert wait_said(container, r"gpu: 1 answers$")
    host.is_now("nvml-unknown-error")
    ask_again(container)
    assert not wait_said(
        container, r"gpu: lost while running: the container lost its right .*Recreate the container"
    )
    wait_until(
        lambda: container.state(".State.Health.Status") == "unhealthy", 60, lambda: health(container)[1]
    )
    done = container.exec("selftest", "--json", check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["first_cause"]["cause_id"] == "devices_revoked"
    assert "self-test WARN" in login(container), "the login tells of the start, and when that was"
