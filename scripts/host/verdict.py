"""The self-test's report, in the few lines that `make up` and `make status` have room for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from host.show import detail, paste, say

BAD = ("fail", "unknown", "warn")  # what is shown, in this order
SHOWN = 3


def read(text: str) -> dict[str, Any] | None:
    """A report of schema 1, or None for anything else: a half-written file, a newer format."""
    try:
        report = json.loads(text)
    except ValueError:
        return None
    good = isinstance(report, dict) and report.get("schema") == 1 and isinstance(report.get("results"), list)
    return report if good else None


def summary(report: Mapping[str, Any]) -> str:
    """The verdict and what it rests on.

    >>> summary({"verdict": "fail", "results": [{"status": "pass"}, {"status": "fail"}, {"status": "skip"}]})
    'FAIL: 1 passed, 1 failed, 1 skipped'
    """
    words = {"pass": "passed", "warn": "warned", "fail": "failed", "unknown": "unknown", "skip": "skipped"}
    statuses = [str(result.get("status")) for result in report["results"]]
    counts = [f"{statuses.count(status)} {word}" for status, word in words.items() if status in statuses]
    verdict = str(report.get("verdict", "unknown"))
    return f"{verdict if verdict == 'pass' else verdict.upper()}: {', '.join(counts) or 'no check ran'}"


def show(report: Mapping[str, Any] | None, more: str) -> None:
    """Print the verdict, the first findings with cause and remedy, and where to see the rest (`more`)."""
    if report is None:
        say("selftest", f"no verdict yet. {more}")
        return
    say("selftest", summary(report))
    bad = sorted(
        (result for result in report["results"] if result.get("status") in BAD),
        key=lambda result: BAD.index(result["status"]),
    )
    for result in bad[:SHOWN]:
        detail(result["status"].upper(), f"{result.get('id', '')}  {result.get('seen') or ''}")
        for label, key in (("cause", "cause"), ("do", "remedy")):
            if result.get(key):
                detail(label, str(result[key]))
    if len(bad) > SHOWN:
        say("", f"and {len(bad) - SHOWN} more")
    if bad:
        paste(more)
