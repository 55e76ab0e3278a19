"""The self-test's report in a few lines."""

from __future__ import annotations

import pytest

from host import verdict

REPORT = {
    "schema": 1,
    "verdict": "fail",
    "results": [
        {"id": "a.warns", "status": "warn", "seen": "w", "cause": "c", "remedy": "r"},
        {"id": "b.passes", "status": "pass", "seen": "p"},
        {"id": "c.fails", "status": "fail", "seen": "f", "cause": "why", "remedy": "do it\na line to paste"},
        {"id": "d.unknown", "status": "unknown", "seen": "u", "cause": None, "remedy": None},
        {"id": "e.fails", "status": "fail", "seen": "g"},
        {"id": "f.skips", "status": "skip", "seen": "s"},
    ],
}


def test_the_worst_comes_first_and_the_rest_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    verdict.show(REPORT, "All of it:  make selftest")
    assert capsys.readouterr().out.splitlines() == [
        "selftest  FAIL: 1 passed, 1 warned, 2 failed, 1 unknown, 1 skipped",
        "          FAIL    c.fails  f",
        "          cause   why",
        "          do      do it",
        "                  a line to paste",
        "          FAIL    e.fails  g",
        "          UNKNOWN d.unknown  u",
        "          and 1 more",
        "          All of it:  make selftest",
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2, "results": []}', '{"schema": 1, "results": 3}']
)
def test_what_is_no_report_is_no_verdict(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict.read(text) is None
    verdict.show(verdict.read(text), "Ask again:  make selftest")
    assert capsys.readouterr().out == "selftest  no verdict yet. Ask again:  make selftest\n"


def test_a_report_without_checks_is_not_a_pass() -> None:
    assert verdict.summary({"results": []}) == "UNKNOWN: no check ran"
