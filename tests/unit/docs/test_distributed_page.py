"""docs/distributed.md and docs/integrations.md: findings, names and texts are those that there are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from torchtap._findings import Finding, Severity
from torchtap.diagnose import rules
from torchtap.monitor import Ranks, distributed, ranks

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/distributed.md").read_text()


RULES = {rule.id: rule for rule in rules.RULES if rule.over_ranks is not None}


def test_every_finding_over_ranks_has_its_row_and_no_other() -> None:
    assert set(RULES) == set(re.findall(r"`(ranks\.\w+)` \|", TEXT)) | {"ranks.steps_differ"}


def test_limits_and_the_error_are_as_the_page_says() -> None:
    limit = RULES["ranks.gradient_far_off"].limit()
    assert f"one rank {limit['times']:g} times the median of three or more" in TEXT
    assert limit["ranks"] == 3
    told = distributed._missing([1], [0, 1, 2], 300.0).replace("`", "").partition(". Slower")[0]
    assert told.removeprefix("torchtap.monitor.gather: ") in TEXT


def test_the_finding_is_printed_as_shown() -> None:
    shown = TEXT.partition("```text\n")[2].partition("```")[0]
    parts = re.match(r"error  (\S+) at (\w+): (.*)\ncause  (.*)\ndo     (.*)\n$", shown)
    assert parts is not None
    name, where, seen, cause, remedy = parts.groups()
    found = Finding(id=name, severity=Severity.ERROR, where=where, seen=seen, cause=cause, remedy=remedy)
    assert f"{found}\n" == shown


def test_what_ranks_have_is_named_as_it_is() -> None:
    fields = {each.name for of in (ranks.Rank, ranks.ParameterOfRank) for each in dataclasses.fields(of)}
    named = re.findall(r"`ranks?\.(\w+)|`(checksum|rms|gradient|update|value)`", TEXT)
    known = (
        fields
        | set(dir(Ranks))
        | {"nonfinite", "out_of_sync", "gradients_differ", "gradient_far_off", "steps_differ"}
    )
    assert {one or other for one, other in named} <= known


@pytest.mark.parametrize("page", ["distributed", "integrations"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([\w.]+\.md)\)", (ROOT / f"docs/{page}.md").read_text()):
        assert (ROOT / "docs" / link).exists()
