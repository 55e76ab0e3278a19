"""A guard around models whose mode cannot be read: it looks elsewhere and raises nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from torchtap import modes


class Moody(nn.Module):
    """Its mode raises when somebody asks."""

    @property
    def training(self):
        raise RuntimeError("no mode")

    @training.setter
    def training(self, value):
        pass

    def forward(self, x):
        return x


def frozen_by_jit():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()))


class Deep(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x


def deep():
    module: nn.Module = nn.Dropout()
    for _ in range(1500):
        module = Deep(module)
    return module


@pytest.mark.parametrize("make", [Moody, frozen_by_jit, deep], ids=["property", "frozen", "deep"])
def test_a_training_and_a_validation(make):
    model = nn.Sequential(nn.Linear(2, 2), make(), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1)
    with modes.guard(model, on_violation="collect") as guard:
        for _ in range(3):
            model(torch.randn(4, 2)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.randn(4, 2))
    assert isinstance(guard.findings, list)
