"""The doors: opened and closed by whoever watches, in any order and thread, whatever else is set there."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from tests.unit.modes.conftest import doors
from torchtap import modes
from torchtap.modes import _doors
from torchtap.modes._doors import GUARD, RNN, Door, opened
from torchtap.modes._findings import CallFinding
from torchtap.modes._observer import OBSERVER


def x() -> Tensor:
    return torch.randn(5, 2, 4)


def test_the_last_one_out_closes() -> None:
    closed = doors()
    with opened(RNN, GUARD):
        inside = doors()
        with opened(RNN):
            pass
        with opened(GUARD):
            pass
        assert doors() == inside
        assert OBSERVER.open
    assert doors() == closed
    assert all(inside[name] != closed[name] for name in closed)


def test_the_same_stand_ins_stand_there_again() -> None:
    with opened(RNN, GUARD):
        first = doors()
    with opened(GUARD, RNN):
        assert doors() == first


def test_an_exception_closes() -> None:
    closed = doors()
    with pytest.raises(KeyError), opened(RNN, GUARD):
        raise KeyError
    assert doors() == closed


class Owner:
    @staticmethod
    def one() -> str:
        return "one"

    @staticmethod
    def two() -> str:
        return "two"


def _passing(_: str, native: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    return lambda: f"heard {native()()}"


def test_a_door_that_cannot_be_opened_leaves_none_open() -> None:
    def failing(_: str, native: Callable[[], Any]) -> Callable[..., Any]:
        raise RuntimeError("cannot")

    class Mine(Owner):
        pass

    with (
        pytest.raises(RuntimeError, match="cannot"),
        opened((Door(Mine, "one", _passing), Door(Mine, "two", failing))),
    ):
        raise AssertionError("never reached")
    assert Mine.one() == "one"
    assert "one" not in vars(Mine)


def test_what_others_set_at_an_open_door_stays_and_works() -> None:
    """A patch on top of ours must not be undone by us, nor call itself through us at the next opening."""

    class Mine(Owner):
        pass

    door = Door(Mine, "one", _passing)
    with opened(RNN):  # any other group
        door.open()
        ours = Mine.one
        Mine.one = staticmethod(lambda: f"theirs over {ours()}")  # type: ignore[method-assign]
        door.close()
    assert Mine.one() == "theirs over heard one"
    door.open()
    assert Mine.one() == "heard theirs over heard one"
    door.close()
    assert Mine.one() == "theirs over heard one"


def test_a_patch_from_before_that_ends_meanwhile_takes_ours_along() -> None:
    native = nn.Module.train
    with opened(GUARD):
        patch = mock.patch.object(nn.Module, "train", lambda self, mode=True: native(self, mode))
        patch.start()
        with opened(RNN):
            patch.stop()
        assert nn.Module.train is native
    with opened(RNN):
        model = nn.Linear(1, 1)
        model.eval()
        assert OBSERVER.last_change[model].setter.by == "eval"
    assert nn.Module.train is native


def test_a_patched_train_on_top_of_ours_goes_on_alone() -> None:
    seen: list[bool] = []
    with opened(RNN):
        below: Any = nn.Module.train

        def theirs(self: nn.Module, mode: bool = True) -> Any:
            seen.append(mode)
            return below(self, mode)

        patch = mock.patch.object(nn.Module, "train", theirs)
        patch.start()
        model = nn.Linear(1, 1)
        model.eval()
        assert OBSERVER.last_change[model].setter.training is False
    model.train()
    with opened(RNN):
        model.eval()
        assert OBSERVER.last_change[model].setter.training is False
    assert seen == [False, True, False]
    patch.stop()
    nn.Module.train = _native_train  # type: ignore[method-assign]  # the patch puts our stand-in back: so it stood there
    assert model.train().training


_native_train = nn.Module.train


def test_a_thread_that_is_inside_when_doors_close_goes_on() -> None:
    inside, closed = threading.Event(), threading.Event()
    result: list[bool] = []

    class Slow(nn.Module):
        def train(self, mode: bool = True) -> Slow:
            inside.set()
            closed.wait(10)
            super().train(mode)
            return self

    def work() -> None:
        result.append(nn.Sequential(Slow(), nn.Linear(1, 1)).eval()[1].training)

    thread = threading.Thread(target=work)
    with opened(RNN, GUARD):
        thread.start()
        assert inside.wait(10)
    closed.set()
    thread.join()
    assert result == [False]
    assert len(OBSERVER.last_change) == 0


def test_the_optimizers_hook_goes_with_the_guard() -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    before = len(hooks)
    with opened(RNN):
        assert len(hooks) == before
        with opened(GUARD):
            assert len(hooks) == before + 1
    assert len(hooks) == before


class Net(nn.Module):
    """All that the doors watch and torch.compile puts in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.steps = 1
        y: Tensor = self.b(self.drop(self.norm(self.a(x)).relu()))
        p = 0.1 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(y[None], y[None], y[None], dropout_p=p)


def test_compiled_whole_a_model_has_one_graph_inside_and_one_outside_for_good() -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")
    net = torch.compile(Net(), backend=counter, fullgraph=True)  # raises at a graph break
    x = torch.randn(4, 8)
    for _ in range(10):
        net(x).sum().backward()
        with opened(RNN, GUARD):
            net(x).sum().backward()
    assert counter.frame_count == 2


def test_a_compiled_model_may_switch_modes_itself_inside() -> None:
    class Switching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.eval()
            y = x * 2
            self.train()
            return y

    torch.compiler.reset()
    with opened(RNN, GUARD):
        out = torch.compile(Switching(), backend="eager", fullgraph=True)(torch.ones(2))
    assert out.tolist() == [2, 2]


def test_an_rnn_in_a_compiled_model_is_found() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.rnn(x)[0])  # in the model
            return result

    torch.compiler.reset()
    model = Tagger()
    compiled = torch.compile(model, backend="eager")
    found: list[CallFinding] = []
    for _ in range(3):
        with opened(RNN):
            model.eval()
            found += modes.check_backward(compiled(x()).sum(), model).findings
        compiled(x())
    assert [(each.where, each.call, each.set_how) for each in found] == [("rnn", 1, "model.eval()")] * 3
    assert {each.called_from for each in found} != {None}


def test_scripting_inside_works() -> None:
    class Script(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.net(x)
            return nn.functional.scaled_dot_product_attention(y, y, y)

    with opened(RNN, GUARD):
        module = torch.jit.script(Script()).eval()
    assert module(torch.randn(3, 4)).shape == (3, 4)


def test_groups_are_counted_by_themselves() -> None:
    assert not any(_doors._counts.values())
