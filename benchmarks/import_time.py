"""Measure what `import torchtap` costs beyond `import torch`, in alternating fresh processes.

    python -m benchmarks.import_time                  20 pairs
    python -m benchmarks.import_time --pairs 50       narrower intervals
    python -m benchmarks.import_time --json FILE      also as JSON

A pair is one process that imports torch and one that imports torch and then torchtap, right after each other, in
changing order, so that what else the machine does hits both. Each process times its own imports, without the start of
Python. Two figures: torchtap's own part, timed inside the second process, which decides; and the ratio of the two
totals, which must be about 1 and shows that nothing is hidden elsewhere. The first pair warms the disk cache and does
not count. Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could not measure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

BAR_S = 0.05
SOURCE = Path(__file__).resolve().parents[1] / "src"
ALONE = "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); print(b - a, 0.0)"
WITH = (
    "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); "
    "import torchtap; c = time.perf_counter(); print(c - a, c - b)"
)


@dataclass(frozen=True)
class Figure:
    """A median with its 95 % interval (bootstrap over the pairs)."""

    name: str
    median: float
    low: float
    high: float
    unit: str
    bar: float | None = None

    @property
    def held(self) -> bool:
        return self.bar is None or self.median <= self.bar


def figure(
    name: str,
    values: Sequence[float],
    unit: str,
    bar: float | None = None,
    *,
    rounds: int = 2000,
    seed: int = 0,
) -> Figure:
    """The median of `values` and how far it can be trusted."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(rounds))
    low, high = medians[int(0.025 * rounds)], medians[int(0.975 * rounds) - 1]
    return Figure(name, statistics.median(values), low, high, unit, bar)


def alternate(
    pairs: int, one: Callable[[], tuple[float, float]], other: Callable[[], tuple[float, float]]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Both sides of each pair right after each other, in changing order; one pair more than asked, to warm up."""
    taken = []
    for turn in range(pairs + 1):
        if turn % 2:
            second, first = other(), one()
        else:
            first, second = one(), other()
        taken.append((first, second))
    return taken[1:]


def timed(code: str) -> tuple[float, float]:
    """Run the code in a fresh Python and read its two numbers (seconds)."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    total, part = (float(word) for word in done.stdout.split())
    return total, part


def measure(pairs: int) -> list[Figure]:
    """Torchtap's own part, the two totals, and their ratio."""
    taken = alternate(pairs, lambda: timed(ALONE), lambda: timed(WITH))
    return [
        figure("import torchtap, after torch", [part for _, (_, part) in taken], "s", BAR_S),
        figure("import torch", [total for (total, _), _ in taken], "s"),
        figure("import torch, torchtap", [total for _, (total, _) in taken], "s"),
        figure("ratio of the two", [both / alone for (alone, _), (both, _) in taken], ""),
    ]


def show(figures: Sequence[Figure], title: str) -> None:
    """A table of the figures."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    for name in ("median", "95 % interval", "bar"):
        table.add_column(name, justify="right")
    for each in figures:
        bar = "" if each.bar is None else f"{each.bar:g}{' held' if each.held else ' MISSED'}"
        table.add_row(each.name, f"{each.median:.4f} {each.unit}", f"{each.low:.4f} to {each.high:.4f}", bar)
    Console().print(table)


def write(figures: Sequence[Figure], pairs: int, file: Path) -> None:
    """The figures as JSON, all of it or nothing."""
    temporary = file.with_suffix(f"{file.suffix}.tmp")
    body = {"pairs": pairs, "figures": [{**asdict(each), "held": each.held} for each in figures]}
    temporary.write_text(json.dumps(body, indent=2) + "\n")
    temporary.replace(file)


def options(doc: str, prog: str, pairs: int) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, prog=prog
    )
    parser.add_argument(
        "--pairs", type=int, default=pairs, metavar="N", help=f"pairs of processes (default {pairs})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    chosen = parser.parse_args()
    if chosen.pairs < 1:
        parser.error(f"--pairs must be at least 1; it is {chosen.pairs}")
    return chosen


def conclude(doc: str, prog: str, pairs: int, title: str, measure: Callable[[int], list[Figure]]) -> int:
    """Measure, show, write what the command line says; 1 where a bar is missed, 2 where nothing could be measured."""
    chosen = options(doc, prog, pairs)
    try:
        figures = measure(chosen.pairs)
        show(figures, f"{title}, {chosen.pairs} pairs of fresh processes")
        if chosen.json is not None:
            write(figures, chosen.pairs, chosen.json)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"{prog}: {getattr(error, 'stderr', '') or error}", file=sys.stderr)
        return 2
    return 0 if all(each.held for each in figures) else 1


def main() -> int:
    """The benchmark of the import."""
    title = "import torchtap beyond import torch"
    return conclude(__doc__ or "", "benchmarks.import_time", 20, title, measure)


if __name__ == "__main__":
    sys.exit(main())
