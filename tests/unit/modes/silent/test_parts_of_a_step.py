"""Forwards without gradients that are a part of the step, and evaluations that look like them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.unit.modes.silent.nets import Net, X, evaluate, found, sgd, watch

IN_EVALUATION = [("mode.train_in_evaluation", "")]


class Inside(nn.Module):
    """A part of its own forward is without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
        self.head = nn.Linear(4, 1)


class FrozenFeatures(Inside):
    """The body is trained by other steps."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 1)."""
        with torch.no_grad():
            features = self.body(x)
        return self.head(features)  # type: ignore[no-any-return]


class Recycling(Inside):
    """Several passes through one line, the last with gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 1)."""
        for last in (False, False, True):
            with torch.set_grad_enabled(torch.is_grad_enabled() and last):
                x = self.body(x)
        return self.head(x)  # type: ignore[no-any-return]


class FixedPoint(Inside):
    """Solved without gradients, then one step with them."""

    @torch.no_grad()
    def solve(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 4)."""
        z = torch.zeros_like(x)
        for _ in range(2):
            z = self.body(z + x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 1)."""
        return self.head(self.body(self.solve(x) + x))  # type: ignore[no-any-return]


def plain(net: nn.Module) -> Tensor:
    """A loss."""
    return net(X).square().mean()  # type: ignore[no-any-return]


def weighted(net: nn.Module) -> Tensor:
    """Weights by a first pass."""
    with torch.no_grad():
        weights = net(X).softmax(0)
    losses = net(X).square()
    return (weights * losses).sum()  # type: ignore[no-any-return]


def guessed(net: nn.Module) -> Tensor:
    """Targets from two perturbed inputs, in one expression."""
    with torch.no_grad():
        wanted = sum(net(X + each) for each in (0.1, 0.2)) / 2
    return (net(X) - wanted).square().mean()  # type: ignore[no-any-return]


def conditioned(net: nn.Module) -> Tensor:
    """On its own output, as in self-conditioning."""
    given = torch.zeros(6, 1)
    if given is not None:
        with torch.no_grad():
            given = net(X).detach()
    out = net(X + given)
    return out.square().mean()  # type: ignore[no-any-return]


def apart(net: nn.Module) -> Tensor:
    """By functions of its own."""
    return loss_of(net(X), targets(net))


def targets(net: nn.Module) -> Tensor:
    """Without gradients."""
    with torch.no_grad():
        wanted = net(X)
    wanted.clamp_(min=0)
    return wanted  # type: ignore[no-any-return]


def loss_of(out: Tensor, wanted: Tensor) -> Tensor:
    """Mean square."""
    return (out - wanted).square().mean()


Loss = Callable[[nn.Module], Tensor]


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        (FrozenFeatures, plain),
        (Recycling, plain),
        (FixedPoint, plain),
        (Net, weighted),
        (Net, guessed),
        (Net, conditioned),
        (Net, apart),
    ],
    ids=lambda each: each.__name__,
)
def test_what_goes_into_the_loss_is_no_evaluation(kind: type[nn.Module], loss: Loss) -> None:
    net = kind()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(3):
            net.train()
            for _ in range(2):
                optimizer.zero_grad()
                loss(net).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            evaluate(net)
    assert found(guard) == []


def test_a_peers_targets_are_no_evaluation() -> None:
    """Two nets that learn from each other in turn."""
    one, two = Net(), Net()
    pairs = [(one, two, sgd(one)), (two, one, sgd(two))]
    with watch(one, two) as guard:
        for _ in range(2):
            one.train()
            two.train()
            for _ in range(2):
                for learner, peer, optimizer in pairs:
                    with torch.no_grad():
                        wanted = peer(X)
                    optimizer.zero_grad()
                    (learner(X) - wanted).square().mean().backward()
                    optimizer.step()
            evaluate(one)
            evaluate(two)
    assert found(guard) == []


def test_one_line_for_training_and_validation_is_told_apart() -> None:
    """The variables are the same; the validation's values never reach a backward."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.train()
        for _ in range(2):
            for phase in ("train", "val"):  # no eval()
                with torch.set_grad_enabled(phase == "train"):
                    loss = net(X).sum()
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    assert found(guard) == IN_EVALUATION


def test_a_variable_that_is_assigned_anew_carries_nothing() -> None:
    """Validation at the head of the step, without eval()."""
    net, seen = Net(), []
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            for _ in range(2):
                with torch.no_grad():
                    out = net(X)
                seen.append(out.mean())
                out = net(X)
                optimizer.zero_grad()
                out.sum().backward()
                optimizer.step()
    assert found(guard) == IN_EVALUATION


def test_a_frozen_part_in_train_mode_is_told_without_eval_mode_around_the_step() -> None:
    """`with modes.eval_mode(model):` there would take the gradients away."""
    net = FrozenFeatures()
    net.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).requires_grad_(False)
    optimizer = sgd(net)
    with watch(net) as guard:
        net.train()
        for _ in range(3):
            optimizer.zero_grad()
            plain(net).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert found(guard) == [("mode.train_in_evaluation", "body")]
    (finding,) = guard.findings
    assert finding.seen.startswith("1 Dropout in train mode in each training step")
    assert "modes.eval_mode" not in finding.remedy
