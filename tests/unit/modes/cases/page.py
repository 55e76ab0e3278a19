"""docs/cases.md, from the reports and the table that drives the tests: `python -m tests.unit.modes.cases.page`.

Written anew, the page is in docs/; a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.unit.diagnose.page import section
from tests.unit.modes.cases.harness import Case, all_cases
from tests.unit.modes.cases.reports import NONE, OTHER, RAISES, REPORTS, SECOND, SILENT

PAGE = Path(__file__).resolve().parents[4] / "docs" / "cases.md"
SOURCE_ONLY = "visible only in the source"

_HEAD = """\
# Public reports of train/eval mistakes, and what Torchtap says

{count} public reports, each as one or more small reproductions of our own, written from descriptions of the
reports. They run on a CPU: under `modes.emulate_cudnn()`, on a plain CPU, and in guards that raise or collect. The log
that they come from leaves some numbers out. This page is made by `python -m tests.unit.modes.cases.page`; a test
compares. [docs/modes.md](modes.md) explains the findings.

| what must come out | reports | of these |
|---|---|---|
{score}

"Raises" stands for `cudnn RNN backward can only be called in training mode`. For each such report three things are
tested: it raises under emulation in the very backward of the report; `check_backward` names, before that backward, the
module, the line of its forward and the line that set eval mode, under emulation and on a plain CPU; and `guard` says
the same in the error. Where the table says "nothing", nothing above INFO is found. None of this was run on a GPU.

Where a report has several tests, each has a line in the last two columns; some are what the report gives as its remedy.
To run the tests of one report: `pytest tests/unit/modes/cases -k c10_`.

| | report | what happens | must come out | Torchtap says | tests |
|---|---|---|---|---|---|
{rows}
"""


def page() -> str:
    """The text of docs/cases.md."""
    cases = all_cases()
    of = {number: [case for case in cases.values() if case.number == number] for number in REPORTS}
    return (
        _HEAD.format(
            count=len(REPORTS),
            score="\n".join(score(of)),
            rows="\n".join(_row(number, of[number]) for number in REPORTS),
        )
        + section()
    )


def score(of: dict[str, list[Case]]) -> list[str]:
    """A line for each kind of report."""
    lines = []
    for expected, well in _WELL.items():
        numbers = [number for number, report in REPORTS.items() if report.expected == expected]
        counts: dict[str, list[str]] = {}
        for number in numbers:
            counts.setdefault(_came_out(of[number], well), []).append(number)
        told = "; ".join(
            f"{len(some)} {words}" + (f" ({', '.join(some)})" if words != well else "")
            for words, some in counts.items()
        )
        lines.append(f"| {expected} | {len(numbers)} | {told} |")
    return lines


_WELL = {
    RAISES: "raise in emulation, foreseen and explained",
    SECOND: "refused in emulation, with PyTorch's own text",
    SILENT: "found at run time",
    NONE: "without any finding above INFO",
    OTHER: "as in the report",
}


def _came_out(cases: list[Case], well: str) -> str:
    in_source = [case for case in cases if case.outcome == "source"]
    if not cases or len(in_source) == len(cases):
        return SOURCE_ONLY if well == _WELL[SILENT] else "without a reproduction"
    return f"{well}, a variant {SOURCE_ONLY}" if in_source else well


def _row(number: str, cases: list[Case]) -> str:
    report = REPORTS[number]
    says = "<br>".join(case.says for case in cases) or f"- ({report.without})"
    tests = "<br>".join(f"`{case.name}`" for case in cases) or "-"
    return f"| {' | '.join((number, report.where, report.happens, report.expected, says, tests))} |"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
