"""When a watch looks closer, and what the parts of tensors that it looks at tell."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtap.monitor import _units
from torchtap.monitor._closer import Closer
from torchtap.monitor._parameters import SAMPLE, _sample
from torchtap.monitor._units import Units
from torchtap.monitor._watch import Watch


@pytest.mark.parametrize(
    ("every", "steps", "looked"),
    [
        (1, 31, [0, 5, 10, 20, 30]),
        (10, 301, [0, 50, 100, 200, 300]),
        (1, 161, [0, 5, *range(10, 101, 10), 120, 140, 160]),
    ],
)
def test_looks_are_seldom_and_among_the_measured_steps(every: int, steps: int, looked: list[int]) -> None:
    closer = Closer(nn.Linear(1, 1), [], None, every)
    assert [step for step in range(steps) if closer._looks(step)] == looked


def look_at(model: nn.Module, x: Tensor, layer: str = "0") -> _units.Look:
    """After one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Watch(model, optimizer) as w:
        model(x).sum().backward()
        optimizer.step()
        assert w._closer is not None
        units: Units = w._closer.units
        units.read()
    (number,) = (number for number, each in enumerate(w.layers) if each.name == layer)
    return units.looks()[number]


@pytest.mark.parametrize("place", [0, 1, 63, 64, 4095])
def test_rows_that_differ_in_a_single_value_are_apart(place: int) -> None:
    """Wherever it is: among 4096 values only some are compared at first."""
    x = torch.ones(4, 4096)
    x[2, place] = 3
    look = look_at(nn.Sequential(nn.Flatten(), nn.Linear(4096, 1)), x)
    assert list(look.number("apart")) == [pytest.approx(2 / 3)]


def test_equal_rows_are_not() -> None:
    look = look_at(nn.Sequential(nn.Flatten(), nn.Linear(4096, 1)), torch.ones(4, 4096))
    assert list(look.number("apart")) == [0]


@pytest.mark.parametrize(
    "shape", [(8, 3, 64, 64), (8, 3, 5000), (4096, 3), (2, 3, 16, 16, 16), (1, 3, 300, 2)]
)
def test_a_batch_is_judged_by_a_part_that_is_like_the_whole(shape: tuple[int, ...]) -> None:
    """Also where even and odd places differ, as after a transposed convolution."""
    torch.manual_seed(0)
    x = torch.randn(shape) + torch.arange(shape[-1]) % 2 * 8
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)](
        3, momentum=1.0
    )
    norm(x)  # the running statistics are those of the whole batch now
    numbers = look_at(nn.Sequential(norm), x).numbers
    assert numbers["mean_off"][0] < 0.1
    assert numbers["variance_off"][0] < 0.2


@pytest.mark.parametrize(
    "shape", [(3,), (1024,), (1500,), (2047,), (2048,), (1000, 1000), (7, 5, 3, 11), (4096, 1)]
)
def test_a_sample_of_a_parameter_is_as_large_as_it_can_be_and_reaches_to_its_end(
    shape: tuple[int, ...],
) -> None:
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    sample = _sample(whole).flatten()
    assert min(SAMPLE, whole.numel()) // 2 <= sample.numel() <= SAMPLE
    assert len(set(sample.tolist())) == len(sample)
    assert sample[0] == 0
    assert sample[-1] >= 0.98 * whole.numel() - 1
