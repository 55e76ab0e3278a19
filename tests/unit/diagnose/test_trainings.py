"""Every broken training has its fault found first, and no healthy one has a finding; docs/cases.md says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.diagnose.training import SEEDS, Training, trainings
from torchtap.diagnose import RULES, diagnose

BROKEN = list(trainings(broken=True).values())
HEALTHY = list(trainings(broken=False).values())
LATER = [pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:]]
ids = [each.id for each in RULES]


@pytest.mark.parametrize("seed", [SEEDS[0], *LATER])
@pytest.mark.parametrize("training", BROKEN, ids=lambda each: each.name)
def test_fault_is_found_first(training: Training, seed: int) -> None:
    found = diagnose(training.run(seed))
    assert [each.id for each in found][:1] in [[name] for name in training.expected]


@pytest.mark.parametrize("seed", [SEEDS[0], *LATER])
@pytest.mark.parametrize("training", HEALTHY, ids=lambda each: each.name)
def test_healthy_training_has_no_finding(training: Training, seed: int) -> None:
    assert [str(each) for each in diagnose(training.run(seed))] == []


def test_there_are_as_many_as_were_asked_for() -> None:
    assert len(BROKEN) >= 30
    assert len(HEALTHY) >= 30


def test_no_name_is_used_twice() -> None:
    """pytest imports the modules of this folder more than once, so the table itself cannot tell."""
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*/*.py")]
    written = sum(len(re.findall(r"^@(?:healthy|broken)", source, re.MULTILINE)) for source in sources)
    assert written == len(BROKEN) + len(HEALTHY)


def test_trainings_expect_rules_that_there_are() -> None:
    assert {name for each in BROKEN for name in each.expected} <= set(ids)
