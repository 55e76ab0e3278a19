"""Products whose exact result is known, on the CPU in place of a GPU."""

from __future__ import annotations

import pytest
import torch

from torchtap.selftest.child.products import checked_product
from torchtap.selftest.limits import PRODUCTS

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_product_is_exact_in_every_type(name: str):
    """No tolerance: its numbers are whole, and every partial sum can be written in the type."""
    dtype = getattr(torch, name)
    size, terms, entry = PRODUCTS[name]
    assert checked_product(CPU, dtype) == {"checked": size * size, "wrong": 0}
    largest = torch.tensor(float(terms * entry * entry))
    assert torch.tensor([largest - 1, largest]).to(dtype).diff().item() == 1  # neighbours are told apart


def test_one_wrong_value_in_a_product_is_found(monkeypatch: pytest.MonkeyPatch):
    """A multiplier that is off by one in one place."""
    real = torch.Tensor.__matmul__

    def broken(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = real(self, other)
        if self.is_floating_point():
            result[3, 5] += 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", broken)
    assert checked_product(CPU, torch.float32)["wrong"] == 1
