"""Compare tensors with their references, so that nothing that is not finite can pass."""

from __future__ import annotations

import torch

from torchtap.selftest.child.running import Values


def compared(got: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> Values:
    """How many values differ by more than `tolerance` of the largest expected one; NaN and infinity always do."""
    checked = wrong = 0
    for one, other in zip(got, expected, strict=True):
        one, other = one.cpu().double(), other.cpu().double()  # noqa: PLW2901
        finite = one.isfinite() & other.isfinite()
        near = finite & ((one - other).abs() <= tolerance * other.abs().max())
        checked += near.numel()
        wrong += int((~near).sum().item())
    return {"checked": checked, "wrong": wrong}
