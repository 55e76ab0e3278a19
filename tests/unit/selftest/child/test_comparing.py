"""Nothing that is not finite, and nothing that is far away, counts as equal."""

from __future__ import annotations

import pytest
import torch

from torchtap.selftest.child.comparing import compared


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_wrong(value: float):
    """NaN compares as different from everything, on either side."""
    good = torch.ones(3)
    bad = torch.tensor([1.0, value, 1.0])
    assert compared([bad], [good], 1.0)["wrong"] >= 1
    assert compared([good], [bad], 1.0)["wrong"] >= 1
    assert compared([bad], [bad], 1.0)["wrong"] >= 1
