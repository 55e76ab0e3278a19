"""GPU hosts, simulated at the seam where NVIDIA's container toolkit acts. What only a real GPU shows is in tests/gpu.

The engine is restarted for CDI and for no GPU at all, so these come last in the file, in that order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.engine import Engine, EngineError

from .conftest import NO_KEY, OFF, Container, Run, on_host


def selftest(
    engine: Engine, image: str, *options: str, words: tuple[str, ...] = ("selftest", "--json")
) -> tuple[int, Any]:
    done = engine.docker("run", "--rm", *options, image, *words, check=False)
    return done.returncode, json.loads(done.stdout) if "--json" in words else done.stdout


def test_nvidia_smi_is_seen_over_ssh_and_in_a_kernel(simulated: Engine, run: Run) -> None:
    container = run(key=True, env=OFF, options=on_host("h200-good")).wait_healthy()
    assert "NVIDIA H200" in container.ssh("nvidia-smi -L").stdout
    asked = "import subprocess; print(subprocess.check_output(['nvidia-smi', '-L'], text=True))"
    assert "NVIDIA H200" in container.kernel(asked)


def test_a_simulated_gpu_is_said_to_be_one(simulated: Engine, image: str) -> None:
    """No verdict of a simulation may read like one of a GPU: it warns, and what needs a real GPU is skipped."""
    code, report = selftest(simulated, image, *on_host("h200-good"))
    assert (code, report["verdict"]) == (0, "warn")
    found = {result["id"]: result for result in report["results"]}
    assert found["gpu.simulated"]["status"] == "warn"
    assert found["driver.smi"]["status"] == "pass"
    skipped = [name for name, result in found.items() if result["status"] == "skip"]
    assert {"gpu.matmul", "torch.arch"} <= set(skipped)


@pytest.mark.parametrize(
    ("host", "status", "cause"),
    [
        ("garbage", "unknown", "smi_unreadable"),
        ("hang", "fail", "smi_hung"),
    ],
)
def test_a_bad_host_is_named_with_its_cause(
    simulated: Engine, image: str, host: str, status: str, cause: str
) -> None:
    """By `docker run IMAGE selftest` alone; more hosts are in test_hosts.py."""
    code, report = selftest(simulated, image, "-e", "TORCHTAP_SMI_TIMEOUT=3", *on_host(host))
    assert (code, report["verdict"]) == (1, status)
    causes = [result["cause_id"] for result in report["results"] if result["status"] == status]
    assert cause in causes, report
    assert all(result["remedy"] for result in report["results"] if result["status"] in ("fail", "unknown"))


def test_nvidia_smi_missing_is_no_pass(simulated: Engine, image: str) -> None:
    """Without the capability `utility` the toolkit brings no nvidia-smi; the self-test says so and is not content."""
    options = (*on_host("h200-good"), "-e", "NVIDIA_DRIVER_CAPABILITIES=compute")
    _, report = selftest(simulated, image, *options)
    smi = next(result for result in report["results"] if result["id"] == "driver.smi")
    assert smi["status"] in ("warn", "fail", "unknown")
    assert "utility" in smi["cause"] + smi["remedy"]


def test_a_driver_older_than_the_floor_is_refused_by_the_toolkit(simulated: Engine, image: str) -> None:
    """cu130 asks for cuda>=13.0 on purpose; a 550 driver says no before anything runs."""
    refused = simulated.docker("run", "--rm", *on_host("t4-old-driver-550"), image, "true", check=False)
    assert refused.returncode == 125
    assert "unsatisfied condition: cuda>=13.0" in refused.stderr


@pytest.mark.every_variant
def test_without_a_gpu_the_one_cause_is_named(engine: Engine, image: str) -> None:
    code, report = selftest(engine, image)
    assert (code, report["verdict"]) == (1, "fail")
    failed = [result for result in report["results"] if result["status"] == "fail"]
    assert len(failed) == 1
    assert failed[0]["cause_id"] == "no_gpu_in_container"
    assert "--gpus all" in failed[0]["remedy"] + str(failed[0])


@pytest.mark.every_variant
def test_without_a_gpu_by_design_all_is_well(engine: Engine, image: str) -> None:
    code, report = selftest(engine, image, "-e", "TORCHTAP_DEVICE=cpu")
    assert (code, report["verdict"]) == (0, "pass")
    assert all(
        "by design" in r["seen"] or r["status"] == "pass" for r in report["results"] if r["status"] != "pass"
    )


def test_selftest_at_start_comes_after_the_services_and_is_kept(run: Run) -> None:
    """Policy warn: JupyterLab answers first; then the report is in the log and in the state volume."""
    container = run(env={"TORCHTAP_DEVICE": "cpu"}, allow=(NO_KEY,)).wait_healthy()
    container.wait_log(r"PASS +self-test", limit_s=90)
    assert container.logs.index("JupyterLab on port 8888") < container.logs.index("self-test")
    kept = json.loads(container.exec("cat", "/var/lib/torchtap/selftest.json").stdout)
    assert (kept["schema"], kept["verdict"]) == (1, "pass")


def test_strict_starts_nothing_on_a_bad_host(run: Run) -> None:
    container = run(
        env={"TORCHTAP_SELFTEST": "strict"}, allow=(NO_KEY, r"ERROR   selftest: failed, so the services")
    )
    assert container.wait_end(120) == 1
    assert "no_gpu_in_container" in container.logs
    assert "JupyterLab on port" not in container.logs


def test_strict_starts_the_services_after_a_pass(run: Run) -> None:
    container = run(env={"TORCHTAP_SELFTEST": "strict", "TORCHTAP_DEVICE": "cpu"}, allow=(NO_KEY,))
    container.wait_healthy(120)
    assert container.logs.index("self-test") < container.logs.index("JupyterLab on port 8888")


def test_off_runs_no_selftest(shared: Container) -> None:
    assert "self-test" not in shared.logs
    assert shared.exec("test", "-e", "/var/lib/torchtap/selftest.json", check=False).returncode == 1


@pytest.fixture
def with_cdi(simulated: Engine) -> Iterator[Engine]:
    simulated.restart("cdi")
    yield simulated
    simulated.restart("hook")


@pytest.fixture
def without_gpu(simulated: Engine) -> Iterator[Engine]:
    simulated.restart("none")
    yield simulated
    simulated.restart("hook")


def test_a_cdi_specification_brings_the_gpu_too(with_cdi: Engine, run: Run) -> None:
    container = run(key=True, env=OFF, options=("--device", "nvidia.com/gpu=all")).wait_healthy()
    assert "NVIDIA H200" in container.ssh("nvidia-smi -L").stdout


def test_a_host_without_the_toolkit_answers_as_readme_says(without_gpu: Engine, image: str) -> None:
    with pytest.raises(EngineError, match=r'could not select device driver "[a-z]*" with capabilities'):
        without_gpu.docker("run", "--rm", "--gpus", "all", image, "true")
