"""LSTM and GRU of two layers, both ways, with the CPU where a GPU would be."""

from __future__ import annotations

import pytest
import torch

from torchtap.selftest.child import recurrent

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", recurrent.KINDS)
@pytest.mark.parametrize("amp", [False, True])
def test_both_ways_of_computing_agree(kind: str, amp: bool):
    """Outputs and the gradients of the input and of 16 weights; in mixed precision within its own tolerance."""
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN has no LSTM in bf16 on every CPU
        said = recurrent.compared_network(CPU, kind, amp=amp)
    assert said["wrong"] == 0
    assert said["checked"] > 100_000


def test_mixed_precision_stays_far_below_its_tolerance(monkeypatch: pytest.MonkeyPatch):
    """Measured: bf16 differs by at most 2 % of the largest value; and it is mixed precision that was tested."""
    monkeypatch.setattr(recurrent, "AMP_TOLERANCE", 0.03)
    with torch.backends.mkldnn.flags(enabled=False):
        assert recurrent.compared_network(CPU, "GRU", amp=True)["wrong"] == 0
        monkeypatch.setattr(recurrent, "AMP_TOLERANCE", 1e-3)
        assert recurrent.compared_network(CPU, "GRU", amp=True)["wrong"] > 0
