"""Small watched trainings for pictures and tables."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.monitor import WatchWarning, watch


def net(depth: int = 3, width: int = 8, activation: type[nn.Module] = nn.ReLU) -> Any:
    """`depth` linear layers of 4 inputs and 1 output, with activations between."""
    torch.manual_seed(0)
    sizes = [4, *[width] * (depth - 1), 1]
    layers = [each for pair in pairwise(sizes) for each in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def batch(step: int) -> Tensor:
    """A different one each step."""
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(step))


def trained(
    model: nn.Module, steps: int = 4, *, nan_at: int | None = None, lr: float = 0.05, **options
) -> Any:
    """A closed watch of a training of so many steps; from step `nan_at` on the input holds a NaN."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    options.setdefault("parameters_every", 1)
    with warnings.catch_warnings(), watch(model, optimizer, **options) as w:
        warnings.simplefilter("ignore", WatchWarning)
        for step in range(steps):
            x = batch(step)
            y = x.sum(1, keepdim=True)
            if nan_at is not None and step >= nan_at:
                x[0, 0] = torch.nan
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            w.log(loss=loss)
            loss.backward()
            optimizer.step()
    return w
