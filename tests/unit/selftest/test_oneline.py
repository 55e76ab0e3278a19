"""One line for a prolog, a monitor, Nagios."""

from __future__ import annotations

import re

import pytest

from tests.unit.selftest.reports import EXAMPLES, IDS, REPORTS, nasty
from torchtap.selftest.oneline import nagios_code, to_nagios, to_one_line
from torchtap.selftest.result import Report
from torchtap.selftest.status import Status

EXPECTED = {
    "all is well": "node017 pass: 19 passed, 0 skipped; 1 x NVIDIA H200; driver 590.48.01\n",
    "no GPU, by design": "node017 pass: 4 passed, 15 skipped; no GPU, by design\n",
    "a lost GPU": "node017 fail: gpu_lost: GPU 1",
}


@pytest.mark.parametrize("title", EXPECTED)
def test_the_line_reads_as_it_should(title: str):
    """Host, verdict, cause, remedy."""
    line = to_one_line(EXAMPLES[title])
    counts = re.compile(r"\d+ passed, \d+ skipped")
    assert counts.sub("", line).startswith(counts.sub("", EXPECTED[title]))


@pytest.mark.parametrize("report", REPORTS, ids=IDS)
@pytest.mark.parametrize("render", [to_one_line, to_nagios])
def test_it_is_one_line_of_printable_text(render, report: Report):
    """Whatever a machine said; the host, the verdict and the cause stand in the first 80 characters."""
    line = render(report)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line == f"{' '.join(line.split())}\n"
    first = report.first
    if first is not None:
        assert str(first.cause_id or first.id) in line[:80]


def test_nagios_says_its_own_words_and_codes():
    """OK 0, WARNING 1, CRITICAL 2, UNKNOWN 3; one | before the numbers."""
    said = {
        title: (to_nagios(report).split(" - ")[0], nagios_code(report)) for title, report in EXAMPLES.items()
    }
    assert said["all is well"] == ("SELFTEST OK", 0)
    assert said["warnings"] == ("SELFTEST WARNING", 1)
    assert said["a lost GPU"] == ("SELFTEST CRITICAL", 2)
    assert nagios_code(Report(results=(), device="gpu", seconds=0, torchtap="0")) == 3
    line = to_nagios(nasty())
    assert line.count("|") == 1
    numbers = line.partition("| ")[2].split()
    assert numbers == [*(f"{status.value}=1" for status in Status), "seconds=1.5s"]
