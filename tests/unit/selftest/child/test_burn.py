"""The load itself, on the CPU in place of a GPU: exact numbers, every wrong value, several devices, no endless wait."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch

from torchtap.selftest.child import burn
from torchtap.selftest.child.running import Reporter
from torchtap.selftest.limits import BURN_ENTRY

CPU = torch.device("cpu")
SMALL = burn.Job(128, torch.float32, 15)


class Told(Reporter):
    """Keeps what was reported."""

    def __init__(self, **options: str) -> None:
        self.said = io.StringIO()
        super().__init__(self.said, {"seconds": "0.3", **options})
        self._step = "cpu.burn"

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.getvalue().splitlines()]


def load(seconds: float = 0.3, job: burn.Job = SMALL) -> burn.Load:
    return burn.Load(CPU, "a CPU", job, seconds)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four operands, and a line of progress every moment."""
    monkeypatch.setattr(burn, "CPU_BYTES", 4 * 128 * 128 * 4)
    monkeypatch.setattr(burn, "TELL_EVERY_S", 0.05)


def test_every_value_is_right_and_counted():
    """And the numbers of a whole load add up."""
    said = burn._burn(Told(), [load()])
    (gpu,) = said["gpus"]
    assert gpu["products"] > 1
    assert (gpu["checked"], gpu["wrong"]) == (gpu["products"] * 128 * 128, 0)
    assert gpu["tflops"] > 0
    assert (gpu["index"], gpu["type"], gpu["size"]) == (-1, "float32", 128)
    assert len(gpu["course"]) > 1
    assert said["elapsed"] >= 0.3


@pytest.mark.parametrize("name", BURN_ENTRY)
def test_the_numbers_fit_the_types(name: str):
    """Every sum of 8192 terms is exact in fp32, with room to spare, and no result is infinite in its type."""
    dtype, largest = getattr(torch, name), 8192 * BURN_ENTRY[name] ** 2
    assert largest < 2**22
    assert largest < torch.finfo(dtype).max
    assert torch.tensor(float(BURN_ENTRY[name])).to(dtype).item() == BURN_ENTRY[name]


@pytest.mark.parametrize("name", BURN_ENTRY)
def test_the_expected_product_is_the_exact_one(name: str):
    """Against sums in 64-bit floating point, which hold these numbers exactly."""
    job = burn.Job(256, getattr(torch, name), BURN_ENTRY[name])
    block = burn._block(job)
    assert torch.equal(block.product, (block.left.double() @ block.right.double()).to(job.dtype))
    assert len(set(block.product.flatten().tolist())) > 100  # a constant would hide a shifted result


def test_wrong_values_of_every_product_are_counted(monkeypatch: pytest.MonkeyPatch):
    """One value in every third product; the load goes on, because how many there are is worth knowing."""
    real, number = torch.mm, count()

    def broken(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
        real(left, right, out=out)
        if next(number) % 3 == 0:
            out[3, 5] = float("nan")

    monkeypatch.setattr(torch, "mm", broken)
    (gpu,) = burn._burn(Told(), [load()])["gpus"]
    assert gpu["products"] // 3 <= gpu["wrong"] <= gpu["products"] // 3 + 1


def test_a_broken_operand_is_found(monkeypatch: pytest.MonkeyPatch):
    """A bit that does not hold its value in memory: every product with it is wrong."""
    real = burn._allocate

    def allocate(*args: object) -> torch.Tensor:
        operands = real(*args)  # type: ignore[arg-type]

        class Leaky(list[torch.Tensor]):
            def __iter__(self) -> Iterator[torch.Tensor]:
                yield from list.__iter__(self)
                self[2][0, 0] += 1

        return Leaky(operands)  # type: ignore[return-value]

    monkeypatch.setattr(burn, "_allocate", allocate)
    (gpu,) = burn._burn(Told(), [load()])["gpus"]
    assert gpu["wrong"] > 0
    assert gpu["wrong"] <= gpu["products"] // 2 * 128 + 128  # a row of every second product


def test_several_devices_are_loaded_at_once_and_told_side_by_side():
    """Progress names each of them."""
    told = Told()
    said = burn._burn(told, [load(), load(job=burn.Job(64, torch.float32, 3))])
    assert [gpu["size"] for gpu in said["gpus"]] == [128, 64]
    assert all(gpu["products"] > 0 for gpu in said["gpus"])
    progress = [line["value"] for line in told.lines if line["state"] == "progress"]
    assert len(progress) > 2
    assert all(len(value["gpus"]) == 2 for value in progress)


def test_a_device_that_fails_stops_the_load_and_keeps_the_numbers(monkeypatch: pytest.MonkeyPatch):
    """Its error is raised; the other's products are in the last line of progress."""
    real = burn._Work._multiply

    def multiply(self: burn._Work) -> None:
        if self._size == 64:
            raise RuntimeError("CUDA error: unspecified launch failure")
        real(self)

    monkeypatch.setattr(burn._Work, "_multiply", multiply)
    told, began = Told(), time.monotonic()
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        burn._burn(told, [load(60), load(60, burn.Job(64, torch.float32, 3))])
    assert time.monotonic() - began < 10
    assert told.lines[-1]["state"] == "progress"


def test_a_device_that_gives_nothing_back_is_named_as_stalled(monkeypatch: pytest.MonkeyPatch):
    """After the time that was given, and not after the whole load."""
    monkeypatch.setattr(burn._Mark, "wait", lambda _: threading.Event().wait(20))
    began = time.monotonic()
    with pytest.raises(burn.StalledError, match=r"no product came back in \d+ s"):
        burn._burn(Told(silence="0.5"), [load(60)])
    assert time.monotonic() - began < 10


def test_memory_that_is_not_free_any_more_is_done_without(monkeypatch: pytest.MonkeyPatch):
    """Somebody else took it in between: less is filled, down to one pair."""
    real, asked = torch.empty, []

    def empty(number: int, *sizes: int, **options: object) -> torch.Tensor:
        asked.append(number)
        if number > 2:
            raise torch.OutOfMemoryError("out of memory")
        return real(number, *sizes, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(burn, "CPU_BYTES", 20 * 128 * 128 * 4)
    assert len(burn._allocate(CPU, 128, torch.float32)) == 2
    assert asked[0] == 20
    assert asked == sorted(asked, reverse=True)


def test_the_course_has_an_entry_for_each_part_of_the_time():
    """Bounded, however long the load is."""
    one = load(seconds=100.0)
    for second in range(100):
        one.record(products=10, wrong=0, elapsed=float(second), took=1.0)
    assert len(one.values()["course"]) == 20
    assert one.values()["products"] == 1000
