"""The CDI specification of a simulated host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.simulate import cdi, stubs
from tests.engine.simulate.hosts import load

SEEN_AS = Path("/seen/by/the/engine")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    stubs.build(tmp_path / "lib")
    return tmp_path


def test_devices_are_all_and_each_by_index_and_uuid(state: Path) -> None:
    made = cdi.specification(load("h100x8"), state, SEEN_AS)
    names = [device["name"] for device in made["devices"]]
    assert names[0] == "all"
    assert {"0", "7", "GPU-11111111-2222-3333-4444-555555555507"} <= set(names)
    assert len(names) == len(set(names)) == 17
    assert made["kind"] == "nvidia.com/gpu"


def test_one_device_brings_one_node_and_all_bring_all(state: Path) -> None:
    made = {device["name"]: device for device in cdi.specification(load("h100x8"), state, SEEN_AS)["devices"]}
    paths = {
        name: {node["path"] for node in device["containerEdits"]["deviceNodes"]}
        for name, device in made.items()
    }
    assert {f"/dev/nvidia{n}" for n in range(8)} <= paths["all"]
    assert "/dev/nvidia3" in paths["3"]
    assert "/dev/nvidia0" not in paths["3"]


def test_what_it_mounts_is_there(state: Path) -> None:
    edits = cdi.specification(load("h200-good"), state, SEEN_AS)["devices"][0]["containerEdits"]
    mounted = {mount["containerPath"]: Path(mount["hostPath"]) for mount in edits["mounts"]}
    assert "/usr/bin/nvidia-smi" in mounted
    assert all((state / path.relative_to(SEEN_AS)).is_file() for path in mounted.values())
    (stage,) = edits["hooks"]
    assert (state / Path(stage["args"][-1]).relative_to(SEEN_AS) / "injection.json").is_file()


def test_a_registered_hook_is_told_to_keep_off(state: Path) -> None:
    made = cdi.specification(load("h200-good"), state, SEEN_AS)
    assert made["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


@pytest.mark.parametrize(("name", "permissions"), [("h200-good", "rw"), ("nvml-unknown-error", "m")])
def test_lost_devices_cannot_be_opened(state: Path, name: str, permissions: str) -> None:
    edits = cdi.specification(load(name), state, SEEN_AS)["devices"][0]["containerEdits"]
    assert {node["permissions"] for node in edits["deviceNodes"]} == {permissions}


def test_writing_leaves_one_file_for_the_engine_to_read(state: Path) -> None:
    for name in ("h200-good", "h100-mig"):
        cdi.write(load(name), state)
    (file,) = (state / "cdi").iterdir()
    assert json.loads(file.read_text()) == cdi.specification(
        load("h100-mig"), state, Path("/torchtap/simulate")
    )
