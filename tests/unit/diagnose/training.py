"""Small trainings to be judged: each builds model, data and loop, runs some dozen steps and returns its watch."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from torchtap.monitor._watch import Watch

Body = Callable[[], Watch]
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Training:
    """One of them."""

    name: str
    what: str
    """Its docstring's first line."""
    body: Body
    expected: tuple[str, ...]
    """What may be found first: the one right id, or the few that say the same. Empty: nothing may be found."""

    def run(self, seed: int = 0) -> Watch:
        """Train it."""
        torch.manual_seed(seed)
        return self.body()


ALL: dict[str, Training] = {}


def _kept(body: Body, expected: tuple[str, ...]) -> Body:
    what = (body.__doc__ or "").strip().splitlines()[0].rstrip(".")
    ALL[body.__name__] = Training(body.__name__, what, body, expected)
    return body


def healthy(body: Body) -> Body:
    """Nothing may be found."""
    return _kept(body, ())


def broken(*expected: str) -> Callable[[Body], Body]:
    """One of these must be found first."""
    return functools.partial(_kept, expected=expected)


def trainings(*, broken: bool) -> dict[str, Training]:
    """All of one kind, by name."""
    for module in (
        "healthy.supervised",
        "healthy.generative",
        "healthy.techniques",
        "healthy.more",
        "broken.layers",
        "broken.loops",
        "broken.numbers",
        "broken.more",
    ):
        import_module(f"tests.unit.diagnose.{module}")
    return {name: each for name, each in ALL.items() if bool(each.expected) == broken}


Batches = Callable[[int], tuple[Any, Tensor]]
"""The batch of a step: what the model is called with, and the target."""


def fit(
    model: nn.Module,
    batches: Batches,
    loss: Callable[[Any, Tensor], Tensor] = functional.cross_entropy,
    *,
    optimizer: Optimizer | None = None,
    steps: int = 60,
    after: Callable[[int], object] = lambda _step: None,
    **options: Any,
) -> Watch:
    """The usual loop."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=3e-3)
    with Watch(model, optimizer, **options) as watch:
        for step in range(steps):
            x, y = batches(step)
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            watch.log(loss=value)
            optimizer.step()
            after(step)
    return watch


def classes(features: int = 20, number: int = 4, rows: int = 32, *, spread: float = 1.0) -> Batches:
    """Clusters: each class has its own centre."""
    centres = torch.randn(number, features) * 1.5

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(number, (rows,))
        return centres[y] + spread * torch.randn(rows, features), y

    return batch


def images(channels: int = 1, size: int = 12, number: int = 4, rows: int = 16) -> Batches:
    """Noise around one picture for each class."""
    centres = torch.randn(number, channels, size, size)

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(number, (rows,))
        return centres[y] + 0.7 * torch.randn(rows, channels, size, size), y

    return batch


def numbers(features: int = 10, rows: int = 32) -> Batches:
    """Regression onto one number of mean 0."""
    weight = torch.randn(features, 1) / features**0.5

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(rows, features)
        return x, torch.sin(x @ weight) + 0.05 * torch.randn(rows, 1)

    return batch


def text(vocabulary: int = 30, rows: int = 8, length: int = 16) -> Batches:
    """Sequences in which the next token follows from the last by a fixed table, mostly."""
    table = torch.randint(vocabulary, (vocabulary,))

    def batch(_step: int) -> tuple[Tensor, Tensor]:
        tokens = [torch.randint(vocabulary, (rows,))]
        for _ in range(length):
            noise = torch.randint(vocabulary, (rows,))
            tokens.append(torch.where(torch.rand(rows) < 0.3, noise, table[tokens[-1]]))
        made = torch.stack(tokens, 1)
        return made[:, :-1], made[:, 1:]

    return batch


def token_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy over [batch, time, vocabulary]."""
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> Any:
    """Linear layers with an activation between each two."""

    def layers() -> Iterator[nn.Module]:
        for place, (before, after) in enumerate(pairwise(sizes)):
            yield nn.Linear(before, after)
            if place < len(sizes) - 2:
                yield activation()

    return nn.Sequential(*layers())
