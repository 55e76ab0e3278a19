"""`module.built_in_forward`: modules that run in a model and are no part of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes


class Net(nn.Module):
    """Runs a function in its forward."""

    def __init__(self, run: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.drop = nn.Dropout()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def found(net: nn.Module, *, evaluate: bool = True) -> list[tuple[str, str, str]]:
    """(id, where, seen) after a forward in train and two in eval."""
    with modes.guard(net, on_violation="collect") as guard:
        net(torch.ones(3, 4, 4))
        assert [each for each in guard.findings if "built" in each.id] == []
        net.train(not evaluate)
        net(torch.ones(3, 4, 4))
        net(torch.ones(3, 4, 4))
    return [(each.id, each.where, each.seen) for each in guard.findings]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def local(net: Net, x: Tensor) -> Tensor:
    drop = nn.Dropout(0.5)
    return drop(x)  # type: ignore[no-any-return]


BUILT: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "at once": lambda net, x: nn.Dropout(0.5)(x),  # C92
    "local variable": local,
    "batch norm": lambda net, x: nn.BatchNorm1d(4)(x),
    "batch norm without statistics": lambda net, x: nn.Dropout1d(0.5)(x),
    "several": lambda net, x: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))(x),
    "rnn with dropout": lambda net, x: nn.LSTM(4, 4, 2, dropout=0.5)(x)[0],
    "attention": lambda net, x: nn.MultiheadAttention(4, 2, dropout=0.5)(x, x, x)[0],
    "class of the user's": lambda net, x: Own()(x),
}


@pytest.mark.parametrize("run", BUILT.values(), ids=BUILT)
def test_what_is_built_in_forward_and_drops_in_eval_is_found_once(
    run: Callable[[Net, Tensor], Tensor],
) -> None:
    """C92 (NTS-Net#14): nn.Dropout constructed inside forward."""
    ((id_, where, seen),) = found(nn.Sequential(Net(run)))
    assert (id_, where) == ("module.built_in_forward", "0")
    assert "in each forward, ran in train mode; Net is in eval" in seen


SHARED = nn.Dropout()


class Task:
    """C64 (fairseq PR#4722): owns a decoder that the model calls."""

    decoder = Own()


ELSEWHERE: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "global": lambda net, x: SHARED(x),
    "of another object": lambda net, x: Task.decoder(x),
}


@pytest.mark.parametrize("run", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_belongs_to_another_object_gets_a_text_of_its_own(run: Callable[[Net, Tensor], Tensor]) -> None:
    ((id_, where, seen),) = found(Net(run))
    assert (id_, where) == ("module.built_in_forward", "")
    assert "is no part of Net and ran in train mode; Net is in eval" in seen


INNOCENT: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "registered": lambda net, x: net.norm(net.drop(x)),
    "without a mode": lambda net, x: nn.Linear(4, 4)(nn.ReLU()(x)),
    "built in eval": lambda net, x: nn.Dropout(0.5).train(net.training)(x),
    "train mode on purpose": lambda net, x: nn.Dropout(0.5).train()(x),  # many samples of one input
    "p is 0": lambda net, x: nn.Dropout(0.0)(x),
    "rnn without dropout": lambda net, x: nn.LSTM(4, 4)(x)[0],
}


@pytest.mark.parametrize("run", INNOCENT.values(), ids=INNOCENT)
def test_what_follows_the_mode_is_not_found(run: Callable[[Net, Tensor], Tensor]) -> None:
    assert found(Net(run)) == []


@pytest.mark.parametrize("run", [*BUILT.values(), *ELSEWHERE.values()], ids=[*BUILT, *ELSEWHERE])
def test_nothing_is_said_while_all_train(run: Callable[[Net, Tensor], Tensor]) -> None:
    assert found(Net(run), evaluate=False) == []


def test_nothing_is_said_of_a_part_in_train_mode_beside_one_in_eval() -> None:
    """What the mode of its caller would have it do, it does."""
    net = nn.Sequential(Net(local), nn.Dropout(0.1))
    with modes.guard(net, on_violation="collect") as guard:
        net[1].eval()
        net(torch.ones(3, 4))
    assert guard.findings == []


def test_another_model_beside_the_guarded_one_is_not_its_business() -> None:
    net, other = nn.Linear(4, 4), Own()
    with modes.guard(net, on_violation="collect") as guard:
        net.eval()
        other(net(torch.ones(2, 4)))
    assert guard.findings == []


def test_what_another_guarded_model_has_is_part_of_it() -> None:
    """Whose mode is whose is another rule's question."""
    other = Own()
    net = Net(lambda _, x: other(x))
    with modes.guard(net, other, on_violation="collect") as guard:
        net.eval()
        net(torch.ones(2, 4))
    assert "module.built_in_forward" not in [each.id for each in guard.findings]
