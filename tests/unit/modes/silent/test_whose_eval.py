"""Whose eval() or train() it was: another model's, another thread's, a library's, an attack's."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from tests.unit.modes.silent.nets import Net, X, evaluate, found, line_of, sgd, step, watch
from torchtap import modes

Between = Callable[[nn.Module, nn.Module], None]


def _eval(_: nn.Module, other: nn.Module) -> None:
    other.eval()


def _late(_: nn.Module, other: nn.Module) -> None:
    for module in other.modules():
        module.training = False


def _copy(net: nn.Module, _: nn.Module) -> None:
    copy.deepcopy(net).eval()


def _eval_mode(_: nn.Module, other: nn.Module) -> None:
    with modes.eval_mode(other):
        other(X)


def _differentiable(_: nn.Module, other: nn.Module) -> None:
    with modes.differentiable_eval(other):
        other(X)


def _new(_: nn.Module, __: nn.Module) -> None:
    Net().eval()


def _elsewhere(net: nn.Module, _: nn.Module) -> None:
    thread = threading.Thread(target=lambda: net.eval().train())
    thread.start()
    thread.join()


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize(
    "between", [_eval, _late, _copy, _eval_mode, _differentiable, _new, _elsewhere], ids=lambda f: f.__name__
)
def test_an_eval_between_forward_and_backward_that_is_not_this_models(
    between: Between, guarded: bool
) -> None:
    net, other = Net(), Net()
    optimizer = sgd(net)
    with watch(net, *[other] * guarded) as guard:
        for _ in range(2):
            net.train()
            loss = net(X).sum()
            other.train()
            between(net, other)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            evaluate(net)
    assert "mode.train_in_evaluation" not in [each.id for each in guard.findings]


def test_an_epoch_whose_batches_are_all_skipped_is_no_evaluation() -> None:
    """A loss that is not finite, say."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for epoch in range(3):
            net.train()
            loss = net(X).sum()
            if epoch != 1:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            evaluate(net)
    assert found(guard) == []


def test_update_bn_is_nobodys_wish_for_train_mode() -> None:
    """PyTorch's recipe leaves the eval() after it to the reader."""
    net = Net()
    averaged = AveragedModel(net)
    optimizer = sgd(net)
    with watch(net, averaged) as guard:
        for _ in range(2):
            step(net, optimizer)
            averaged.update_parameters(net)
        update_bn([X, X], averaged)
        with torch.no_grad():
            averaged(X)
    assert ("mode.train_in_evaluation", "AveragedModel") in found(guard)


def test_update_bn_and_eval() -> None:
    net = Net()
    averaged = AveragedModel(net)
    optimizer = sgd(net)
    with watch(net, averaged) as guard:
        step(net, optimizer)
        averaged.update_parameters(net)
        update_bn([X, X], averaged)
        evaluate(averaged)
    assert found(guard) == []


def _list(net: nn.Module) -> None:
    net.train()
    torch.stack([net(X) for _ in range(2)])


def _generator(net: nn.Module) -> None:
    net.train()
    torch.stack(tuple(net(X) for _ in range(2)))


def _lambda(net: nn.Module) -> None:
    net.train()
    once: Callable[[], object] = lambda: net(X)  # noqa: E731
    once()


def _inner(net: nn.Module) -> None:
    def once() -> None:
        net(X)

    net.train()
    once()


@pytest.mark.parametrize("sample", [_list, _generator, _lambda, _inner], ids=lambda f: f.__name__)
def test_monte_carlo_dropout_after_a_validation(sample: Callable[[nn.Module], None]) -> None:
    net = nn.Sequential(nn.Linear(4, 1), nn.Dropout())
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            step(net, optimizer)
            evaluate(net)
            with torch.no_grad():
                sample(net)
            net.eval()
    assert found(guard) == []


def attack(net: nn.Module) -> torch.Tensor:
    """Perturbed inputs, made in eval mode."""
    net.eval()  # attack's eval
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    return X if x.grad is None else X + 0.1 * x.grad.sign()


def attack_mended(net: nn.Module) -> torch.Tensor:
    """As the remedy says."""
    with modes.differentiable_eval(net):
        x = X.clone().requires_grad_()
        net(x).sum().backward()
    return X if x.grad is None else X + 0.1 * x.grad.sign()


def adversarial(attacks: Callable[[nn.Module], torch.Tensor]) -> modes.Guard:
    """Training on what an attack makes."""
    net = Net()
    optimizer = sgd(net)
    net.train()
    with watch(net) as guard:
        for _ in range(2):
            x = attacks(net)
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
    return guard


def test_an_attack_that_leaves_eval_mode() -> None:
    guard = adversarial(attack)
    assert found(guard) == [("mode.not_restored", "")]
    (finding,) = guard.findings
    assert line_of("# attack's eval", __file__) in finding.cause
    assert "in attack(), `with modes.differentiable_eval(model):`" in finding.remedy
    assert found(adversarial(attack_mended)) == []


def test_eval_in_the_loop_is_named() -> None:
    """No loader left it so, and train() before the loop would not help."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.eval()  # in the loop
            step(net, optimizer)
    assert found(guard)[0] == ("mode.trained_in_eval", "")
    assert line_of("# in the loop", __file__) in guard.findings[0].cause
    assert "loader" not in guard.findings[0].cause
    assert "before the training loop" not in guard.findings[0].remedy


def test_two_calls_of_train_in_one_line_are_two_wishes() -> None:
    """Mean Teacher: the teacher follows in train mode, as published."""
    student, teacher = Net(), Net().requires_grad_(False)
    optimizer = sgd(student)
    with watch(student, teacher) as guard:
        for _ in range(3):
            student.train(); teacher.train()  # noqa: E702  # fmt: skip
            step(student, optimizer)
    assert "mode.frozen_in_train" not in [each.id for each in guard.findings]


class _Hidden(torch.autograd.Function):
    """Runs modules without gradients, and again in its backward, as reversible nets do."""

    @staticmethod
    def forward(ctx, x, net):
        ctx.net = net
        ctx.save_for_backward(x)
        return net(x)

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            ctx.net(x).backward(*grads)
        return x.grad, None


def test_a_custom_functions_forward_is_a_part_of_training() -> None:
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            for _ in range(2):
                optimizer.zero_grad()
                out = _Hidden.apply(X.clone().requires_grad_(), net)
                out.sum().backward()
                optimizer.step()
            evaluate(net)
    assert found(guard) == []
