"""Measure how long `torchtap selftest --merge` takes for 1,000 reports of hosts with 8 GPUs.

    python -m benchmarks.merge                  5 runs of the table and of --json
    python -m benchmarks.merge --json FILE      also as JSON

The reports are those of torchtap.selftest.fleet.examples, each with as much raw text as a report may hold: 4,000
characters a check. Times are those of the whole process, as a user waits for it, with the files in the page cache. The
bar is 5 s and holds on a machine that does nothing else. Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could
not measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # as it stands in this checkout

from benchmarks.import_time import SOURCE, Figure, alternate, conclude, figure

REPORTS = 1_000
BAR_S = 5.0


def generate(folder: Path) -> int:
    """Write the reports; the number of bytes."""
    from torchtap.selftest.fleet.examples import host_reports
    from torchtap.selftest.limits import MAX_EVIDENCE_CHARS

    size = 0
    for written in host_reports(REPORTS):
        for result in written["results"]:
            result["evidence"] = "GPU 0, NVIDIA H200, 590.48.01\n" * (MAX_EVIDENCE_CHARS // 30)
        text = json.dumps(written, indent=2) + "\n"
        (folder / f"{written['host']['name']}.json").write_text(text)
        size += len(text)
    return size


def timed(folder: Path, *words: str) -> tuple[float, float]:
    """Seconds of wall time for a whole process; the fleet has failing hosts, so the exit code is 1."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "torchtap.cli", "selftest", "--merge", str(folder), *words],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    if done.returncode != 1:
        raise subprocess.CalledProcessError(done.returncode, "merge", done.stdout, done.stderr)
    return time.perf_counter() - began, 0.0


def measure(runs: int) -> list[Figure]:
    """The table and the JSON, in changing order; the first of each warms up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = generate(folder)
        taken = alternate(runs, lambda: timed(folder), lambda: timed(folder, "--json"))
    return [
        figure(f"table of {REPORTS:,} reports", [table for (table, _), _ in taken], "s", BAR_S),
        figure("the same as JSON", [written for _, (written, _) in taken], "s", BAR_S),
        figure("size of the reports", [size / 1e6], "MB"),
    ]


def main() -> int:
    """The benchmark of the merge."""
    return conclude(__doc__ or "", "benchmarks.merge", 5, "torchtap selftest --merge", measure)


if __name__ == "__main__":
    sys.exit(main())
