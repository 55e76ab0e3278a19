"""Small models, and the pieces of training programs that the tests of silent mistakes are written with."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtap import modes

X = torch.linspace(-1, 1, 24).reshape(6, 4)


class Net(nn.Module):
    """Dropout and batch norm in an encoder, dropout in a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 1)."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]


def sgd(*nets: nn.Module) -> torch.optim.Optimizer:
    """Over all parameters that train."""
    parameters = itertools.chain.from_iterable(net.parameters() for net in nets)
    return torch.optim.SGD([each for each in parameters if each.requires_grad], lr=0.01)


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One training step, in whatever mode the net is."""
    optimizer.zero_grad()
    net(X).sum().backward()
    optimizer.step()  # the step


def evaluate(net: nn.Module) -> Tensor:
    """As in PyTorch's examples: eval mode stays."""
    net.eval()  # evaluate's eval
    with torch.no_grad():
        return net(X)  # type: ignore[no-any-return]


def found(guard: modes.Guard) -> list[tuple[str, str]]:
    """(id, where) of all it found."""
    return [(finding.id, finding.where) for finding in guard.findings]


def watch(*nets: nn.Module) -> modes.Guard:
    """A guard that only collects."""
    return modes.guard(*nets, on_violation="collect")


def line_of(text: str, file: str = __file__) -> str:
    """`name.py:line` of the one line of a file that holds this text; of this one where none is named."""
    lines = [
        n for n, line in enumerate(linecache.getlines(file), 1) if text in line and "line_of" not in line
    ]
    assert len(lines) == 1, (text, lines)
    return f"{file.rpartition('/')[2]}:{lines[0]}"


def set_mode(mode: str, nets: Sequence[nn.Module | None]) -> None:
    """The helper of clevr-iep: some are None."""
    for net in nets:
        if net is not None and mode == "train":
            net.train()
        elif net is not None:
            net.eval()
