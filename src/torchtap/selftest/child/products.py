"""Matrix products whose exact result is known."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from torchtap.selftest.child.running import Values
from torchtap.selftest.limits import LARGE_PRODUCT_TERMS, PRODUCTS


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


@dataclass(frozen=True, slots=True)
class LargeProduct:
    """A product of square matrices that is large enough to measure speed, and exact in every type.

    Each row of `left` holds 256 entries of 1 or -1, all others are 0; `right` is 1 and -1. So every sum of any of the
    terms is a whole number of at most 256, which bf16 can write. `expected` are the products of the result's rows with
    `weights`, computed in 64-bit integers on the CPU without multiplying the matrices: left (right weights).
    """

    left: torch.Tensor
    right: torch.Tensor
    weights: torch.Tensor
    expected: torch.Tensor

    def run(self) -> torch.Tensor:
        """The product, on the device."""
        return self.left @ self.right

    def wrong_rows(self, product: torch.Tensor) -> int:
        """How many rows hold a wrong value. NaN and infinity are always wrong; errors that cancel each other are not.

        Summed on the device in fp64, without a matrix product.
        """
        parts = torch.split(product, 1024)  # so that the fp64 copies stay small
        sums = torch.cat([(rows.double() * self.weights).sum(1) for rows in parts])
        return int((sums != self.expected).sum().item())


def large_product(device: torch.device, dtype: torch.dtype, size: int) -> LargeProduct:
    """Two matrices of `size` x `size` on the device; the same numbers at every call.

    >>> product = large_product(torch.device("cpu"), torch.float32, 64)
    >>> product.wrong_rows(product.run())
    0
    """
    left, right, weights, expected = _operands(size)
    return LargeProduct(
        left=left.to(device).to(dtype),
        right=right.to(device).to(dtype),
        weights=weights.to(device).double(),
        expected=expected.to(device).double(),
    )


@functools.lru_cache(maxsize=1)
def _operands(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Left, right, weights and expected, as whole numbers on the CPU. Kept, because every GPU and type uses them."""
    torch.manual_seed(0)
    terms = min(LARGE_PRODUCT_TERMS, size)
    # Evenly spread over the row, and moved on from row to row: every column is used, none twice in a row.
    places = (torch.arange(size)[:, None] * 7 + torch.arange(terms) * (size // terms)) % size
    left = torch.zeros(size, size, dtype=torch.int8)
    left.scatter_(1, places, torch.randint(0, 2, (size, terms), dtype=torch.int8) * 2 - 1)
    right = torch.randint(0, 2, (size, size), dtype=torch.int8) * 2 - 1
    weights = torch.randint(1, 1001, (size,))
    inner = (right.int() * weights.int()).sum(1, dtype=torch.int64)
    expected = (left.int() * inner.int()).sum(1, dtype=torch.int64)
    return left, right, weights, expected
