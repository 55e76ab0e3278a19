"""Methods as in test_methods.py, and a mistake with modes beside them: found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.unit.modes.silent.nets import Net, X, found, sgd, step, watch
from torchtap import modes

# mypy: disable-error-code="no-untyped-call"

Program = Callable[[], modes.Guard]
PROGRAMS: list[tuple[Program, str]] = []


def wrong(finding: str) -> Callable[[Program], Program]:
    """One more, and what must be found."""

    def register(program: Program) -> Program:
        PROGRAMS.append((program, finding))
        return program

    return register


def validate(net: nn.Module) -> None:
    """Without eval()."""
    with torch.no_grad():
        net(X)


class Momentum(nn.Module):
    """A trained net, and one that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = Net()
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def follow(self) -> None:
        """In place."""
        with torch.no_grad():
            for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.lerp_(other, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4) -> (n, 1)."""
        with torch.no_grad():
            self.follow()
            key = self.key(x)
        return self.query(x) - key  # type: ignore[no-any-return]


def distil(net: Momentum, optimizer: torch.optim.Optimizer) -> None:
    """One step towards the outputs of what follows."""
    with torch.no_grad():
        wanted = net.key(X)
    optimizer.zero_grad()
    (net.query(X) - wanted).square().mean().backward()
    optimizer.step()
    net.follow()


@wrong("mode.train_in_evaluation")
def target_net_woken_by_train_though_it_follows() -> modes.Guard:
    """C59: it was put in eval mode to stay so."""
    net = Momentum()
    optimizer = sgd(net.query)
    with watch(net) as guard:
        net.key.eval()
        net.train()
        for _ in range(3):
            distil(net, optimizer)
    return guard


@wrong("mode.train_in_evaluation")
def target_net_woken_before_the_guard_looks() -> modes.Guard:
    """C59: it came in eval mode."""
    net = Momentum()
    net.key.eval()
    optimizer = sgd(net.query)
    with watch(net) as guard:
        net.train()
        for _ in range(3):
            distil(net, optimizer)
    return guard


@wrong("mode.train_in_evaluation")
def momentum_encoder_and_validation_of_the_whole() -> modes.Guard:
    """The momentum encoder may run in train mode, the trained one may not."""
    net = Momentum()
    optimizer = sgd(net.query)
    with watch(net) as guard:
        for _ in range(3):
            for _ in range(2):
                step(net, optimizer)
            validate(net)
    return guard


@wrong("mode.train_in_evaluation")
def adversarial_training_and_validation() -> modes.Guard:
    """Gradients of inputs in each step; the validation stands after the steps."""
    net = Net()
    optimizer = sgd(net)

    def attacked() -> None:
        net(X.clone().requires_grad_()).sum().backward()
        net.zero_grad()

    with watch(net) as guard:
        for _ in range(2):
            for _ in range(2):
                attacked()
                step(net, optimizer)
            validate(net)
    return guard


@wrong("mode.train_in_evaluation")
def rollouts_of_an_actor_beside_a_critic() -> modes.Guard:
    """C53, with an optimizer each: many forwards before the critic's step."""
    actor, critic = Net(), Net()
    optimizers = sgd(actor), sgd(critic)
    with watch(actor, critic) as guard:
        for _ in range(3):
            for _ in range(4):
                validate(actor)
            step(critic, optimizers[1])
            step(actor, optimizers[0])
    return guard


@wrong("mode.train_in_evaluation")
def fakes_and_validation_of_the_generator() -> modes.Guard:
    """One forward a step is a fake; several after the steps are a validation."""
    generator, critic = Net(), nn.Sequential(nn.Linear(1, 4), nn.Dropout(), nn.Linear(4, 1))
    of_generator, of_critic = sgd(generator), sgd(critic)
    with watch(generator, critic) as guard:
        for _ in range(3):
            with torch.no_grad():
                fake = generator(X)
            of_critic.zero_grad()
            critic(fake).sum().backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(generator(X)).sum().backward()
            of_generator.step()
            for _ in range(2):
                validate(generator)
    return guard


@wrong("mode.changed_after_forward")
def one_helper_sets_both_modes() -> modes.Guard:
    """It has returned when the forward runs: no scope."""
    net = Net()
    optimizer = sgd(net)

    def set_training(training: bool) -> None:
        net.train() if training else net.eval()

    with watch(net) as guard:
        for _ in range(2):
            set_training(False)
            loss = net(X).sum()
            set_training(True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return guard


@wrong("mode.changed_after_forward")
def samples_of_a_function_then_train() -> modes.Guard:
    """C17: one function evals, its caller trains."""
    net = Net()
    optimizer = sgd(net)

    def sampled() -> Tensor:
        net.eval()
        return net(X)  # type: ignore[no-any-return]

    with watch(net) as guard:
        for _ in range(2):
            loss = sampled().sum()
            net.train()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return guard


@wrong("mode.changed_after_forward")
def all_in_one_method() -> modes.Guard:
    """C07, on one line and on several."""
    net = Net()
    optimizer = sgd(net)

    def learn() -> None:
        net.eval()
        value = net.forward(X); net.train()  # fmt: skip  # noqa: E702
        optimizer.zero_grad()
        value.sum().backward()
        optimizer.step()

    with watch(net) as guard:
        for _ in range(2):
            learn()
    return guard


@pytest.mark.parametrize(("program", "finding"), PROGRAMS, ids=[each.__name__ for each, _ in PROGRAMS])
def test_it_is_found(program: Program, finding: str) -> None:
    """And nothing is said of another rule's."""
    assert {each for each, _ in found(program())} == {finding}
