"""train() and eval() on traced modules."""

from __future__ import annotations

import torch
from torch import nn

from tests.unit.modes.silent.nets import Net, X, found, watch


def traced_of(net: nn.Module) -> nn.Module:
    """What torch.jit.trace makes of it."""
    return torch.jit.trace(net, (X,))  # type: ignore[no-untyped-call, no-any-return]


def test_c97_a_traced_module_keeps_the_mode_of_its_trace():
    traced = traced_of(Net().eval())
    net = nn.Sequential(traced, nn.Linear(1, 1)).eval()
    with watch(net) as guard:
        net.train()
        net(X)
    assert ("mode.no_effect", "0") in found(guard)
    assert guard.findings[0].seen == "a traced module whose flag was changed from eval to train mode"


def test_a_traced_module_alone():
    traced = traced_of(Net().eval())
    with watch(traced) as guard:
        traced.train()
    assert found(guard) == [("mode.no_effect", "")]


def test_what_does_not_read_its_mode_may_be_traced():
    traced = traced_of(nn.Linear(4, 1))
    with watch(traced) as guard:
        traced.eval()
    assert found(guard) == []


def test_scripted_modules_read_their_mode():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.5)))
    with watch(scripted) as guard:
        scripted.eval()
    assert found(guard) == []
