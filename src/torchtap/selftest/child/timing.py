"""How long work takes on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(
    device: torch.device, work: Callable[[], object], *, repeats: int, limit_s: float = 2.0
) -> float:
    """The median time of one call, after a first one that does not count; at most about `limit_s` for all.

    On a GPU it is measured by the GPU itself, so that the host's own delays do not count.

    >>> median_seconds(torch.device("cpu"), lambda: time.sleep(0.01), repeats=3) >= 0.01
    True
    """
    once = _on_gpu if device.type == "cuda" else _on_cpu
    work()  # loads code, and lets clocks rise
    taken: list[float] = []
    while len(taken) < repeats and sum(taken) < limit_s:
        taken.append(once(device, work))
    return statistics.median(taken)


def _on_gpu(device: torch.device, work: Callable[[], object]) -> float:
    with torch.cuda.device(device):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def _on_cpu(_: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
