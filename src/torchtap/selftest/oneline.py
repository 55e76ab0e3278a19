"""A report in one line, for whoever shows or stores only one: a Slurm drain reason, node-problem-detector, Nagios.

node-problem-detector cuts at max_output_length, 80 in its examples (docs/custom_plugin_monitor.md): the host, the
verdict and the cause come first, the remedy last.
"""

from __future__ import annotations

from collections import Counter

from torchtap.selftest.result import Report
from torchtap.selftest.status import Status
from torchtap.selftest.words import printable

# Nagios plugin guidelines: OK, WARNING, CRITICAL, UNKNOWN.
NAGIOS = {
    Status.PASS: (0, "OK"),
    Status.WARN: (1, "WARNING"),
    Status.FAIL: (2, "CRITICAL"),
    Status.UNKNOWN: (3, "UNKNOWN"),
}

NAGIOS_UNKNOWN = 3


def to_one_line(report: Report) -> str:
    """Host, verdict, first cause, what to do; after a pass, what was seen. One line, no colour, a line end."""
    return f"{report.identity.name or 'unnamed'} {report.verdict.value}: {_why(report)}\n"


def to_nagios(report: Report) -> str:
    """The same as a Nagios plugin says it: the state's word, and behind | what can be drawn."""
    _, word = NAGIOS[report.verdict]
    numbers = Counter(result.status for result in report.results)
    data = " ".join(f"{status.value}={numbers[status]}" for status in Status)
    # | begins the data for drawing, so no text may hold one
    return f"SELFTEST {word} - {_why(report).replace('|', '/')} | {data} seconds={report.seconds:.1f}s\n"


def nagios_code(report: Report) -> int:
    """The exit code of a Nagios plugin."""
    return NAGIOS[report.verdict][0]


def _why(report: Report) -> str:
    first = report.first
    if first is None:
        return _summary(report)
    do = (first.remedy or "").partition("\n")[0]
    words = f"{first.cause_id or first.id}: {first.cause or first.seen}" + (f"; {do}" if do else "")
    return " ".join(printable(words, instead=" ").split())


def _summary(report: Report) -> str:
    """What passed, and on what."""
    numbers = Counter(result.status for result in report.results)
    said = f"{numbers[Status.PASS]} passed, {numbers[Status.SKIP]} skipped"
    if report.device == "cpu":
        return f"{said}; no GPU, by design"
    known = "; ".join(part for part in (said, gpus_in_words(report), _driver(report)) if part)
    return printable(known, instead=" ")


def _driver(report: Report) -> str:
    driver = report.identity.versions.get("driver")
    return f"driver {driver}" if driver else ""


def gpus_in_words(report: Report) -> str:
    """Equal GPUs in one phrase, as in "8 x NVIDIA H200"."""
    names = Counter(gpu.name or "GPU" for gpu in report.identity.gpus)
    return ", ".join(f"{number} x {name}" for name, number in names.items())
