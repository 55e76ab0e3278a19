"""What tests/gpu/test_cudnn_truth.py asks of the real cuDNN, asked of the emulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.unit.modes.situations import KINDS
from tests.unit.modes.truths import TOLERANCE, TRUTHS, compare_with_emulation
from torchtap import modes


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.__name__)
def test_truths_hold_under_emulation(truth: Callable[[str], None]) -> None:
    with modes.emulate_cudnn():
        truth("cpu")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_emulated_numbers_are_those_of_a_plain_cpu(kind: str, dtype: torch.dtype) -> None:
    compare_with_emulation("cpu", kind, dtype)
