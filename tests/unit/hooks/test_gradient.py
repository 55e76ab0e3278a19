"""`on_gradient`: the gradient with respect to a tensor, and nothing changed by looking."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import gc
import io
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn

from torchtap.hooks import on_gradient


def test_the_gradient_is_given_and_what_is_returned_is_not_used() -> None:
    x, seen = torch.ones(2, requires_grad=True), list[Tensor]()

    def look(gradient: Tensor) -> Tensor:
        seen.append(gradient)
        return gradient * 100

    on_gradient(x * 2, look)
    y = x * 3
    on_gradient(y, look)
    y.sum().backward()
    assert [each.tolist() for each in seen] == [[1, 1]]
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_pitfall_02_it_is_of_the_value_before_an_operation_in_place_that_follows() -> None:
    x, seen = torch.tensor([-1.0, 2.0], requires_grad=True), list[Tensor]()
    y = x * 1
    on_gradient(y, seen.append)
    y.relu_()
    (y * 5).sum().backward()
    assert seen[0].tolist() == [0, 5]


def test_pitfall_31_what_requires_no_gradient_is_left_alone() -> None:
    assert on_gradient(torch.ones(1), print) is None
    with torch.no_grad():
        assert on_gradient(torch.ones(1, requires_grad=True) * 2, print) is None


def test_pitfall_38_two_backwards_call_it_twice() -> None:
    x, seen = torch.ones(1, requires_grad=True), list[Tensor]()
    y = x * 2
    on_gradient(y, seen.append)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert len(seen) == 2


def test_the_handle_takes_it_off_a_leaf() -> None:
    x, seen = torch.ones(1, requires_grad=True), list[Tensor]()
    handle = on_gradient(x, seen.append)
    assert handle is not None
    handle.remove()
    (x * 2).sum().backward()
    assert seen == []


def test_pitfall_23_a_hooked_output_is_saved_without_a_warning() -> None:
    leaf = torch.ones(1, requires_grad=True)
    on_gradient(leaf, print)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(leaf, io.BytesIO())


def test_pitfall_25_the_output_goes_with_its_last_reference() -> None:
    gc.disable()
    try:
        y = torch.ones(2, requires_grad=True) * 2
        on_gradient(y, lambda gradient: None)
        gone = weakref.ref(y)
        del y
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_inside_a_transform_nothing_is_hooked(transform: str) -> None:
    layer, handles = nn.Linear(2, 2), list[object]()

    def run(x: Tensor) -> Tensor:
        y = layer(x)
        handles.append(on_gradient(y, print))
        out: Tensor = y.sum()
        return out

    getattr(torch.func, transform)(run)(torch.ones(2, 2))
    assert handles == [None]
