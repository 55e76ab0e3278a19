"""Rates and their checks, with the CPU where a GPU would be."""

from __future__ import annotations

import pytest
import torch

from torchtap.selftest.child import speed
from torchtap.selftest.child.products import LargeProduct, large_product

CPU = torch.device("cpu")


@pytest.mark.parametrize("what", ["fp32", "tf32", "fp16", "bf16"])
def test_a_large_product_is_exact_in_every_type(what: str):
    """Every sum of any of the terms is a whole number that bf16 can write; the precision set before is put back."""
    torch.set_float32_matmul_precision("medium")
    try:
        rate, wrong = speed.product_rate(CPU, what, 256)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert wrong == 0
    assert rate >= 0


def test_the_large_product_is_what_plain_integers_give():
    """The reference is computed without multiplying the matrices; here they are multiplied."""
    product = large_product(CPU, torch.float32, 300)
    exact = product.left.long() @ product.right.long()
    assert torch.equal(product.run().long(), exact)
    assert torch.equal((exact * product.weights.long()).sum(1), product.expected.long())
    assert product.left.abs().sum(1).tolist() == [256.0] * 300
    assert exact.abs().max() <= 256


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
def test_one_wrong_value_in_a_large_product_is_found(value: float):
    """One more than right, or nothing finite; also beyond the first 1024 rows."""
    product = large_product(CPU, torch.float32, 1200)
    result = product.run()
    result[1100, 7] += value
    assert product.wrong_rows(result) == 1


def test_a_wrong_product_is_told_with_its_rate(monkeypatch: pytest.MonkeyPatch):
    """Speed is worth nothing where the numbers are wrong."""
    right = LargeProduct.run
    monkeypatch.setattr(LargeProduct, "run", lambda self: right(self) + 1)
    assert speed.product_rate(CPU, "fp32", 64)[1] == 64


def test_copies_are_measured():
    """A rate of this machine's memory, and not of nothing."""
    assert 0.05 < speed.copy_rate(CPU, CPU, 32 << 20) < 10_000
