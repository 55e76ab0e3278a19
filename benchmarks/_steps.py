"""What benchmarks of steps share: variants timed in turn, and the ratio of two with its interval."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

Step = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """Medians in milliseconds, the median ratio to the base with its 95 % interval, the number of rounds."""

    base_ms: float
    ms: float
    ratio: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Variant:
    """What is timed, and what is open around it, entered and left outside of the time."""

    step: Step
    inside: Callable[[], AbstractContextManager[object]] | None = None


def options(argv: Sequence[str], program: str, about: str | None, pairs: int) -> argparse.Namespace:
    """The command line that these benchmarks share: `pairs`, `threads`, `json`. Sets torch's threads."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, prog=program
    )
    parser.add_argument("--pairs", type=int, default=pairs, help=f"rounds for each figure (default {pairs})")
    parser.add_argument(
        "--threads", type=int, default=1, help="torch's threads (default 1: steady on a busy machine)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args(argv)
    if arguments.pairs < 5 or arguments.threads < 1:
        parser.error("--pairs must be 5 or more, --threads 1 or more")
    torch.set_num_threads(arguments.threads)
    return arguments


def now() -> float:
    """Milliseconds: of the CPU that this process used, so that other work on the machine does not count.

    Where there is a GPU, of the clock, its work done.
    """
    if not torch.cuda.is_available():
        return time.process_time() * 1e3
    torch.cuda.synchronize()
    return time.perf_counter() * 1e3


def milliseconds(variant: Variant) -> float:
    """How long one step took. Inside something, one is taken untimed first: opening makes Python forget caches."""
    with variant.inside() if variant.inside else nullcontext():
        if variant.inside:
            variant.step()
        start = now()
        variant.step()
        return now() - start


def in_turn(variants: Sequence[Variant], rounds: int, warm_up: int = 5) -> list[list[float]]:
    """The times of each variant: every round runs all, each time another one first.

    So what the machine does meanwhile hits all alike, and the figures of a round may be divided by each other.
    """
    times: list[list[float]] = [[] for _ in variants]
    for round_ in range(-warm_up, rounds):
        order = list(range(len(variants)))
        if round_ % 2:
            order.reverse()
        first = round_ // 2 % len(variants)
        for index in (*order[first:], *order[:first]):
            took = milliseconds(variants[index])
            if round_ >= 0:
                times[index].append(took)
    return times


def bootstrap(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio:
    """`times` over `base`, which were measured in the same rounds."""
    ratios = [mine / other for mine, other in zip(times, base, strict=True)]
    low, high = bootstrap(ratios)
    medians = statistics.median(base), statistics.median(times)
    return Ratio(*medians, statistics.median(ratios), low, high, len(ratios))
