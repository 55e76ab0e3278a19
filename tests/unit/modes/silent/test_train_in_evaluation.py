"""Dropout and batch norm in train mode in an evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.modes.silent.nets import Net, X, evaluate, found, line_of, sgd, step, watch

FOUND = [("mode.train_in_evaluation", "")]


def validate(net: nn.Module) -> torch.Tensor:
    """Without eval()."""
    with torch.no_grad():
        return net(X)  # type: ignore[no-any-return]  # validate's forward


def test_c50_no_eval_at_all():
    """The text tells of dropout and of moving statistics, and names the forward."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()  # c50
            step(net, optimizer)
            validate(net)
    assert found(guard) == FOUND
    finding = guard.findings[0]
    assert finding.seen == (
        "2 Dropout, 1 BatchNorm1d in train mode in the forward without gradients at "
        f"{finding.seen.partition(' at ')[2].partition(';')[0]}; the running statistics of 1 BatchNorm1d move"
    )
    assert line_of("# validate's forward", __file__) in finding.seen
    assert line_of("# c50", __file__) in finding.cause


def test_inference_mode_is_an_evaluation_too():
    net = Net()
    with watch(net) as guard:
        step(net, sgd(net))
        with torch.inference_mode():
            net(X)
    assert found(guard) == FOUND


def test_c49_train_a_few_lines_after_eval():
    net = Net()
    with watch(net) as guard:
        step(net, sgd(net))
        net.eval()
        net.train()  # c49
        with torch.no_grad():
            net(X)
    assert found(guard) == FOUND
    assert line_of("# c49", __file__) in guard.findings[0].cause


def test_c52_an_evaluator_that_restores_and_then_samples_without_eval():
    """What restored it is not taken to be a wish for train mode in the next evaluation."""

    def evaluates_well(net: nn.Module) -> None:
        was = net.training
        evaluate(net)
        net.train(was)

    net = Net()
    with watch(net) as guard:
        step(net, sgd(net))
        evaluates_well(net)
        validate(net)
    assert found(guard) == FOUND


def test_c53_rollouts_in_train_mode():
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            validate(net)
            step(net, optimizer)
    assert found(guard) == FOUND


def test_c88_a_teacher_in_the_model_whose_statistics_move():
    """Run without gradients in every step; nobody put it in eval mode."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = Net()
            self.teacher = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1)).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                wanted = self.teacher(x)
            return self.student(x) - wanted  # type: ignore[no-any-return]

    net = Pair()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.train()
        for _ in range(2):
            step(net, optimizer)
    assert ("mode.train_in_evaluation", "teacher") in found(guard)
    finding = next(each for each in guard.findings if each.id == "mode.train_in_evaluation")
    assert "eval_mode" not in finding.remedy  # around the step it would take the gradients away


def test_c58_a_guard_around_a_prediction_alone():
    """No training inside: told when the guard is left."""
    net = Net()
    with watch(net) as guard:
        validate(net)
        assert found(guard) == []
    assert found(guard) == FOUND
    assert guard.findings[0].cause.startswith("no eval() since the guard was entered")


def test_c58_a_server_that_is_never_left():
    net = Net()
    with watch(net) as guard:
        for _ in range(1000):
            validate(net)
        assert found(guard) == FOUND


def test_c62_eval_reaches_the_part_that_holds_the_decoder():
    net = Net()
    with watch(net) as guard:
        step(net, sgd(net))
        net.head.eval()
        validate(net)
        net.head.train()
    assert found(guard) == [("mode.train_in_evaluation", "encoder")]


def test_dropout_as_a_function_of_the_mode():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(self.linear(x), 0.5, training=self.training)

    net = Functional()
    with watch(net) as guard:
        step(net, sgd(net))
        validate(net)
    assert found(guard) == FOUND


@pytest.mark.parametrize("layers", [1, 2])
def test_an_rnn_counts_where_it_drops_something(layers: int):
    """One layer has no dropout between layers."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 3, num_layers=layers, dropout=0.5 if layers > 1 else 0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]  # type: ignore[no-any-return]

    net = Tagger()
    with watch(net) as guard:
        step(net, sgd(net))
        validate(net)
    assert found(guard) == (FOUND if layers > 1 else [])


def test_attention_counts():
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1)
    with watch(net) as guard:
        step(net, sgd(net))
        validate(net)
    assert found(guard) == FOUND


def test_c59_train_of_the_policy_reaches_its_target_net():
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.critic = Net()
            self.target = Net().requires_grad_(False)

    policy = Policy()
    policy.target.eval()
    optimizer = sgd(policy.critic)
    with watch(policy) as guard:
        policy.train()
        for _ in range(2):
            with torch.no_grad():
                wanted = policy.target(X)
            optimizer.zero_grad()
            (policy.critic(X) - wanted).sum().backward()
            optimizer.step()
    assert found(guard) == FOUND or found(guard) == [("mode.train_in_evaluation", "target")]


def test_c88_a_teacher_of_its_own_put_in_train_mode_with_the_student():
    """train() once an epoch is no wish for the forwards of all its steps."""
    student, teacher = nn.Linear(4, 1), Net()
    optimizer = sgd(student)
    with watch(student, teacher) as guard:
        student.train()
        teacher.train()
        for _ in range(2):
            validate(teacher)
            step(student, optimizer)
    assert found(guard) == [("mode.train_in_evaluation", "Net")]


def test_c56_validation_in_train_mode_with_a_graph_that_nobody_uses():
    """For the losses that a detector gives in train mode only."""

    class Detector(Net):
        def validation_step(self) -> torch.Tensor:
            self.train(True)  # c56
            loss = self(X).sum()
            self.train(False)
            return loss  # type: ignore[no-any-return]

    net = Detector()
    with watch(net) as guard:
        step(net, sgd(net))
        net.eval()
        net.validation_step()
        net.train()
    assert found(guard) == FOUND
    assert "without any backward" in guard.findings[0].seen
    assert line_of("# c56", __file__) in guard.findings[0].cause


def test_a_generator_validated_in_train_mode_beside_a_critic():
    """Several batches without a step between: no fakes to learn from."""
    generator, critic = Net(), nn.Linear(1, 1)
    optimizers = sgd(generator), sgd(critic)
    with watch(generator, critic) as guard:
        for optimizer in optimizers:
            for each in optimizers:
                each.zero_grad()
            critic(generator(X)).sum().backward()
            optimizer.step()
        for _ in range(2):
            validate(generator)
    assert found(guard) == [("mode.train_in_evaluation", "Net")]
