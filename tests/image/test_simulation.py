"""The simulated GPU inside containers: by NVIDIA's hook, by CDI, and on a host that can hand out none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import base
from tests.engine.engine import Engine, EngineError

# The stand-in base asks for more than driver 580 offers; most tests here are not about that.
ANY_DRIVER = ("-e", "NVIDIA_DISABLE_REQUIRE=1")
LOOK = """
nvidia-smi -L
for node in /dev/nvidia*; do : < $node && echo "opened $node"; done
ldconfig -p | grep -oE '^\\s+lib(cuda|nvidia-ml)[.]so[.]1' | sort
cat /proc/driver/nvidia/version
"""
SEEN = """\
GPU 0: NVIDIA H200 (UUID: GPU-11111111-2222-3333-4444-555555555500)
opened /dev/nvidia-uvm
opened /dev/nvidia-uvm-tools
opened /dev/nvidia0
opened /dev/nvidiactl
\tlibcuda.so.1
\tlibnvidia-ml.so.1
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build  (simulated)
"""


@pytest.fixture(autouse=True)
def _default_host(simulated: Engine) -> Iterator[None]:
    simulated.simulate("h200-good")
    yield
    simulated.simulate("h200-good")


@pytest.fixture(scope="module")
def cuda_base(simulated: Engine) -> str:
    return base.ensure_base(simulated)


def in_container(engine: Engine, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return engine.docker("run", "--rm", *arguments, check=check, timeout=60)


def test_a_container_with_gpus_finds_tool_nodes_libraries_and_module(
    simulated: Engine, cuda_base: str
) -> None:
    assert in_container(simulated, "--gpus=all", *ANY_DRIVER, cuda_base, "sh", "-c", LOOK).stdout == SEEN


def test_a_container_without_gpus_finds_nothing(simulated: Engine, cuda_base: str) -> None:
    done = in_container(simulated, cuda_base, "sh", "-c", LOOK, check=False)
    assert done.stdout == ""
    assert "nvidia-smi: not found" in done.stderr


@pytest.mark.parametrize("options", [("--read-only",), ("--user=12345:54321",), ("--cap-drop=ALL",)], ids=str)
def test_restrictions_of_the_container_do_not_keep_the_gpu_out(
    simulated: Engine, cuda_base: str, options: tuple[str, ...]
) -> None:
    done = in_container(simulated, "--gpus=all", *options, *ANY_DRIVER, cuda_base, "sh", "-c", LOOK)
    assert done.stdout == SEEN


def test_smi_runs_in_a_container_of_busybox_alone(simulated: Engine) -> None:
    name = base.ensure_base(simulated, base.NO_PYTHON)
    asked = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    assert in_container(simulated, "--gpus=all", name, *asked).stdout == "NVIDIA H200, 143771 MiB\n"
    hostile = (
        "-e",
        "TORCHTAP_SIMULATED_HOST=garbage",
        name,
        "sh",
        "-c",
        "nvidia-smi | od -An -tx1 | head -1",
    )
    assert in_container(simulated, "--gpus=all", *hostile).stdout.split()[:4] == ["00", "01", "ff", "fe"]


def test_chosen_devices_are_the_only_ones_there(simulated: Engine, cuda_base: str) -> None:
    simulated.simulate("h100x8")
    script = "nvidia-smi -L; ls /dev/nvidia[0-9]*"
    done = in_container(simulated, "--gpus=device=5", *ANY_DRIVER, cuda_base, "sh", "-c", script)
    assert done.stdout.splitlines() == [
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555505)",
        "/dev/nvidia5",
    ]


def test_a_container_can_choose_its_own_host(simulated: Engine, cuda_base: str) -> None:
    simulated.simulate("h100x8")
    chosen = ("-e", "TORCHTAP_SIMULATED_HOST=v100-580")
    done = in_container(simulated, "--gpus=all", *chosen, *ANY_DRIVER, cuda_base, "nvidia-smi", "-L")
    assert done.stdout.count("Tesla V100") == 2


def test_a_test_can_make_a_host(simulated: Engine, cuda_base: str) -> None:
    hot = {"driver": "590.48.01", "cuda": "13.1", "gpus": [{"name": "Hot", "temperature.gpu": "99"}]}
    simulated.add_host("hot", hot)
    simulated.simulate("hot")
    asked = ("nvidia-smi", "--query-gpu=name,temperature.gpu", "--format=csv,noheader")
    assert in_container(simulated, "--gpus=all", *ANY_DRIVER, cuda_base, *asked).stdout == "Hot, 99\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-e", "TORCHTAP_SIMULATED_HOST=v100-580"), "unsatisfied condition: cuda>=13.0.2"),
        (("-e", "TORCHTAP_SIMULATED_HOST=hook-fails"), "nvml error: driver not loaded"),
        (("--gpus=device=7",), "device error: 7: unknown device"),
    ],
    ids=["driver too old", "driver not loaded", "no such device"],
)
def test_a_container_that_the_toolkit_refuses_does_not_start(
    simulated: Engine, cuda_base: str, options: tuple[str, ...], says: str
) -> None:
    gpus = () if options[0].startswith("--gpus") else ("--gpus=all",)
    done = in_container(simulated, *gpus, *options, cuda_base, "true", check=False)
    assert done.returncode != 0
    assert f"nvidia-container-cli: {'requirement error: ' * ('cuda' in says)}" in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("host", "options", "says"),
    [
        ("nvml-unknown-error", (), "Operation not permitted"),
        ("no-permission", ("--user=1000",), "Permission denied"),
    ],
)
def test_nodes_that_cannot_be_opened(
    simulated: Engine, cuda_base: str, host: str, options: tuple[str, ...], says: str
) -> None:
    simulated.simulate(host)
    arguments = ("--gpus=all", *options, *ANY_DRIVER, cuda_base, "sh", "-c", ": < /dev/nvidia0")
    done = in_container(simulated, *arguments, check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_a_hanging_smi_ends_with_the_container(simulated: Engine, cuda_base: str) -> None:
    simulated.simulate("hang")
    done = in_container(
        simulated, "--gpus=all", cuda_base, "timeout", "--signal=KILL", "0.5", "nvidia-smi", check=False
    )
    assert done.returncode == 137
    assert done.stdout == ""


def test_a_restarted_container_sees_the_host_of_now(simulated: Engine, cuda_base: str) -> None:
    command = ("sleep", "1000")
    started = simulated.docker("run", "-d", "--init", "--gpus=all", *ANY_DRIVER, cuda_base, *command)
    container = started.stdout.strip()
    try:
        simulated.simulate("rtx2080s-610")
        simulated.docker("restart", "-t", "0", container)
        said = simulated.docker(
            "exec", container, "sh", "-c", "nvidia-smi -L; readlink /usr/lib/*/libcuda.so.1"
        )
        assert "RTX 2080 SUPER" in said.stdout
        assert "libcuda.so.610.57.04" in said.stdout
    finally:
        simulated.docker("rm", "-f", container)


def test_compose_reserves_the_gpu(simulated: Engine, cuda_base: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(f"""
name: torchtap-test-simulation
services:
  look:
    image: {cuda_base}
    command: nvidia-smi -L
    environment: {{NVIDIA_DISABLE_REQUIRE: "1"}}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]}}}}}}
