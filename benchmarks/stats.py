"""Measure the statistics of one CPU tensor, in multiples of one `x.sum()`, and their time for a tensor of 64 values.

    python -m benchmarks.stats                  all
    python -m benchmarks.stats --pairs 200      more rounds, narrower intervals
    python -m benchmarks.stats --json FILE      also as JSON

float32, min, max, sum, sum of squares and nonfinite; the C kernel counts zeros too, PyTorch's operators only in the
lines that say so. Every round runs all, in changing order; a figure is the median of the rounds' ratios with a 95 %
bootstrap interval, and beside it the ratio of the fastest rounds: what a machine gives whose memory nobody else uses.
Time is that of the process' CPU. Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could not measure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._steps import Ratio, Step, Variant, in_turn, options, ratio
from torchtap.monitor import stats
from torchtap.monitor.stats import host, kernel

SIZES = (10_000, 1_000_000, 10_000_000)
SMALL = 64
SMALL_BAR_US = 12.0
USED = "C kernel"  # the bar is for it; without one nothing is promised for small tensors
Way = Callable[[Tensor, int, bool], None]


@dataclass(frozen=True)
class Candidate:
    """One way of measuring; its bars by size, in passes of `x.sum()`."""

    name: str
    way: Way
    zeros: bool
    bars: dict[int, float]


@dataclass(frozen=True)
class Figure:
    """One line of the table. `fastest`: the ratio of the fastest rounds."""

    name: str
    size: int
    measured: Ratio
    fastest: float
    bar: float | None

    @property
    def held(self) -> bool:
        return self.bar is None or min(self.measured.ratio, self.fastest) <= self.bar


def candidates() -> list[Candidate]:
    operators = [
        Candidate("operators", host.row_by_torch, False, {10_000_000: 4.0}),
        Candidate("operators, zeros", host.row_by_torch, True, {}),
    ]
    if kernel.found().kernel is None:
        return operators
    return [Candidate(USED, stats.host_row, True, {1_000_000: 1.6, 10_000_000: 1.2}), *operators]


def repeated(step: Step, times: int) -> Variant:
    """Short steps several times, so that reading the clock does not count."""

    def steps() -> None:
        for _ in range(times):
            step()

    return Variant(steps)


def figures(size: int, rounds: int) -> list[Figure]:
    """All candidates on one tensor, beside its `sum()`."""
    x, row = torch.randn(size), np.empty(stats.ROW)
    ways = candidates()
    steps: list[Step] = [x.sum, *(partial(way.way, x, row.ctypes.data, way.zeros) for way in ways)]
    # About a millisecond a step.
    times = max(1, 2_000_000 // max(size, 10_000))
    base, *all_times = in_turn([repeated(step, times) for step in steps], rounds)
    return [
        Figure(way.name, size, ratio(took, base), min(took) / min(base), way.bars.get(size))
        for way, took in zip(ways, all_times, strict=True)
    ]


def small(rounds: int) -> dict[str, float]:
    """Microseconds for a tensor of `SMALL` values, `refusal` included: the fastest round of each candidate."""
    x, row = torch.randn(SMALL), np.empty(stats.ROW)

    def step(way: Candidate) -> None:
        if stats.refusal(x) is None:
            way.way(x, row.ctypes.data, way.zeros)

    times = 200
    ways = candidates()
    all_times = in_turn([repeated(partial(step, way), times) for way in ways], rounds)
    return {way.name: min(took) * 1e3 / times for way, took in zip(ways, all_times, strict=True)}


def small_held(of_small: dict[str, float]) -> bool:
    """Whether what a hook uses here keeps the bar."""
    return of_small.get(USED, 0.0) <= SMALL_BAR_US


def show(all_figures: Sequence[Figure], of_small: dict[str, float]) -> None:
    table = Table(title=f"Statistics of one float32 tensor ({kernel.found().why})")
    for column in ("values", "way", "ms", "passes of sum()", "of fastest", "bar"):
        table.add_column(column, justify="left" if column == "way" else "right", no_wrap=True)
    for figure in all_figures:
        took = figure.measured
        table.add_row(
            f"{figure.size:,}",
            figure.name,
            f"{took.ms:.3f}",
            f"{took.ratio:.2f} ({took.low:.2f} to {took.high:.2f})",
            f"{figure.fastest:.2f}",
            "" if figure.bar is None else f"{figure.bar} {'held' if figure.held else 'NOT HELD'}",
        )
    for name, us in of_small.items():
        bar = f"{SMALL_BAR_US} µs {'held' if small_held(of_small) else 'NOT HELD'}" if name == USED else ""
        table.add_row(str(SMALL), name, "", "", f"{us:.1f} µs", bar)
    Console(width=96).print(table)


def main(argv: Sequence[str]) -> int:
    arguments = options(argv, "python -m benchmarks.stats", __doc__, pairs=60)
    all_figures = [figure for size in SIZES for figure in figures(size, arguments.pairs)]
    of_small = small(min(arguments.pairs, 30))
    show(all_figures, of_small)
    if arguments.json:
        lines = [{**asdict(figure), "held": figure.held} for figure in all_figures]
        arguments.json.write_text(json.dumps({"figures": lines, "small_us": of_small}, indent=1) + "\n")
    return 0 if all(figure.held for figure in all_figures) and small_held(of_small) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
