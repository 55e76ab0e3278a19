"""Measuring changes nothing: not the tensor, not autograd, no mode, no random state."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from tests.unit.monitor.stats.conftest import Way
from tests.unit.monitor.stats.reference import agree, float_cases

PLACES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64 by default": lambda: _default_dtype(torch.float64),
}


class _default_dtype:  # noqa: N801 - reads like the contexts beside it
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self.before)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", ["long", "NaN first", "half overflows in sums", "tiny"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_same_numbers_in_every_mode(way: Way, place: str, case: str, dtype: torch.dtype) -> None:
    tensor = float_cases()[case].to(dtype)
    with PLACES[place]():
        made_there = tensor.clone()
        rows = way(tensor), way(made_there)
    for row in rows:
        agree(row, tensor)


def test_the_tensor_keeps_bytes_version_and_graph(way: Way) -> None:
    weight = torch.rand(70, requires_grad=True)
    output = weight.relu() * 2
    before, version, node = output.detach().clone(), output._version, output.grad_fn
    state = torch.get_rng_state()
    way(output)
    assert torch.equal(output, before)
    assert (output._version, output.grad_fn, output.requires_grad) == (version, node, True)
    assert torch.equal(torch.get_rng_state(), state)
    output.sum().backward()
    assert torch.equal(weight.grad, torch.full((70,), 2.0))  # type: ignore[arg-type]


def test_grad_mode_and_inference_mode_are_left_alone(way: Way) -> None:
    for place in (PLACES["plain"], PLACES["no_grad"], PLACES["inference_mode"]):
        with place():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            way(torch.rand(5))
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_a_model_in_training_ends_bitwise_equal(way: Way) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
    watched = copy.deepcopy(plain)

    def train(model: nn.Module, look: Callable[[Tensor], object]) -> Tensor:
        torch.manual_seed(1)

        def hook(gradient: Tensor) -> None:
            look(gradient)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            output = model(torch.rand(4, 8))
            look(output)
            output.register_hook(hook)
            optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                look(parameter)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(train(plain, lambda _: None), train(watched, way))
