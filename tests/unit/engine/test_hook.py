"""The hook's decisions and files. What it does inside a container is tested with an engine (tests/image)."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from tests.engine.simulate import hook, stubs, toolkit
from tests.engine.simulate.hosts import load


@pytest.fixture
def state(tmp_path: Path) -> Path:
    stubs.build(tmp_path / "state" / "lib")
    return tmp_path / "state"


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call the hook as dockerd does, for a container with this environment. Returns its exit status."""
    root = tmp_path / "root"
    root.mkdir()

    def call(stage: str, state: Path, *env: str) -> int:
        config = {"root": {"path": str(root)}, "process": {"env": list(env)}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        described = json.dumps({"pid": os.getpid(), "bundle": str(tmp_path)})
        monkeypatch.setattr("sys.stdin", io.StringIO(described))
        monkeypatch.setattr(hook, "enter", lambda pid: pytest.fail("must not touch the container"))
        return hook.main([stage], state)

    return call


@pytest.mark.parametrize("stage", ["poststart", "poststop"])
def test_other_stages_do_nothing(container, state: Path, stage: str) -> None:
    assert container(stage, state, "NVIDIA_VISIBLE_DEVICES=all") == 0


@pytest.mark.parametrize("env", [(), ("NVIDIA_VISIBLE_DEVICES=",), ("NVIDIA_VISIBLE_DEVICES=void",)])
def test_a_container_that_asks_for_no_gpu_is_left_alone(container, state: Path, env: tuple[str, ...]) -> None:
    assert container("prestart", state, *env) == 0
    assert not (state / "rendered").exists()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            "NVIDIA_REQUIRE_CUDA=cuda>=99.0",
            "requirement error: unsatisfied condition: cuda>=99.0, please update",
        ),
        ("NVIDIA_VISIBLE_DEVICES=7", "device error: 7: unknown device"),
        ("TORCHTAP_SIMULATED_HOST=hook-fails", "initialization error: nvml error: driver not loaded"),
        ("TORCHTAP_SIMULATED_HOST=nosuch", "no simulated host 'nosuch': one of "),
    ],
)
def test_a_container_that_cannot_have_the_gpu_is_refused(
    container, state: Path, capsys: pytest.CaptureFixture[str], env: str, says: str
) -> None:
    assert container("prestart", state, "NVIDIA_VISIBLE_DEVICES=all", env) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "Auto-detected mode as 'legacy'"
    assert second.startswith(f"nvidia-container-cli: {says}")


def test_the_last_value_of_a_variable_counts(container, state: Path) -> None:
    """dockerd appends NVIDIA_VISIBLE_DEVICES to the image's own."""
    assert container("prestart", state, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void") == 0


def test_the_chosen_host_is_the_current_one(state: Path) -> None:
    assert hook.current_host(state) == "h200-good"
    (state / "current").write_text("h100-mig\n")
    assert hook.current_host(state) == "h100-mig"


def test_stored_files_are_executable_and_shared_by_equal_containers(state: Path) -> None:
    asked = toolkit.request({"NVIDIA_VISIBLE_DEVICES": "all"})
    made = [
        hook.store(
            toolkit.injection(toolkit.visible_gpus(load(name), asked), asked, state / "lib", "/usr/lib"),
            state,
        )
        for name in ("h200-good", "h200-good", "slow")
    ]
    assert made[0] == made[1] != made[2]
    assert os.access(made[0] / "usr/bin/nvidia-smi", os.X_OK)
    rest = json.loads((made[0] / "injection.json").read_text())
    assert rest["links"]["/usr/lib/libcuda.so.1"] == "libcuda.so.590.48.01"


def test_links_of_an_earlier_start_are_replaced(tmp_path: Path) -> None:
    """A container that is started again has the links of its first start in its own layer."""
    folder = tmp_path / "usr/lib"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.550")
    hook.finish(tmp_path, {"links": {"/usr/lib/libcuda.so.1": "libcuda.so.590"}, "module_version": "590"})
    assert (folder / "libcuda.so.1").readlink() == Path("libcuda.so.590")


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (("usr/lib/{machine}-linux-gnu", "usr/lib64"), "/usr/lib/{machine}-linux-gnu"),
        (("usr/lib64",), "/usr/lib64"),
        ((), "/usr/lib"),
    ],
)
def test_libraries_go_where_the_containers_loader_looks(
    tmp_path: Path, there: tuple[str, ...], chosen: str
) -> None:
    machine = os.uname().machine
    for folder in there:
        (tmp_path / folder.format(machine=machine)).mkdir(parents=True)
    assert hook.library_folder(tmp_path) == chosen.format(machine=machine)
