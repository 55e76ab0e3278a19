"""`batchnorm.frozen_updates`: running statistics that move although the parameters are frozen."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes import Finding

# mypy: disable-error-code="no-untyped-call,assignment"


class Net(nn.Module):
    """A backbone with two BatchNorms, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))  # type: ignore[no-any-return]

    def freeze(self) -> None:
        """C82 (gt-pyg#112): once, and the next train() undoes half of it."""
        self.backbone.requires_grad_(False)
        self.backbone.eval()


def steps(net: nn.Module, n: int = 2) -> None:
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(n):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()


def only(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.id == "batchnorm.frozen_updates"]


def test_c85_requires_grad_alone_is_found() -> None:
    net = Net()
    net.backbone.requires_grad_(False)
    with modes.guard(net, on_violation="collect") as guard:
        steps(net)
    (finding,) = only(guard.findings)
    assert (finding.severity.value, finding.where) == ("warn", "backbone.1")
    assert finding.seen == (
        "BatchNorm1d with frozen parameters ran in train mode: its running statistics moved, "
        "as did or will those of 1 more"
    )
    assert finding.cause.endswith("train mode since before the guard was entered")


def test_c82_both_lines_are_named() -> None:
    net = Net()
    with modes.guard(net, on_violation="collect") as guard:
        net.freeze()
        steps(net)
        assert only(guard.findings) == []
        net.train()
        steps(net)
    (finding,) = only(guard.findings)
    lines = test_c82_both_lines_are_named.__code__.co_firstlineno + 6, Net.freeze.__code__.co_firstlineno + 3
    here = "test_batchnorm_frozen.py:"
    train, undid, evaled = finding.cause.partition(" undid ")
    assert (undid, train.endswith(f"{here}{lines[0]}"), evaled.endswith(f"{here}{lines[1]}")) == (
        " undid ",
        True,
        True,
    )


def test_c83_the_freezing_may_be_older_than_the_guard() -> None:
    net = Net()
    net.freeze()
    with modes.guard(net, on_violation="collect") as guard:
        net.train()
        steps(net)
    (finding,) = only(guard.findings)
    assert "undid the eval mode that it had when the guard was entered" in finding.cause


