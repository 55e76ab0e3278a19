"""Measure modes.guard(): what an open guard costs in a training step, beside the same step without one.

    python -m benchmarks.guard                  all steps
    python -m benchmarks.guard --pairs 400      more pairs, narrower intervals
    python -m benchmarks.guard --json FILE      also as JSON

A pair is three bare and three guarded steps (zero_grad, forward, loss, backward, SGD) of the same model on the same
batch, right after each other, in changing order; the fastest of three counts. The guard is open around its steps,
entered and left outside the timed ones, and each side takes one step untimed first, since opening makes Python forget
what it had cached. Time is that of the process' CPU where there is no GPU, so that what else the machine does counts
little. A figure is the median of the pairs' ratios with a 95 % bootstrap interval, whose **upper end** has the bar.
Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could not measure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks._steps import Ratio, Step, now, options, ratio
from torchtap import modes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BAR = 1.02
STEPS = 3


class Tagger(nn.Module):
    """Embedding, dropout, an LSTM of two layers, head."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, hidden)
        self.drop = nn.Dropout(0.1)
        self.rnn = nn.LSTM(hidden, hidden, num_layers=2, dropout=0.1)
        self.head = nn.Linear(hidden, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.rnn(self.drop(self.embed(tokens)))[0])
        return scores.flatten(0, 1)


class Block(nn.Module):
    """Two convolutions with BatchNorm, and the input added."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.skip = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.drop(self.relu(self.norm1(self.first(x))))
        result: Tensor = self.relu(self.skip(x) + self.norm2(self.second(inner)))
        return result


def resnet(width: int) -> nn.Module:
    """Nine blocks in three stages, 19 BatchNorms; for images of 32 x 32."""
    widths = [width] * 3 + [2 * width] * 3 + [4 * width] * 3
    blocks = (Block(before, after) for before, after in zip([width, *widths], widths, strict=False))
    stem = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


@dataclass(frozen=True)
class Case:
    """One step to measure. `bar`: what the interval's upper end must not pass; None where nothing is promised."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    bar: float | None = BAR
    sets_mode: bool = False
    """Whether each step begins with model.train()."""


CASES = (
    Case("LSTM, T50 B32 H128", lambda: Tagger(128), lambda: torch.randint(0, 1000, (50, 32))),
    Case("LSTM, T50 B8 H64", lambda: Tagger(64), lambda: torch.randint(0, 1000, (50, 8)), None),
    Case("ResNet of 9 blocks, B8", lambda: resnet(16), lambda: torch.randn(8, 3, 32, 32)),
    Case("the same, B1", lambda: resnet(16), lambda: torch.randn(1, 3, 32, 32), None),
    Case("B8, train() each step", lambda: resnet(16), lambda: torch.randn(8, 3, 32, 32), None, True),
)


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    measured: Ratio
    bar: float | None

    @property
    def held(self) -> bool:
        return self.bar is None or self.measured.high <= self.bar


def training_step(case: Case) -> tuple[nn.Module, Step]:
    """The model, and a closure that trains it once on one fixed batch."""
    torch.manual_seed(0)
    model = case.model().to(DEVICE).train()
    batch = case.batch().to(DEVICE)
    target = torch.randint(0, 10, (len(model(batch)),), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        if case.sets_mode:
            model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return model, step


def milliseconds(step: Step, context: AbstractContextManager[object]) -> float:
    """Of one step: the fastest of some."""
    taken = []
    with context:
        step()
        for _ in range(STEPS):
            start = now()
            step()
            taken.append(now() - start)
    return min(taken)


def measure(case: Case, pairs: int) -> Figure:
    """Bare and guarded, in turn."""
    model, step = training_step(case)
    bare: list[float] = []
    guarded: list[float] = []
    for pair in range(-3, pairs):  # the first ones warm up
        for guards in (False, True) if pair % 2 else (True, False):
            took = milliseconds(step, modes.guard(model) if guards else nullcontext())
            if pair >= 0:
                (guarded if guards else bare).append(took)
    return Figure(case.name, ratio(guarded, bare), case.bar)


def shown(figures: list[Figure]) -> Table:
    """The table."""
    title = f"modes.guard(): one training step, torch {torch.__version__}, {DEVICE.type}"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("step")
    for head in ("bare ms", "guarded ms", "ratio", "95 %", "bar"):
        table.add_column(head, justify="right")
    for figure in figures:
        it = figure.measured
        bar = "" if figure.bar is None else f"{figure.bar:.2f}" + ("" if figure.held else " BEYOND")
        interval = f"{it.low:.4f}-{it.high:.4f}"
        table.add_row(figure.name, f"{it.base_ms:.2f}", f"{it.ms:.2f}", f"{it.ratio:.4f}", interval, bar)
    return table


def main(argv: list[str]) -> int:
    arguments = options(argv, "benchmarks.guard", __doc__, 120)
    figures = [measure(case, arguments.pairs) for case in CASES]
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
