"""A load of twenty seconds on a real GPU. Skipped where there is none; figures are printed with -s."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from torchtap.selftest.burn.records import Burn
from torchtap.selftest.burn.running import burn
from torchtap.selftest.burn.sampler import POWER, TEMPERATURE
from torchtap.selftest.limits import BURN_MEMORY_SHARE
from torchtap.selftest.query import find_smi
from torchtap.selftest.status import Device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not list(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists(), reason="gpu"
    ),
]
SECONDS = 20.0


@pytest.fixture(scope="module")
def burned() -> Burn:
    """One load for all tests."""
    console = Console(highlight=False)
    found = burn(Device.GPU, SECONDS, smi=find_smi(), smi_timeout_s=20, on_step=console.print)
    console.print(found.describe(), soft_wrap=True)
    return found


def test_every_value_is_right_on_every_gpu(burned: Burn):
    """The expected product is the exact one, rounded once: so it must come out of tensor cores too."""
    assert burned.step.state.value == "done", burned.step.error or burned.child.answer.errors
    for gpu in burned.step.records("gpus"):
        assert gpu.whole("products") > 0
        assert gpu.whole("wrong") == 0


def test_nearly_all_memory_is_filled(burned: Burn):
    """Of what was free, so this is a lower bound for a GPU that nobody else uses."""
    sizes = {
        gpu.whole("index"): gpu.whole("memory_mib") for gpu in burned.child.done("torch.cuda").records("gpus")
    }
    for gpu in burned.step.records("gpus"):
        share = gpu.whole("memory_mib") / sizes[gpu.whole("index")]
        Console().print(f"GPU {gpu.whole('index')}: {share:.0%} of its memory filled")
        assert share > 0.8 * BURN_MEMORY_SHARE


def test_the_gpus_are_busy_and_watched(burned: Burn):
    """A reading a second, and a GPU that works: its power rises well above that of an idle one."""
    assert burned.watch is not None
    assert burned.watch.unread == 0
    assert burned.watch.asked >= SECONDS / 2
    for gpu in burned.watch.gpus:
        busy = gpu.readings["utilization.gpu"]
        heat, power = gpu.readings.get(TEMPERATURE), gpu.readings.get(POWER)
        Console().print(f"GPU {gpu.index}: {busy.mean:.0f} % busy", heat, power)
        assert busy.mean > 90


def test_the_load_lasts_as_long_as_it_was_asked_for(burned: Burn):
    """And ends: no queue of minutes is left when the time is over."""
    elapsed = burned.step.value["elapsed"]
    assert isinstance(elapsed, float)
    assert SECONDS <= elapsed < SECONDS + 5
