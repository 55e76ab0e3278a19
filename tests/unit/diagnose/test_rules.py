"""The table of rules: complete, consistent, and as its page shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtap.diagnose import RULES, Rule
from torchtap.diagnose import page as pages
from torchtap.diagnose.rules import _BY_ID

PAGE = Path(__file__).resolve().parents[3] / "docs" / "diagnose.md"
IDS = [rule.id for rule in RULES]


def test_page_is_what_the_rules_give() -> None:
    """Else: `python -m torchtap.diagnose.page docs/diagnose.md`."""
    assert PAGE.read_text(encoding="utf-8") == pages.page()


def test_no_rule_is_left_out_and_none_is_twice() -> None:
    assert sorted(IDS) == sorted(_BY_ID)
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_rule_is_complete(rule: Rule) -> None:
    assert (rule.find is None) != (rule.over_ranks is None)
    for text in (rule.looks_at, rule.definition, rule.seen, rule.cause, rule.remedy, rule.fine_when):
        assert text
    for limit in rule.limits:
        assert limit.name == re.sub(r"\W", "_", limit.name)
    assert set(rule.only_with) <= set(IDS)
    assert set(rule.explains) <= set(IDS)
    assert rule.id not in rule.explains


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_rule_explains_later_ones_only(rule: Rule) -> None:
    """Else two findings could each be the other's symptom."""
    assert [name for name in rule.explains if IDS.index(name) <= IDS.index(rule.id)] == []
