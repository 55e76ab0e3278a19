"""What is said of models that torch.compile has compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.modes.silent.nets import X, found, watch
from torchtap.modes import Severity


class AlwaysOn(nn.Module):
    """Drops in both modes, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 4) -> (n, 1)."""
        return functional.dropout(self.fc(x), 0.5, True)


def compiled(net: nn.Module, *, in_place: bool) -> nn.Module:
    """By Dynamo alone, without a C++ compiler."""
    if in_place:
        net.compile(backend="eager")
        return net
    return torch.compile(net, backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize("in_place", [False, True])
def test_unseen_forwards_are_an_info(in_place: bool) -> None:
    """Silence would be taken for good."""
    net = compiled(nn.Sequential(nn.Linear(4, 1), nn.Dropout()), in_place=in_place)
    with watch(net) as guard:
        pass
    assert found(guard) == [("module.compiled", "")]
    assert guard.findings[0].severity is Severity.INFO
    assert "not seen" in guard.findings[0].seen


def test_a_part_that_is_compiled_inside_the_guard() -> None:
    net = nn.Sequential(nn.Linear(4, 1), nn.Dropout())
    with watch(net) as guard:
        compiled(net[1], in_place=True)
    assert found(guard) == [("module.compiled", "1")]


def test_its_remedy_shows_what_was_not_seen() -> None:
    net = compiled(nn.Sequential(nn.Linear(4, 1), nn.Dropout()), in_place=False)
    with watch(net) as guard, torch.compiler.set_stance("force_eager"):
        net(X).sum().backward()
        with torch.no_grad():
            net(X)
    assert "mode.train_in_evaluation" in [each.id for each in guard.findings]


def test_dynamos_graph_is_no_stranger_in_the_model() -> None:
    """It says train mode always."""
    net = compiled(AlwaysOn(), in_place=False)
    with watch(net) as guard:
        net.eval()
        with torch.no_grad():
            net(X)
    assert found(guard) == [("module.compiled", "")]
