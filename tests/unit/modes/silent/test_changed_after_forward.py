"""train() after the forward and before backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.modes.silent.nets import Net, X, found, line_of, sgd, watch
from torchtap import modes

FOUND = [("mode.changed_after_forward", "")]


def test_c07_train_before_backward_is_too_late():
    """Names the forward and the train()."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.eval()
        out = net.forward(X)  # c07 forward
        net.train()  # c07 train
        out.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert found(guard) == FOUND
    assert line_of("# c07 forward", __file__) in guard.findings[0].seen
    assert line_of("# c07 train", __file__) in guard.findings[0].seen


def test_eval_after_the_forward_is_well():
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        out = net(X)
        net.eval()
        out.sum().backward()
        optimizer.step()
        net.train()
    assert found(guard) == []


def test_an_evaluation_with_gradients_whose_outputs_are_dropped_is_well():
    """The last forward before backward ran in train mode."""
    net = Net()
    with watch(net) as guard:
        net.eval()
        net(X)
        net.train()
        net(X).sum().backward()
    assert found(guard) == []


def test_backward_of_another_model_is_well():
    net, other = Net(), Net()
    with watch(net, other) as guard:
        net.eval()
        net(X)
        net.train()
        other(X).sum().backward()
    assert found(guard) == []


@pytest.mark.parametrize("cudnn", [True, False])
def test_an_rnn_that_cudnn_refuses_is_told_of_by_the_guard_itself(cudnn: bool):
    rnn = nn.LSTM(4, 3, num_layers=2, dropout=0.5)
    with watch(rnn) as guard, torch.backends.cudnn.flags(enabled=cudnn):
        rnn.eval()
        out, _ = rnn(X)
        rnn.train()
        out.sum().backward()
    ids = [finding.id for finding in guard.findings]
    assert ids == (["rnn.eval_backward"] if cudnn else ["mode.changed_after_forward"])


def test_gradients_of_inputs_are_no_training():
    net = Net()
    x = X.clone().requires_grad_()
    with watch(net) as guard:
        with modes.preserve_modes(net):
            net.eval()
            out = net(x)
        torch.autograd.grad(out.sum(), [x])
    assert found(guard) == []


@pytest.mark.parametrize("scope", [modes.differentiable_eval, modes.preserve_modes])
def test_backward_after_a_fix_has_put_the_modes_back_is_well(scope):
    """As every remedy says: the forward inside, the backward anywhere."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net(X).sum().backward()
        optimizer.step()
        with scope(net):
            if scope is modes.preserve_modes:
                net.eval()
            out = net(X)
        out.sum().backward()
        optimizer.step()
    assert found(guard) == []
