"""Matrix products whose exact result is known."""

from __future__ import annotations

import torch

from torchtap.selftest.child.running import Values
from torchtap.selftest.limits import PRODUCTS


def checked_product(device: torch.device, dtype: torch.dtype) -> Values:
    """A product of whole numbers, small enough that floating point must give it exactly (see limits.py).

    The reference is computed in 64-bit integers on the CPU, which no BLAS has a part in.
    """
    size, terms, entry = PRODUCTS[str(dtype).removeprefix("torch.")]
    torch.manual_seed(0)
    left = torch.randint(-entry, entry + 1, (size, terms))
    right = torch.randint(-entry, entry + 1, (terms, size))
    expected = (left @ right).to(dtype)
    got = (left.to(device, dtype) @ right.to(device, dtype)).cpu()
    return {"checked": expected.numel(), "wrong": int((got != expected).sum().item())}