""")
    try:
        done = simulated.docker("compose", "run", "--rm", "look", cwd=tmp_path)
        assert done.stdout.startswith("GPU 0: NVIDIA H200")
    finally:
        simulated.docker("compose", "down", "--volumes", cwd=tmp_path)


@pytest.fixture(scope="module")
def with_cdi(simulated: Engine) -> Iterator[Engine]:
    simulated.restart(gpu="cdi")
    yield simulated
    simulated.restart(gpu="hook")


def test_a_cdi_device_brings_the_same(with_cdi: Engine, cuda_base: str) -> None:
    assert in_container(with_cdi, "--device=nvidia.com/gpu=all", cuda_base, "sh", "-c", LOOK).stdout == SEEN


def test_cdi_follows_the_chosen_host(with_cdi: Engine, cuda_base: str) -> None:
    with_cdi.simulate("h100x8")
    done = in_container(with_cdi, "--device=nvidia.com/gpu=3", cuda_base, "nvidia-smi", "-L")
    assert done.stdout == "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555503)\n"


def test_cdi_nodes_of_a_lost_device_cannot_be_opened(with_cdi: Engine, cuda_base: str) -> None:
    with_cdi.simulate("nvml-unknown-error")
    device = "--device=nvidia.com/gpu=all"
    done = in_container(with_cdi, device, cuda_base, "sh", "-c", ": < /dev/nvidia0", check=False)
    assert "Operation not permitted" in done.stderr


def test_an_engine_with_cdi_alone_knows_no_gpus_option(with_cdi: Engine, cuda_base: str) -> None:
    with pytest.raises(EngineError, match="could not select device driver"):
        in_container(with_cdi, "--gpus=all", cuda_base, "true")


def test_an_engine_without_either_has_no_gpu(simulated: Engine, cuda_base: str) -> None:
    simulated.restart(gpu="none")
    try:
        with pytest.raises(EngineError, match="could not select device driver"):
            in_container(simulated, "--gpus=all", cuda_base, "true")
        with pytest.raises(EngineError, match=r"unresolvable CDI devices nvidia\.com/gpu=all"):
            in_container(simulated, "--device=nvidia.com/gpu=all", cuda_base, "true")
        assert in_container(simulated, cuda_base, "echo", "fine").stdout == "fine\n"
    finally:
        simulated.restart(gpu="hook")
