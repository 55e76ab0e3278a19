"""`dropout.active_in_eval`: F.dropout and its like that nobody told the mode."""

from __future__ import annotations

import weakref

# mypy: disable-error-code="assignment,operator,arg-type"
# (nn.Module is typed as if attributes were modules and tensors only)
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchtap import modes


class Net(nn.Module):
    """Runs a function in its forward."""

    def __init__(self, run: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.p = 0.5
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def found(net: nn.Module, *, grad: bool = True, evaluate: bool = True) -> list[str]:
    """What is seen when it runs once in train and twice in eval."""
    with modes.guard(net, on_violation="collect") as guard, torch.set_grad_enabled(grad):
        net(torch.ones(3, 4, 4))
        assert guard.findings == []
        net.train(not evaluate)
        net(torch.ones(3, 4, 4))
        net(torch.ones(3, 4, 4))
    assert {each.id for each in guard.findings} <= {"dropout.active_in_eval"}
    return [each.seen for each in guard.findings]


def heads(q: Tensor, net: Net, *more: Any, **given: Any) -> Tensor:
    part = net.attention
    return F.multi_head_attention_forward(
        q, q, q, 4, 2, part.in_proj_weight, part.in_proj_bias, None, None, False, 0.5,
        part.out_proj.weight, part.out_proj.bias, *more, **given,
    )[0]  # fmt: skip


def drop(x: Tensor, p: float = 0.5) -> Tensor:
    """A helper outside any module."""
    return F.dropout(x, p)


def wrapper(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """A helper with the same default."""
    return F.dropout(x, p, training)


MISTAKEN: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "nothing given": lambda net, x: F.dropout(x),
    "p given": lambda net, x: F.dropout(x, net.p),
    "p by name": lambda net, x: F.dropout(x, p=net.p, inplace=False),
    "dropout1d": lambda net, x: F.dropout1d(x, 0.5),
    "dropout2d": lambda net, x: F.dropout2d(x[None], 0.5),
    "dropout3d": lambda net, x: F.dropout3d(x[None, None], 0.5),
    "written over many lines": lambda net, x: F.dropout(
        F.relu(
            x,
        ),
        p=0.5,
    ),
    "attention by hand": lambda net, x: heads(x, net),
    "helper": lambda net, x: drop(x),
    "helper with the same default": lambda net, x: wrapper(x, 0.5),
    "partial": lambda net, x: partial(F.dropout, p=0.5)(x),
    "sdpa": lambda net, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "sdpa by position": lambda net, x: F.scaled_dot_product_attention(x, x, x, None, net.p),
}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("run", MISTAKEN.values(), ids=MISTAKEN)
def test_dropout_that_eval_cannot_switch_off_is_found_once(
    run: Callable[[Net, Tensor], Tensor], grad: bool
) -> None:
    """C91 (pytorch#26338, PyTorchNLPBook#28), S22."""
    assert len(found(Net(run), grad=grad)) == 1


INTENDED: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "told the mode": lambda net, x: F.dropout(x, 0.5, training=net.training),
    "told the mode by position": lambda net, x: F.dropout(x, 0.5, net.training),
    "on purpose": lambda net, x: F.dropout(x, 0.5, training=True),  # C73: a prenet
    "on purpose by position": lambda net, x: F.dropout(x, 0.5, True),
    "on purpose over many lines": lambda net, x: F.dropout(
        x,
        p=0.5,
        training=True,
    ),
    "on purpose through a helper": lambda net, x: wrapper(x, 0.5, True),
    "on purpose through a partial": lambda net, x: net.always(x),
    "attention on purpose": lambda net, x: heads(x, net, training=True),
    "alpha dropout, off by default": lambda net, x: F.alpha_dropout(x, 0.5),
    "alpha dropout on purpose": lambda net, x: F.alpha_dropout(x, 0.5, training=True),
    "p is 0": lambda net, x: F.dropout(x, 0.0),
    "sdpa told the mode": lambda net, x: F.scaled_dot_product_attention(
        x, x, x, dropout_p=net.p if net.training else 0.0
    ),
    "modules": lambda net, x: nn.functional.relu(net.attention(x, x, x)[0]),
    "a choice of its own": lambda net, x: F.dropout(x, 0.5, training=net.stochastic),
}


@pytest.mark.parametrize("run", INTENDED.values(), ids=INTENDED)
def test_what_follows_the_mode_or_is_on_purpose_is_not_found(run: Callable[[Net, Tensor], Tensor]) -> None:
    net = Net(run)
    net.always = partial(F.dropout, p=0.5, training=True)
    net.stochastic = True
    assert found(net) == []


@pytest.mark.parametrize("run", MISTAKEN.values(), ids=MISTAKEN)
def test_nothing_is_said_while_all_train(run: Callable[[Net, Tensor], Tensor]) -> None:
    assert found(Net(run), evaluate=False) == []


