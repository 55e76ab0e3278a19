"""A probability that an evaluation wrote to 0 and nobody wrote back."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.unit.modes.silent.nets import Net, X, evaluate, found, sgd, step, watch
from torchtap import modes


class Attention(nn.Module):
    """C94: in eval mode it forgets its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.dropout_p = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 4) -> (n, 1)."""
        if not self.training:
            self.dropout_p = 0.0
        return functional.dropout(self.linear(x), self.dropout_p, self.training)


def set_p(net: Net, p: float) -> None:
    """Of the head's dropout."""
    dropout = net.head[0]
    assert isinstance(dropout, nn.Dropout)
    dropout.p = p


def test_c94_the_eval_branch_writes_the_probability():
    net = nn.Sequential(Attention())
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            step(net, optimizer)
            evaluate(net)
    assert found(guard) == [("mode.dropout_changed", "0")]
    assert guard.findings[0].seen.startswith("dropout_p is 0 at the training step at ")
    assert "was 0.1 before eval() at" in guard.findings[0].seen


def test_an_evaluation_that_writes_it_from_outside():
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        step(net, optimizer)
        net.eval()
        set_p(net, 0.0)
        with torch.no_grad():
            net(X)
        net.train()
        step(net, optimizer)
    assert found(guard) == [("mode.dropout_changed", "head.0")]


def test_a_schedule_and_a_fix_that_restores_are_well():
    net = Net()
    rnn = nn.LSTM(4, 3, num_layers=2, dropout=0.5)
    optimizer = sgd(net)
    with watch(net, rnn) as guard:
        for p in (0.5, 0.3, 0.0):
            set_p(net, p)
            step(net, optimizer)
            with modes.differentiable_eval(rnn):
                pass
    assert found(guard) == []


class Switches(nn.Module):
    """C94: its train() forgets its dropout, before the mode changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.drop = 0.1

    def train(self, mode: bool = True) -> Switches:
        """Writes first."""
        if not mode:
            self.drop = 0.0
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 4) -> (n, 1)."""
        return functional.dropout(self.linear(x), self.drop, self.training)


def test_an_overridden_train_that_writes_it():
    net = nn.Sequential(Switches())
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            step(net, optimizer)
            evaluate(net)
    assert found(guard) == [("mode.dropout_changed", "0")]


class Quiet(Attention):
    """C94, and nothing of PyTorch's is called without dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 4) -> (n, 1)."""
        if not self.training:
            self.dropout_p = 0.0
        return self.linear(x) if self.dropout_p == 0.0 else functional.dropout(self.linear(x), self.dropout_p)


def test_an_eval_branch_after_which_no_dropout_is_called():
    net = nn.Sequential(Quiet())
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            step(net, optimizer)
            evaluate(net)
    assert found(guard) == [("mode.dropout_changed", "0")]


def test_an_evaluation_that_writes_it_in_place_of_eval():
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for epoch in range(2):
            step(net, optimizer)
            if epoch == 0:
                set_p(net, 0.0)
                with torch.no_grad():
                    net.head(torch.ones(2, 8))
    assert found(guard) == [("mode.dropout_changed", "head.0")]
    assert "before the last evaluation" in guard.findings[0].seen
