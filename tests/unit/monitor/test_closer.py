"""When a watch looks closer, and what the parts of tensors that it looks at tell."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtap.monitor import _looks
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


def look_at(model: nn.Module, x: Tensor, layer: str = "0") -> _looks.Look:
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


class Positions(nn.Embedding):
    """As those of BART and OPT: what it is given are no rows of its weight."""

    def forward(self, given: Tensor) -> Tensor:
        return super().forward(torch.arange(given.shape[1]).expand(given.shape[:2]))


class Turned(nn.BatchNorm1d):
    """Over the last dimension."""

    def forward(self, given: Tensor) -> Tensor:
        turned: Tensor = super().forward(given.transpose(1, 2))
        return turned.transpose(1, 2)


class Spectrum(nn.Module):
    """Gives complex numbers."""

    def forward(self, given: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.fft(given)
        return spectrum


class Magnitude(nn.Module):
    """Takes them."""

    def forward(self, given: Tensor) -> Tensor:
        return given.abs()


class Embedded(nn.Module):
    """Tokens and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.out = nn.Embedding(500, 8), Positions(6, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.tokens(ids) + self.positions(ids))
        return out


ODD = {
    "an embedding that is given token ids of another": (Embedded, lambda: torch.randint(0, 500, (4, 6))),
    "a BatchNorm over another dimension": (
        lambda: nn.Sequential(nn.Linear(8, 8), Turned(8), nn.Linear(8, 2)),
        lambda: torch.randn(4, 5, 8),
    ),
    "complex outputs": (
        lambda: nn.Sequential(nn.Linear(8, 8), Spectrum(), Magnitude()),
        lambda: torch.randn(4, 8),
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_a_layer_that_cannot_be_looked_at_closer_does_not_end_the_training(what: str) -> None:
    make, batch = ODD[what]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Watch(model, optimizer) as w:
        for _ in range(12):
            model(batch()).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert w.steps == 12
        assert w.looks()


def test_an_embedding_that_grows_is_followed() -> None:
    model = nn.Sequential(nn.Embedding(4, 2))
    with Watch(model) as w:
        for rows in (4, 9):
            model[0].weight = nn.Parameter(torch.randn(rows, 2))
            model(torch.tensor([rows - 1])).sum().backward()
            w.step()
            for _ in range(4):
                w.step()
        touched = w.looks()[0].touched
    assert touched is not None
    assert np.flatnonzero(touched).tolist() == [3, 8]


def test_a_parametrization_is_not_computed_once_more() -> None:
    """One with dropout would take random numbers from the training."""

    class Dropped(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return nn.functional.dropout(weight, 0.5)

    def states(*, watched: bool) -> Tensor:
        torch.manual_seed(0)
        attention = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.utils.parametrize.register_parametrization(attention, "in_proj_weight", Dropped(), unsafe=True)
        optimizer = torch.optim.SGD(attention.parameters(), lr=0.01)
        w = Watch(attention, optimizer) if watched else None
        for _ in range(3):
            x = torch.randn(2, 3, 8)
            attention(x, x, x)[0].sum().backward()
            optimizer.step()
        if w is not None:
            w.close()
        return torch.get_rng_state()

    assert torch.equal(states(watched=True), states(watched=False))


def test_a_parameter_that_a_layer_gives_keeps_no_hooks() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.own

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.learned, self.out = Learned(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(x + self.learned(x))
            return out

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Watch(model, optimizer) as w:
        for _ in range(30):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            assert not model.learned.own._backward_hooks
        assert len(w.series("learned", "gradient")) > 10
        model(torch.randn(3, 4))
    assert not model.learned.own._backward_hooks


def test_looks_thin_out_from_the_start_and_keep_the_first_and_the_latest() -> None:
    numbers = _looks.Numbers(2)
    for step in range(0, 1000, 10):
        numbers.begin(step)
        numbers.add(1, "apart", step)
    (kept,) = numbers.of(1).values()
    steps = list(kept)
    assert all(step == value for step, value in kept.items())
    assert steps[0] == 0
    assert steps[-8:] == list(range(920, 1000, 10))
    assert len(steps) <= _looks.KEPT
    assert numbers.of(0) == {}


def test_units_that_were_dead_in_the_last_looks_are_counted() -> None:
    seen = _looks.Seen("float32", "cpu", 0)
    for dead in ([1, 1, 0], [1, 0, 1], [1, 1, 1]):
        seen.add_dead(np.array(dead, dtype=bool))
    counted = seen.dead()
    assert counted is not None
    assert counted.tolist() == [3, 1, 2]


def test_a_watched_layer_keeps_little_more_than_4_kilobytes() -> None:
    """Of Python's own memory, with closer looks; measured as the difference of two depths."""

    def kept(depth: int) -> int:
        model = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.ReLU())))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        model(torch.randn(4, 8)).sum().backward()  # gradients are no memory of the watch
        optimizer.step()
        gc.collect()
        tracemalloc.start()
        w = Watch(model, optimizer)
        for _ in range(34):  # the history is full from the first steps on; 34 is between two looks
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        w.close()
        return used

    kept(5)
    assert (kept(80) - kept(30)) / 100 < 4.4 * 1024
