"""The verdict over many statuses."""

from __future__ import annotations

from itertools import combinations

import pytest

from torchtap.selftest.status import Status, worst

ORDER = [Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS]


@pytest.mark.parametrize("size", range(1, 5))
def test_the_worst_status_is_the_verdict(size: int):
    """Fail, else unknown, else warn, else pass, with or without skips."""
    for statuses in combinations(ORDER, size):
        expected = min(statuses, key=ORDER.index)
        assert worst(statuses) is expected
        assert worst([*statuses, Status.SKIP]) is expected


@pytest.mark.parametrize("statuses", [[], [Status.SKIP], [Status.SKIP, Status.SKIP]])
def test_nothing_tested_proves_nothing(statuses: list[Status]):
    """Skips alone are no pass."""
    assert worst(statuses) is Status.UNKNOWN
