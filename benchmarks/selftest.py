"""Measure how long `torchtap selftest` takes on this machine, and how much of it is not `import torch`.

    python -m benchmarks.selftest                  10 pairs
    python -m benchmarks.selftest --json FILE      also as JSON

A pair is one `python -c "import torch"` and one `torchtap selftest`, right after each other, in changing order; both
times are those of the whole process, as a user waits for it. The bars are for machines without a GPU (4 s in all, 2 s
of it beyond torch) and hold on a machine that does nothing else. Exit codes: 0 measured, 1 a figure is beyond its bar,
2 could not measure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.import_time import SOURCE, Figure, alternate, conclude, figure

TOTAL_BAR_S = 4.0
BEYOND_BAR_S = 2.0


def timed(words: Sequence[str]) -> tuple[float, float]:
    """Seconds of wall time for a whole process. A verdict of fail is a result; anything else is an error."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    if done.returncode not in (0, 1):
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
    return time.perf_counter() - began, 0.0


def measure(pairs: int) -> list[Figure]:
    """The self-test, torch alone, and the difference of each pair."""
    taken = alternate(
        pairs,
        lambda: timed(["-c", "import torch"]),
        lambda: timed(["-m", "torchtap.cli", "selftest"]),
    )
    return [
        figure("torchtap selftest", [whole for _, (whole, _) in taken], "s", TOTAL_BAR_S),
        figure("python -c 'import torch'", [torch for (torch, _), _ in taken], "s"),
        figure("difference", [whole - torch for (torch, _), (whole, _) in taken], "s", BEYOND_BAR_S),
    ]


def main() -> int:
    """The benchmark of the self-test."""
    return conclude(
        __doc__ or "", "benchmarks.selftest", 10, "torchtap selftest beyond import torch", measure
    )


if __name__ == "__main__":
    sys.exit(main())
