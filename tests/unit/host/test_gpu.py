"""The host's GPUs, from what nvidia-smi says or fails to say, and the variant that fits them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from host.gpu import Gpu, HostGpus, device_nodes, look, variant_for
from tests.unit.host.checkout import Checkout

H200 = "0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA H200, 590.48.01, 9.0\n"
INVALID = 'Field "compute_cap" is not a valid field to query.\n'


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    return folder


@pytest.fixture
def fakes_only(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("PATH", checkout.env["PATH"])
    return checkout


def test_a_healthy_host(fakes_only: Checkout, dev: Path) -> None:
    fakes_only.fake("nvidia-smi").answer(
        {"when": "compute_cap", "out": H200 + H200.replace("0, GPU-1", "1, GPU-2")}
    )
    host = look(dev)
    assert host.present
    assert host.driver == (590, 48, 1)
    assert [(gpu.index, gpu.capability) for gpu in host.gpus] == [("0", (9, 0)), ("1", (9, 0))]
    assert str(host) == "2 x NVIDIA H200 (9.0), driver 590.48.1"


def test_an_old_nvidia_smi_that_does_not_know_the_capability_is_asked_without(
    fakes_only: Checkout, dev: Path
) -> None:
    fakes_only.fake("nvidia-smi").answer(
        {"when": "compute_cap", "out": INVALID, "rc": 2},
        {"when": "driver_version", "out": "0, GPU-aa, Tesla V100-SXM2-16GB, 470.82.01\n"},
    )
    host = look(dev)
    assert host.driver == (470, 82, 1)
    assert host.gpus[0].capability is None
    assert host.trouble is None


def test_nvidia_smi_that_hangs_is_left_after_its_time(fakes_only: Checkout, dev: Path) -> None:
    (dev / "nvidia0").touch()
    fakes_only.fake("nvidia-smi").answer({"when": "", "sleep_s": 60})
    began = time.monotonic()
    host = look(dev, timeout_s=0.5)
    assert time.monotonic() - began < 5
    assert host.present
    assert host.trouble == "nvidia-smi gave no answer in 0.5 s"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"rc": 6, "out": "No devices were found\n"}, "No devices were found"),
        ({"rc": 0, "out": "!!\x00 garbage, , ,\n"}, "nvidia-smi names no GPU"),
        ({"rc": 0, "out": ""}, "nvidia-smi names no GPU"),
        (
            {
                "rc": 18,
                "out": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.1\n",
            },
            "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
        ),
    ],
    ids=["no devices", "garbage", "nothing", "mismatch"],
)
def test_a_sick_answer_is_told_and_never_taken_for_a_gpu(
    fakes_only: Checkout, dev: Path, row: dict[str, object], words: str
) -> None:
    fakes_only.fake("nvidia-smi").answer({"when": "", **row})
    host = look(dev)
    assert host.gpus == ()
    assert host.driver is None
    assert words in str(host.trouble)
    assert not host.present


def test_device_nodes_without_nvidia_smi(fakes_only: Checkout, dev: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (dev / name).touch()
    host = look(dev)
    assert device_nodes(dev) == ["nvidia0", "nvidia1"]
    assert host.present
    assert "nvidia-smi is not installed" in str(host)


def test_a_host_without_any_of_it(fakes_only: Checkout, dev: Path) -> None:
    assert look(dev) == HostGpus()
    assert str(look(dev)) == "no NVIDIA GPU on this host"


def test_an_unreadable_cell_is_unknown_not_a_number(fakes_only: Checkout, dev: Path) -> None:
    fakes_only.fake("nvidia-smi").answer(
        {"when": "", "out": "0, GPU-aa, Graphics, 580.65.06, [N/A]\n1, [N/A], ERR!\n"}
    )
    host = look(dev)
    assert [gpu.capability for gpu in host.gpus] == [None]
    assert host.driver == (580, 65, 6)


def of(driver: tuple[int, ...], *capabilities: tuple[int, int] | None) -> HostGpus:
    return HostGpus(
        True, driver, tuple(Gpu(str(n), f"GPU-{n}", "x", each) for n, each in enumerate(capabilities))
    )


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (of((590, 48, 1), (9, 0)), "cu130"),
        (of((570, 86), (8, 0)), "cu128"),
        (of((580, 65, 6), (7, 0)), "cu128"),
        (of((580, 65, 6), (6, 1)), "cu126"),
        (of((590, 48), (9, 0), (7, 0)), "cu128"),  # one of each: the older image serves both
        (of((590, 48), (7, 0), (6, 1)), "cu126"),
        (of((590, 48), (12, 0), (12, 0), (6, 1)), "cu130"),  # none serves both: the one for most of them
        (of((590, 48), None), "cu130"),
        (of((535, 54), None), "cu128"),
    ],
)
def test_the_variant_follows_driver_and_gpus(host: HostGpus, name: str) -> None:
    found = variant_for(host)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "host", [of((470, 82), (7, 5)), of((560, 35), (12, 0)), HostGpus(), HostGpus(present=True)]
)
def test_no_variant_where_none_fits_or_nothing_is_known(host: HostGpus) -> None:
    assert variant_for(host) is None
