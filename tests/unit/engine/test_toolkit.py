"""What goes into a container, and when the toolkit refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.simulate import toolkit
from tests.engine.simulate.hosts import Host, load, parse
from tests.engine.simulate.toolkit import Request, ToolkitError

FOLDER = "/usr/lib/x86_64-linux-gnu"
EVERYTHING = toolkit.request({"NVIDIA_VISIBLE_DEVICES": "all"})


def injected(host: Host, libraries: Path, **env: str) -> toolkit.Injection:
    asked = toolkit.request({"NVIDIA_VISIBLE_DEVICES": "all", **env})
    return toolkit.injection(toolkit.visible_gpus(host, asked), asked, libraries, FOLDER)


@pytest.mark.parametrize("value", [None, "", "void"])
def test_without_visible_devices_nothing_is_asked_for(value: str | None) -> None:
    env = {} if value is None else {"NVIDIA_VISIBLE_DEVICES": value}
    assert toolkit.request(env).devices is None


def test_none_asks_for_libraries_without_a_device() -> None:
    asked = toolkit.request({"NVIDIA_VISIBLE_DEVICES": "none"})
    assert asked.devices == ()
    assert toolkit.visible_gpus(load("h100x8"), asked).gpus == ()


@pytest.mark.parametrize(
    ("value", "capabilities"),
    [
        (None, {"compute", "utility"}),
        ("", {"compute", "utility"}),
        ("all", {"compute", "utility"}),
        ("utility", {"utility"}),
        ("compute,video", {"compute", "video"}),
    ],
)
def test_capabilities(value: str | None, capabilities: set[str]) -> None:
    env = {} if value is None else {"NVIDIA_DRIVER_CAPABILITIES": value}
    assert toolkit.request(env).capabilities == capabilities


def test_a_good_host_brings_tool_libraries_and_nodes(libraries: Path) -> None:
    found = injected(load("h200-good"), libraries)
    assert set(found.files) == {
        "/usr/bin/nvidia-smi",
        f"{FOLDER}/libnvidia-ml.so.590.48.01",
        f"{FOLDER}/libcuda.so.590.48.01",
    }
    assert found.links[f"{FOLDER}/libcuda.so.1"] == "libcuda.so.590.48.01"
    assert set(found.nodes) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0"}
    assert all((node.major, node.minor, node.mode) == (1, 3, 0o666) for node in found.nodes.values())


def test_without_compute_there_is_no_libcuda_and_smi_says_so(libraries: Path) -> None:
    found = injected(load("h200-good"), libraries, NVIDIA_DRIVER_CAPABILITIES="utility")
    assert not any("libcuda" in path for path in (*found.files, *found.links))
    assert b"CUDA Version\\0072 N/A" in found.files["/usr/bin/nvidia-smi"] or (
        b"CUDA Version: N/A" in found.files["/usr/bin/nvidia-smi"]
    )


def test_without_utility_there_is_no_smi(libraries: Path) -> None:
    found = injected(load("h200-good"), libraries, NVIDIA_DRIVER_CAPABILITIES="compute")
    assert set(found.files) == {f"{FOLDER}/libcuda.so.590.48.01"}


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("nvidia-smi", "/usr/bin/nvidia-smi"),
        ("libcuda", f"{FOLDER}/libcuda.so.590.48.01"),
        ("libnvidia-ml", f"{FOLDER}/libnvidia-ml.so.590.48.01"),
        ("nvidia-uvm", "/dev/nvidia-uvm"),
        ("nvidiactl", "/dev/nvidiactl"),
    ],
)
def test_a_host_can_lack_each_piece(libraries: Path, name: str, gone: str) -> None:
    found = injected(parse({"driver": "590.48.01", "cuda": "13.1", "missing": [name]}, "made"), libraries)
    whole = injected(parse({"driver": "590.48.01", "cuda": "13.1"}, "made"), libraries)
    assert {*whole.files, *whole.nodes} - {*found.files, *found.nodes} == {gone}


def test_lost_devices_have_numbers_that_no_rule_allows(libraries: Path) -> None:
    nodes = injected(load("nvml-unknown-error"), libraries).nodes
    assert (nodes["/dev/nvidia0"].major, nodes["/dev/nvidiactl"].minor) == (195, 255)


def test_unreadable_devices_are_for_their_owner_only(libraries: Path) -> None:
    assert injected(load("no-permission"), libraries).nodes["/dev/nvidia0"].mode == 0o600


@pytest.mark.parametrize(
    ("asked", "minors"),
    [
        (("all",), list("01234567")),
        (("0",), ["0"]),
        (("3", "1"), ["3", "1"]),
        (("3", "3"), ["3"]),
        (("GPU-11111111-2222-3333-4444-555555555502",), ["2"]),
    ],
)
def test_chosen_gpus_are_counted_anew_and_keep_their_nodes(
    libraries: Path, asked: tuple[str, ...], minors: list[str]
) -> None:
    seen = toolkit.visible_gpus(load("h100x8"), Request(devices=asked, capabilities=frozenset({"utility"})))
    assert [gpu["index"] for gpu in seen.gpus] == [str(place) for place, _ in enumerate(minors)]
    assert [gpu["minor"] for gpu in seen.gpus] == minors
    nodes = toolkit.injection(seen, EVERYTHING, libraries, FOLDER).nodes
    assert {f"/dev/nvidia{minor}" for minor in minors} <= set(nodes)


def test_a_mig_device_brings_its_gpu() -> None:
    asked = Request(devices=("MIG-00000001-0000-0000-0000-000000000001",), capabilities=frozenset())
    assert len(toolkit.visible_gpus(load("h100-mig"), asked).gpus) == 1


@pytest.mark.parametrize("name", ["8", "GPU-00000000", "some"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ToolkitError, match=f"device error: {name}: unknown device"):
        toolkit.visible_gpus(load("h100x8"), Request(devices=(name,), capabilities=frozenset()))


@pytest.mark.parametrize(
    ("requirement", "driver", "cuda", "met"),
    [
        ("cuda>=13.0", "590.48.01", "13.1", True),
        ("cuda>=13.0", "580.65.06", "13.0", True),
        ("cuda>=13.0.2", "580.65.06", "13.0", False),
        ("cuda>=13.0", "550.163.01", "12.4", False),
        ("cuda>=12.0", "550.163.01", "12.4", True),
        ("cuda>=13.0 brand=tesla,driver>=550,driver<551", "550.163.01", "12.4", True),
        ("cuda>=13.0 brand=tesla,driver>=535,driver<536", "550.163.01", "12.4", False),
        ("cuda>=13.0 brand=geforce,driver>=550", "550.163.01", "12.4", False),
        ("", "550.163.01", "12.4", True),
    ],
)
def test_requirements_are_alternatives_of_conditions(
    requirement: str, driver: str, cuda: str, met: bool
) -> None:
    env = {"NVIDIA_REQUIRE_CUDA": requirement}
    host = Host(name="made", driver=driver, cuda=cuda)
    if met:
        toolkit.check_requirements(env, host)
    else:
        with pytest.raises(
            ToolkitError, match=r"unsatisfied condition: cuda>=13[.\d]*, please update your driver"
        ):
            toolkit.check_requirements(env, host)
        toolkit.check_requirements({**env, "NVIDIA_DISABLE_REQUIRE": "true"}, host)


def test_a_requirement_that_nobody_understands_is_refused() -> None:
    with pytest.raises(ToolkitError, match="invalid expression: cuda~13"):
        toolkit.check_requirements({"NVIDIA_REQUIRE_X": "cuda~13"}, load("h200-good"))