def test_a_frozen_backbone_under_no_grad_in_a_model_that_trains_is_found() -> None:
    """C85: statistics move under no_grad too."""

    class Features(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.backbone(x)
            return self.head(x)  # type: ignore[no-any-return]

    net = Features()
    net.backbone.requires_grad_(False)
    with modes.guard(net, on_violation="collect") as guard:
        steps(net)
    assert len(only(guard.findings)) == 1


def test_freezing_while_the_guard_is_open_is_noticed_at_the_next_step() -> None:
    net = Net()
    with modes.guard(net, on_violation="collect") as guard:
        steps(net, 1)
        net.backbone.requires_grad_(False)
        steps(net, 2)
    assert len(only(guard.findings)) == 1


def freeze_bn(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()


@pytest.mark.parametrize("before", [True, False], ids=["before the guard", "in the guard"])
def test_c83_freeze_bn_that_train_undoes_is_found_though_the_parameters_train(before: bool) -> None:
    """indexnet_matting#35."""
    net = Net()
    if before:
        freeze_bn(net)
    with modes.guard(net, on_violation="collect") as guard:
        freeze_bn(net)
        steps(net)
        assert only(guard.findings) == []
        net.train()
        steps(net)
    (finding,) = only(guard.findings)
    assert finding.seen.startswith("BatchNorm1d that was put in eval mode by itself ran in train mode")
    assert finding.cause.startswith("train() at ")
    assert " undid eval() at " in finding.cause


@pytest.mark.parametrize("before", [True, False], ids=["before the guard", "in the guard"])
def test_freeze_bn_that_the_train_after_a_validation_undoes_is_found(before: bool) -> None:
    """The eval() of the validation finds the BatchNorms in eval mode: it is not what put them there."""
    net = Net()
    if before:
        freeze_bn(net)
    with modes.guard(net, on_violation="collect") as guard:
        if not before:
            freeze_bn(net)
        for _ in range(3):
            steps(net, 1)
            net.eval()
            with torch.no_grad():
                net(torch.randn(3, 4))
            net.train()  # after the validation
    (finding,) = only(guard.findings)
    assert finding.seen.startswith("BatchNorm1d that was put in eval mode by itself ran in train mode")
    undone = "the eval mode that it had when the guard was entered" if before else "eval() at "
    assert f" undid {undone}" in finding.cause


def test_a_batchnorm_that_trains_on_purpose_may_be_told_so_twice() -> None:
    """Its own train() changes nothing, after that of the model: it is meant all the same."""
    net = Net()
    with modes.guard(net, on_violation="collect") as guard:
        freeze_bn(net)
        steps(net)
        net.train()
        for each in (net.backbone[1], net.backbone[3]):
            each.train()
        steps(net)
    assert only(guard.findings) == []


def test_a_target_network_called_by_itself_without_gradients_is_left_to_another_rule() -> None:
    """C59."""
    policy = nn.ModuleDict({"critic": Net(), "target": Net().requires_grad_(False)})
    with modes.guard(policy, on_violation="collect") as guard:
        with torch.no_grad():
            policy["target"](torch.randn(3, 4))
        steps(policy["critic"])
    assert only(guard.findings) == []


def evaluated(net: Net) -> None:
    """As all programs do."""
    net.eval()
    with torch.no_grad():
        net(torch.randn(3, 4))
    net.train()


def evaluated_in_parts(net: Net) -> None:
    net.backbone.eval()
    net.head.eval()
    net.train()


def by_itself_for_a_while(net: Net) -> None:
    freeze_bn(net)
    for module in net.modules():
        module.train()


def frozen_by_train(net: Net) -> None:
    """The remedy."""
    for _ in range(2):
        net.train()
        freeze_bn(net)


def right(net: Net) -> None:
    net.backbone.requires_grad_(False)
    net.train()
    net.backbone.eval()


def unfrozen(net: Net) -> None:
    net.train()


def no_parameters(net: Net) -> None:
    net.backbone[1] = nn.BatchNorm1d(4, affine=False)
    net.backbone[3] = nn.BatchNorm1d(4, affine=False)
    net.backbone.requires_grad_(False)


def no_statistics(net: Net) -> None:
    net.backbone[1] = net.backbone[3] = nn.BatchNorm1d(4, track_running_stats=False)
    net.backbone.requires_grad_(False)


def adapted(net: Net) -> None:
    """C71: the statistics of the new data, on purpose: train() on these very modules."""
    net.backbone.requires_grad_(False)
    net.eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.train()


def momentum(net: Net) -> None:
    net.backbone.requires_grad_(False)
    net.backbone[1].momentum = net.backbone[3].momentum = 0.0


def group_norm(net: Net) -> None:
    net.backbone[1] = net.backbone[3] = nn.GroupNorm(2, 4)
    net.backbone.requires_grad_(False)


def bias_trains(net: Net) -> None:
    net.backbone.requires_grad_(False)
    net.backbone[1].bias.requires_grad_(True)
    net.backbone[3].bias.requires_grad_(True)


@pytest.mark.parametrize(
    "prepare",
    [
        evaluated,
        evaluated_in_parts,
        by_itself_for_a_while,
        frozen_by_train,
        right,
        unfrozen,
        no_parameters,
        no_statistics,
        adapted,
        momentum,
        group_norm,
        bias_trains,
    ],
)
def test_nothing_is_said_where_nothing_moves_or_it_is_meant(prepare: object) -> None:
    net = Net()
    with modes.guard(net, on_violation="collect") as guard:
        prepare(net)  # type: ignore[operator]
        steps(net)
    assert only(guard.findings) == []


def test_a_wholly_frozen_teacher_under_no_grad_is_left_to_another_rule() -> None:
    """C88: mode.train_in_evaluation says it; one of both is enough."""
    teacher, student = Net().requires_grad_(False), Net()
    with modes.guard(student, teacher, on_violation="collect") as guard:
        with torch.no_grad():
            teacher(torch.randn(3, 4))
        steps(student)
    assert only(guard.findings) == []


def test_a_wholly_frozen_model_with_grad_is_found() -> None:
    """An attack on a model that was never put in eval: its statistics move with each step."""
    net = Net().requires_grad_(False)
    with modes.guard(net, on_violation="collect") as guard:
        net(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert len(only(guard.findings)) == 1


def test_no_module_is_held_alive() -> None:
    net = Net()
    net.backbone.requires_grad_(False)
    with modes.guard(net, on_violation="collect") as guard:
        steps(net)
        gone = weakref.ref(net.backbone[1])
        del net
        gc.collect()
        assert gone() is None
    assert guard.findings


def test_of_many_each_is_looked_at_in_turn() -> None:
    """At a step only some are, so that a step of a large model costs no more."""
    net = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(30)))
    with modes.guard(net, on_violation="collect") as guard:
        steps(net, 1)
        net[20].requires_grad_(False)
        steps(net, 6)
    (finding,) = only(guard.findings)
    assert finding.where == "20"
