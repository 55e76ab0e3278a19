"""Modules are told apart by identity: users define `__eq__`, and then Python gives them no hash."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.modes.silent.nets import X, watch
from torchtap.modes._observer import OBSERVER
from torchtap.modes._walk import all_parameters, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent import RULES
from torchtap.modes.silent._training import frozen_parts

# mypy: disable-error-code="no-untyped-call"


class Equal(nn.Module):
    """As a dataclass: all of them are equal, and none has a hash. PyTorch's own parameters() raises for it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 1)
        self.dropout_p = 0.5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = None  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 4) -> (n, 1)."""
        x = functional.dropout(self.drop(self.norm(self.inner(x))), self.dropout_p, self.training)
        return self.head(x)  # type: ignore[no-any-return]


def trained(net: Equal, optimizer: Any) -> None:
    optimizer.zero_grad()
    net(X).sum().backward()
    optimizer.step()


def test_parameters_and_modules_are_found_without_a_hash() -> None:
    net = Equal()
    with pytest.raises(TypeError, match="unhashable"):
        list(net.parameters())
    assert len(all_parameters(net)) == 6
    assert [type(each) for each in modules(net)] == [Equal, nn.Linear, nn.BatchNorm1d, nn.Dropout, nn.Linear]
    assert frozen_parts(net, {id(each) for each in all_parameters(net)}) == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_goes_through_a_training_of_unhashable_models(rule: Any) -> None:
    """Entered, trained, evaluated with and without mistakes, left. The rule alone, beside no guard."""
    nets = [Equal(), Equal()]
    findings: list[Any] = []

    class Reporter:
        def report(self, finding: Any) -> None:
            findings.append(finding)

    class These(Watched):
        @property
        def models(self) -> list[nn.Module]:
            return [*nets]

        def path(self, module: nn.Module) -> str | None:
            return type(module).__name__

    reporter, other = Reporter(), nn.Identity()
    watched = These([other], reporter.report)
    listener = rule(watched)
    with watch(other):  # opens the doors
        for net in nets:
            for module in modules(net):
                watched.entry[module] = module.training
        listener.entered()
        OBSERVER.listen(listener)
        try:
            optimizers = [torch.optim.SGD(all_parameters(net), 0.01) for net in nets]
            for _ in range(3):
                for net, optimizer in zip(nets, optimizers, strict=True):
                    trained(net, optimizer)
                    with torch.no_grad():
                        net(X)
                    net.eval()
                    with torch.no_grad():
                        net(X)
                    late = net(X)
                    net.training = True
                    net.train()
                    late.sum().backward()
                    net.norm.requires_grad_(False)
        finally:
            OBSERVER.unlisten(listener)
        listener.left()


class Alike(nn.Sequential):
    """Equal, and with one hash for all: sets take them for one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 1


def test_equal_parts_are_not_taken_for_one_another() -> None:
    """One is frozen, the other one trains."""
    frozen, part = Alike(nn.Linear(4, 4), nn.Dropout()), Alike(nn.Linear(4, 4), nn.Dropout())
    frozen.requires_grad_(False)
    net = nn.ModuleList([frozen, part])
    ids = frozen_parts(net, {id(each) for each in all_parameters(net)})
    assert ids == {id(each) for each in modules(frozen)}
