"""docs/cases.md: every report is there, with its tests, and the page says what the tests show."""

from __future__ import annotations

import pytest

from tests.unit.modes.cases import page
from tests.unit.modes.cases.harness import all_cases
from tests.unit.modes.cases.reports import NONE, OTHER, RAISES, REPORTS, SECOND, SILENT

ALLOWED = {
    RAISES: {"raises"},
    SECOND: {"refuses"},
    SILENT: {"finds", "source"},
    NONE: {"quiet"},
    OTHER: {"quiet", "refuses"},
}


def test_page_is_what_the_table_gives() -> None:
    """Else: `python -m tests.unit.modes.cases.page`."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_no_report_is_left_out() -> None:
    assert len(REPORTS) == 68
    assert {case.number for case in all_cases().values()} <= set(REPORTS)


@pytest.mark.parametrize("number", REPORTS)
def test_report_comes_out_as_it_must_or_says_why_it_cannot(number: str) -> None:
    """Reproductions beyond those are what the report gives as its remedy, which must be quiet, or its other halves."""
    report = REPORTS[number]
    outcomes = {case.outcome for case in all_cases().values() if case.number == number}
    assert bool(outcomes) != bool(report.without)
    assert report.without or outcomes & ALLOWED[report.expected]
    if report.expected == NONE:
        assert outcomes == {"quiet"}


@pytest.mark.parametrize("name", [name for name, case in all_cases().items() if case.outcome == "source"])
def test_what_only_the_source_shows_has_a_reason(name: str) -> None:
    assert len(all_cases()[name].says) > len(page.SOURCE_ONLY) + 20