def test_the_line_and_the_reason_are_told() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

    net = nn.Sequential(nn.Linear(4, 4), Inner())
    line = Inner.forward.__code__.co_firstlineno + 1
    (seen,) = found(net)
    place = seen.partition(" at ")[2].partition(" ")[0]
    assert place.endswith(f"test_dropout_by_construction.py:{line}")
    assert seen.endswith("dropped in eval mode: dropout() is not told the mode: training is True by default")
    with modes.guard(net, on_violation="collect") as guard:
        net.eval()(torch.ones(2, 4))
    assert [each.where for each in guard.findings] == ["1"]
    assert guard.findings[0].remedy.startswith("F.dropout(..., training=self.training)")


def test_each_module_is_told_once() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = F.dropout(x, 0.5)
            return F.dropout(x, 0.5)

    assert len(found(nn.Sequential(Twice(), Twice()))) == 2


def test_a_part_in_eval_of_a_model_that_trains_is_looked_at() -> None:
    net = nn.Sequential(Net(lambda _, x: F.dropout(x, 0.5)), nn.Dropout())
    with modes.guard(net, on_violation="collect") as guard:
        net[0].eval()
        net(torch.ones(2, 4))
    assert [(each.id, each.where) for each in guard.findings] == [("dropout.active_in_eval", "0")]


def test_a_part_in_train_mode_of_a_model_in_eval_is_not() -> None:
    """Monte Carlo dropout, by a part that calls the function."""
    net = nn.Sequential(Net(lambda _, x: F.dropout(x, 0.5)), nn.Dropout(0.1))
    with modes.guard(net, on_violation="collect") as guard:
        net.eval()
        net[0].train()
        with torch.no_grad():
            net(torch.ones(3, 4))
    assert guard.findings == []


def outside(net: nn.Module, *, training: bool, given: bool | None = None) -> Tensor:
    """Functional training code: drops on what the model gave, in no module."""
    net.train(training)
    with torch.set_grad_enabled(training):
        if given is None:
            return F.dropout(net(torch.ones(3, 4)), 0.5)
        return F.dropout(net(torch.ones(3, 4)), 0.5, training=given)


@pytest.mark.parametrize("given", [None, True, "mode"])
def test_outside_of_modules_a_call_that_trains_too_is_found(given: object) -> None:
    net = nn.Linear(4, 4)
    with modes.guard(net, on_violation="collect") as guard:
        for training in (True, False, True, False):
            outside(net, training=training, given=training if given == "mode" else given)
    assert [each.id for each in guard.findings] == ["dropout.active_in_eval"] * (given is None)


def test_noise_that_a_model_is_given_is_not() -> None:
    """A denoising network: what is dropped is its input."""
    net = nn.Linear(4, 4)
    with modes.guard(net, on_violation="collect") as guard:
        for training in (True, False):
            net.train(training)
            with torch.set_grad_enabled(training):
                net(F.dropout(torch.ones(3, 4), 0.3))
    assert guard.findings == []


def test_direct_forward_is_seen_and_so_are_other_methods() -> None:
    class Encoder(nn.Module):
        def encode(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.encode(x)

    net = Encoder().eval()
    with modes.guard(net, on_violation="collect") as guard:
        net.forward(torch.ones(2))
    assert [each.id for each in guard.findings] == ["dropout.active_in_eval"]


def test_dropout_outside_the_guarded_model_is_not_its_business() -> None:
    other = Net(lambda _, x: F.dropout(x, 0.5)).eval()
    net = nn.Linear(4, 4).eval()
    with modes.guard(net, on_violation="collect") as guard:
        other(torch.ones(2, 4))
        F.dropout(net(torch.ones(2, 4)), 0.5)
    assert guard.findings == []


def test_where_the_source_cannot_be_read_it_says_so() -> None:
    names: dict[str, Any] = {"F": F, "nn": nn}
    exec("class Own(nn.Module):\n def forward(self, x):\n  return F.dropout(x, 0.5)\n", names)
    (seen,) = found(names["Own"]())
    assert seen.endswith("training not given, as far as can be told without the source")


def test_monte_carlo_dropout_by_modules_is_on_purpose() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    with modes.guard(net, on_violation="collect") as guard:
        net.eval()
        net[1].train()
        with torch.no_grad():
            net(torch.ones(2, 4))
    assert "dropout.active_in_eval" not in [each.id for each in guard.findings]


def test_no_tensor_is_kept() -> None:
    net = Net(lambda _, x: F.dropout(x, 0.5)).eval()

    def step() -> weakref.ref[Tensor]:
        batch = torch.ones(2, 4)
        net(batch)
        gone = weakref.ref(batch)
        del batch
        assert gone() is None  # in this frame, still running
        return gone

    with modes.guard(net, on_violation="collect"):
        assert step()() is None


def test_random_numbers_and_results_are_those_without_a_guard() -> None:
    net = Net(lambda _, x: F.dropout(x, 0.5)).eval()
    torch.manual_seed(1)
    bare = net(torch.ones(5, 4))
    torch.manual_seed(1)
    with modes.guard(net, on_violation="collect"):
        assert torch.equal(net(torch.ones(5, 4)), bare)


def test_what_a_tracer_recorded_is_not_on_purpose() -> None:
    """C97's kind: torch.fx writes training=True into the graph, whatever the mode is later."""
    traced = torch.fx.symbolic_trace(Told())
    assert "training = True" in traced.code
    (seen,) = found(traced)
    assert seen.endswith("training=True was recorded when the graph was traced")


class Told(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)
