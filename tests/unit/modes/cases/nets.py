"""The networks of the reproductions, and the steps that most of them share."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as everybody writes it
from torch.optim import SGD, Optimizer

from tests.unit.modes.cases.harness import Run


class Tagger(nn.Module):
    """Embedding, dropout, RNN, head; tokens (steps, batch) in, scores (steps, batch, 3) out."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.drop = nn.Dropout(0.4)
        self.rnn = kind(6, 5, num_layers=2, dropout=0.3)
        self.head = nn.Linear(5, 3)

    def forward(self, batch: Tensor) -> Tensor:
        return self.scores(self.embed(batch))

    def scores(self, embedded: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(self.drop(embedded))[0])  # forward line
        return result


class Classifier(nn.Module):
    """Linear, BatchNorm, dropout, linear; (batch, 4) in, scores (batch, 3) out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.drop(self.body(x)))
        return result


def tokens() -> Tensor:
    return torch.randint(0, 11, (7, 4))


def rows(count: int = 6) -> Tensor:
    return torch.randn(count, 4)


def train_step(run: Run, net: nn.Module) -> None:
    """One step on tokens, without an optimizer."""
    net.zero_grad()
    run.backward(net(tokens()).square().mean())  # forward line


def evaluate(net: nn.Module) -> None:
    """As most reports have it: eval() on the way in, nothing on the way out."""
    net.eval()  # eval line
    with torch.no_grad():
        net(tokens())


def step(run: Run, net: nn.Module, optimizer: Optimizer | None = None) -> None:
    """One training step on rows."""
    optimizer = optimizer or SGD(net.parameters(), 0.01)
    optimizer.zero_grad()
    run.backward(F.cross_entropy(net(rows()), torch.randint(0, 3, (6,))))
    optimizer.step()


def validate(net: nn.Module) -> None:
    """As it should not be: eval() and no way back."""
    net.eval()
    with torch.no_grad():
        net(rows())
