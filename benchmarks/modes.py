"""Measure modes: what emulate_cudnn() costs beside a native CPU training step, taken side by side.

    python -m benchmarks.modes                  all sizes
    python -m benchmarks.modes --pairs 200      more pairs of steps, narrower intervals
    python -m benchmarks.modes --json FILE      also as JSON

A pair is one native and one emulated step (zero_grad, forward, loss, backward, SGD) of the same model on the same
batch, right after each other, in changing order; the figure is the median of the pairs' ratios with a 95 % bootstrap
interval, so that what else the machine does hits both sides. CPU only. Exit codes: 0 measured, 1 a figure is beyond
its bar, 2 could not measure.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from torchtap import modes


@dataclass(frozen=True)
class Size:
    """One LSTM and its batch. `bar`: the ratio that the median must not pass; None where nothing is promised."""

    name: str
    steps: int
    batch: int
    hidden: int
    layers: int = 1
    dropout: float = 0.0
    bar: float | None = None


SIZES = (
    Size("small", steps=50, batch=8, hidden=64),
    Size("medium", steps=50, batch=32, hidden=128, bar=1.45),
    Size("large", steps=30, batch=32, hidden=256),
    Size("dropout", steps=50, batch=32, hidden=128, layers=2, dropout=0.3),
)


@dataclass(frozen=True)
class Figure:
    """The result for one size: times in milliseconds, the ratio emulated / native with its interval."""

    size: Size
    native_ms: float
    emulated_ms: float
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def held(self) -> bool:
        return self.size.bar is None or self.ratio <= self.size.bar


def training_step(size: Size) -> Callable[[], None]:
    """A closure that trains once on one fixed batch."""
    torch.manual_seed(0)
    rnn = nn.LSTM(size.hidden, size.hidden, size.layers, dropout=size.dropout)
    batch = torch.randn(size.steps, size.batch, size.hidden)
    optimizer = torch.optim.SGD(rnn.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        out: Tensor = rnn(batch)[0]
        out.square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def milliseconds(step: Callable[[], None], context: AbstractContextManager[object]) -> float:
    with context:
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1e3


def bootstrap(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def measure(size: Size, pairs: int) -> Figure:
    step = training_step(size)
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(-5, pairs):  # the first five warm up
        for emulated in (False, True) if pair % 2 else (True, False):
            took = milliseconds(step, modes.emulate_cudnn() if emulated else nullcontext())
            if pair >= 0:
                times[emulated].append(took)
    ratios = [mine / native for native, mine in zip(times[False], times[True], strict=True)]
    low, high = bootstrap(ratios)
    native_ms, emulated_ms = statistics.median(times[False]), statistics.median(times[True])
    return Figure(size, native_ms, emulated_ms, statistics.median(ratios), low, high, pairs)


def shown(figures: list[Figure]) -> Table:
    table = Table(title=f"emulate_cudnn(): one LSTM training step, torch {torch.__version__}, CPU", box=None)
    for head, side in (
        ("size", "left"),
        ("TxBxHxL", "left"),  # steps, batch, hidden, layers
        ("native ms", "right"),
        ("emulated ms", "right"),
        ("ratio", "right"),
        ("95 %", "right"),
        ("bar", "right"),
    ):
        table.add_column(head, justify="left" if side == "left" else "right")
    for f in figures:
        s = f.size
        table.add_row(
            s.name,
            f"{s.steps}x{s.batch}x{s.hidden}x{s.layers}",
            f"{f.native_ms:.2f}",
            f"{f.emulated_ms:.2f}",
            f"{f.ratio:.2f}",
            f"{f.low:.2f}-{f.high:.2f}",
            "" if s.bar is None else f"{s.bar:.2f}" + ("" if f.held else " BEYOND"),
        )
    return table


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks.modes"
    )
    parser.add_argument("--pairs", type=int, default=60, help="pairs of steps for each size (default 60)")
    parser.add_argument(
        "--threads", type=int, default=1, help="torch's threads (default 1: steady on a busy machine)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args(argv)
    if arguments.pairs < 5 or arguments.threads < 1:
        parser.error("--pairs must be 5 or more, --threads 1 or more")
    torch.set_num_threads(arguments.threads)
    figures = [measure(size, arguments.pairs) for size in SIZES]
    Console().print(shown(figures))
    if arguments.json:
        result = {
            "schema": 1,
            "torch": torch.__version__,
            "threads": arguments.threads,
            "figures": [{**asdict(figure), "held": figure.held} for figure in figures],
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figure.held for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
