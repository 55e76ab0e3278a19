"""A convolution and an LSTM against their references, with the CPU where a GPU would be."""

from __future__ import annotations

import torch

from torchtap.selftest.child.comparing import compared
from torchtap.selftest.child.networks import convolutions, lstm_and_formula, lstm_with_and_without_cudnn
from torchtap.selftest.limits import LSTM_TOLERANCE

CPU = torch.device("cpu")


def test_the_lstm_agrees_with_its_formula_far_below_the_tolerance():
    """Outputs and all gradients: of the input and of four weights."""
    got, expected = lstm_and_formula(CPU)
    assert len(got) == 6
    assert compared(got, expected, LSTM_TOLERANCE / 100)["wrong"] == 0


def test_a_wrong_gradient_is_found():
    """Only one value of one gradient."""
    got, expected = lstm_and_formula(CPU)
    got[1][0, 0, 0] += 1
    assert compared(got, expected, LSTM_TOLERANCE)["wrong"] == 1


def test_the_gpus_computations_run_here_on_the_cpu():
    """The same code with another device: both sides agree, and cuDNN's switches are put back."""
    before = (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32)
    assert compared(*convolutions(CPU), 1e-6)["wrong"] == 0
    assert compared(*lstm_with_and_without_cudnn(CPU), 1e-6)["wrong"] == 0
    assert (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32) == before
