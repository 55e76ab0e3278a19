"""The observer: who set a mode, by which line; which call ran; and nothing that grows or is kept alive."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes._by_module import ByModule
from torchtap.modes._doors import GUARD, RNN, opened
from torchtap.modes._observer import KEY, OBSERVER, Listener, ModeChange, RnnCall, Setter


class Heard(Listener):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, ModeChange]] = []
        self.calls: list[RnnCall] = []

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        self.changes.append((type(module).__name__, change))

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:
        self.calls.append(call)


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    with opened(RNN, GUARD):
        OBSERVER.listen(listener)
        yield listener
        OBSERVER.unlisten(listener)


def setter_of(module: nn.Module) -> Setter:
    return OBSERVER.last_write[module].setter


def line_of(setter: Setter) -> str:
    assert setter.stack.here is not None
    return setter.stack.here.text


def x() -> Tensor:
    return torch.randn(5, 2, 4)


@pytest.mark.usefixtures("heard")
class TestWhoSetTheMode:
    def test_eval_is_one_setter_for_the_whole_tree(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))
        model.eval()  # the user's line
        setters = {id(setter_of(module)) for module in model.modules()}
        assert len(setters) == 1
        setter = setter_of(next(iter(model[1].children())))
        assert (setter.by, setter.on(), setter.training) == ("eval", model, False)
        assert line_of(setter) == "model.eval()  # the user's line"

    def test_train_false_is_told_from_eval(self) -> None:
        model = nn.Linear(2, 2)
        model.train(False)
        assert (setter_of(model).by, setter_of(model).training) == ("train", False)

    def test_a_write_is_told_with_its_line(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        model[0].training = False  # by hand
        setter = setter_of(model[0])
        assert (setter.by, setter.on(), line_of(setter)) == (
            "write",
            model[0],
            "model[0].training = False  # by hand",
        )
        assert OBSERVER.last_change.get(model) is None

    @pytest.mark.parametrize("switch", ["eval", "train"])
    def test_an_overridden_train_is_not_taken_for_the_user(self, switch: str) -> None:
        class Frozen(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bn = nn.BatchNorm1d(2)

            def train(self, mode: bool = True) -> Frozen:
                super().train(mode)
                self.bn.eval()  # kept frozen
                return self

        model = Frozen()
        getattr(model, switch)()  # the user
        assert (setter_of(model).by, line_of(setter_of(model))) == (
            switch,
            "getattr(model, switch)()  # the user",
        )
        expected = "self.bn.eval()  # kept frozen"
        assert line_of(setter_of(model.bn)) == expected

    def test_a_users_function_named_train_is_the_user(self) -> None:
        def train(model: nn.Module) -> None:
            model.train()  # in train(model)

        model = nn.Linear(2, 2)
        train(model)
        assert line_of(setter_of(model)) == "model.train()  # in train(model)"

    def test_a_class_with_its_own_setattr_is_not_taken_for_the_user(self) -> None:
        class Careful(nn.Module):
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)

        model = Careful()
        model.training = False  # the user
        assert line_of(setter_of(model)) == "model.training = False  # the user"

    def test_a_train_that_raises_leaves_no_setter_behind(self) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(ValueError, match="expected to be boolean"):
            model.train(0)  # type: ignore[arg-type]
        model.training = False
        assert setter_of(model).by == "write"

    def test_a_listener_that_raises_leaves_no_setter_behind(self) -> None:
        class Refusing(Listener):
            def changed(self, module: nn.Module, change: ModeChange) -> None:
                raise RuntimeError("no")

        model, refusing = nn.Linear(2, 2), Refusing()
        OBSERVER.listen(refusing)
        with pytest.raises(RuntimeError, match="no"):
            model.eval()
        OBSERVER.unlisten(refusing)
        model.training = True
        assert setter_of(model).by == "write"

    def test_what_another_thread_writes_meanwhile_is_its_own(self) -> None:
        class Slow(nn.Module):
            def train(self, mode: bool = True) -> Slow:
                thread = threading.Thread(target=lambda: setattr(other, "training", mode))
                thread.start()
                thread.join()
                super().train(mode)
                return self

        outer, other = nn.Sequential(Slow()), nn.Linear(2, 2)
        outer.eval()
        assert setter_of(other).by == "write"
        assert setter_of(outer[0]).on() is outer

    def test_the_mode_until_then_is_kept(self) -> None:
        model = nn.Linear(2, 2)
        before = []
        for training in (False, False, True):
            model.train(training)
            before.append(OBSERVER.last_write[model].before)
        assert before == [True, False, False]

    def test_of_several_that_set_the_same_mode_the_first_has_changed_it(self) -> None:
        model = nn.Linear(2, 2)
        model.eval()  # the change
        model.eval()  # once more
        model.train(model.training)  # read too late
        assert line_of(OBSERVER.last_change[model].setter) == "model.eval()  # the change"
        assert line_of(OBSERVER.last_write[model].setter) == "model.train(model.training)  # read too late"

    def test_who_has_changed_a_mode_that_nobody_saw_change_is_not_known(self) -> None:
        model = nn.Linear(2, 2)
        vars(model)["training"] = False
        model.eval()
        assert OBSERVER.last_change.get(model) is None
        model.train()
        vars(model)["training"] = False
        model.eval()
        assert OBSERVER.last_change.get(model) is None

    def test_a_module_in_the_making_has_no_mode_before(self) -> None:
        class InEval(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                del self.training
                self.training = False

        assert OBSERVER.last_change[InEval()].before is None


@pytest.mark.usefixtures("heard")
class TestModulesWithAnEqOfTheirOwn:
    def test_equal_modules_are_kept_apart(self) -> None:
        class Equal(nn.Linear):
            def __eq__(self, other: object) -> bool:
                return isinstance(other, Equal)

            def __hash__(self) -> int:
                return 1

        one, two = Equal(2, 2), Equal(2, 2)
        one.eval()
        assert OBSERVER.last_change.get(one) is not None
        assert OBSERVER.last_change.get(two) is None

    def test_a_module_that_cannot_be_hashed_goes_on_working(self) -> None:
        class Unhashable(nn.Module):
            __hash__ = None  # type: ignore[assignment]

            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.LSTM(4, 3)

            def __eq__(self, other: object) -> bool:
                return NotImplemented

        model = Unhashable()
        model.eval()
        report = modes.check_backward(model.rnn(x())[0].sum(), model)
        assert [(each.where, each.set_how) for each in report.findings] == [("rnn", "model.eval()")]


class TestRnnCalls:
    def test_calls_are_counted_by_module(self, heard: Heard) -> None:
        one, two = nn.LSTM(4, 3), nn.GRU(4, 3)
        for module in (one, two, one):
            module(x())
        assert [(call.class_name, call.number) for call in heard.calls] == [
            ("LSTM", 1),
            ("GRU", 1),
            ("LSTM", 2),
        ]

    def test_a_call_knows_who_had_set_its_mode(self, heard: Heard) -> None:
        rnn = nn.LSTM(4, 3)
        rnn(x())
        rnn.eval()
        rnn(x())
        rnn.train()
        assert [call.training for call in heard.calls] == [True, False]
        assert heard.calls[0].change is None
        assert heard.calls[1].change is not None
        assert heard.calls[1].change.setter.by == "eval"

    def test_a_mode_set_where_nobody_can_see_is_blamed_on_nobody(self, heard: Heard) -> None:
        rnn = nn.LSTM(4, 3)
        rnn.train()
        rnn.__dict__["training"] = False
        rnn(x())
        assert (heard.calls[0].training, heard.calls[0].change) == (False, None)

    def test_a_module_that_calls_libtorchs_rnn_itself_is_known(self, heard: Heard) -> None:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.GRU(4, 3)

            def forward(self, x: Tensor) -> Any:
                rnn: Any = self.rnn
                state = torch.zeros(1, 2, 3)
                return torch._VF.gru(x, state, rnn._flat_weights, True, 1, 0.0, self.training, False, False)

        model = Own()
        model(x())
        assert heard.calls[0].class_name == "Own"

    def test_under_no_grad_a_call_has_no_graph(self, heard: Heard) -> None:
        with torch.no_grad():
            nn.LSTM(4, 3)(x())
        assert not heard.calls[0].grad

    def test_a_replica_is_traced_back_to_its_original(self, heard: Heard) -> None:
        model = nn.Sequential(nn.LSTM(4, 3))
        model.eval()  # the user
        replica = model[0]._replicate_for_data_parallel()
        loss = nn.LSTM.forward(replica_with_weights(replica, model[0]), x())[0].sum()
        del replica
        finding = modes.check_backward(loss, model).findings[0]
        assert (finding.where, finding.call, finding.set_how) == ("0", None, "model.eval()")
        assert heard.calls[0].replica_of is model[0]._all_weights


def replica_with_weights(replica: Any, original: nn.Module) -> Any:
    """As nn.parallel.replicate leaves it: its parameters are plain attributes."""
    for name, parameter in original.named_parameters():
        replica.__dict__[name] = parameter
    replica._flat_weights = [getattr(replica, name) for name in replica._flat_weights_names]
    return replica


class TestNothingIsKept:
    def test_the_observer_does_not_grow_with_steps(self) -> None:
        model = nn.Sequential(nn.LSTM(4, 3))
        gc.collect()
        calls = len([each for each in gc.get_objects() if type(each) is RnnCall])  # other tests' graphs
        with opened(RNN, GUARD):
            for _ in range(50):
                model.train()
                model[0](x())[0].sum().backward()
                model.eval()
                throwaway = nn.Sequential(nn.GRU(4, 3), nn.Dropout())
                throwaway.eval()
                throwaway[0](x())
            del throwaway
            gc.collect()
            assert (len(OBSERVER.last_change), len(OBSERVER._counts)) == (2, 1)
            assert len([each for each in gc.get_objects() if type(each) is RnnCall]) == calls
        assert (len(OBSERVER.last_change), len(OBSERVER._counts)) == (0, 0)

    def test_what_is_known_is_taken_up_again_where_the_mode_is_the_same(self) -> None:
        model, other, gone = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        with opened(RNN):
            for each in (model, other, gone):
                each.eval()
            change = OBSERVER.last_change[model]
            known = OBSERVER.known([model, other, gone, nn.Linear(2, 2)])
        other.train()
        del gone, each
        gc.collect()
        assert len(known) == 2
        with opened(RNN):
            OBSERVER.recall(known)
            assert OBSERVER.last_change.get(model) is change
            assert OBSERVER.last_change.get(other) is None
            model.train()
            newer = OBSERVER.last_change[model]
            vars(model)["training"] = False
            OBSERVER.recall(known)
            assert OBSERVER.last_change[model] is newer  # who watches knows better
            assert len(OBSERVER.known([model])) == 0

    @pytest.mark.usefixtures("heard")
    def test_a_graph_does_not_keep_the_module(self) -> None:
        rnn = nn.LSTM(4, 3)
        gone = weakref.ref(rnn)
        loss = rnn.eval()(x())[0].sum()
        OBSERVER.listeners = ()
        del rnn
        gc.collect()
        assert gone() is None
        finding = modes.check_backward(loss).findings[0]
        assert (finding.where, finding.set_how) == ("LSTM", "eval() of a module that is gone")

    @pytest.mark.usefixtures("heard")
    def test_copies_and_files_hold_the_same_as_ever(self) -> None:
        model = nn.Sequential(nn.LSTM(4, 3)).eval()
        out = model[0](x())[0]
        file = io.BytesIO()
        torch.save({"model": model, "out": out.detach()}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)["model"]
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
            assert again.state_dict().keys() == model.state_dict().keys()
            assert set(vars(again[0])) == set(vars(nn.LSTM(4, 3)))
            assert not again.training

    def test_closed_nothing_is_heard(self) -> None:
        with opened(RNN):
            kept = nn.Module.train
        model = nn.Linear(2, 2)
        kept(model, False)
        OBSERVER.wrote_mode(model, True, False, None)  # type: ignore[arg-type]  # as a stand-in that somebody kept
        assert len(OBSERVER.last_change) == 0
        assert not model.training


def test_calls_ride_on_their_nodes() -> None:
    with opened(RNN):
        out, (hy, cy) = nn.LSTM(4, 3)(x())
    nodes: list[Any] = [each.grad_fn for each in (out, hy, cy)]
    calls = {id(node.metadata[KEY]) for node in nodes}
    assert len(calls) == 1


def test_by_module_forgets_only_the_module_that_went() -> None:
    kept: ByModule[str] = ByModule()
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    kept[one], kept[two] = "one", "two"
    kept[one] = "again"
    assert (kept[one], len(kept), dict(kept.items())) == ("again", 2, {one: "again", two: "two"})
    del one
    gc.collect()
    assert ([value for _, value in kept.items()], two in kept) == (["two"], True)
    with pytest.raises(KeyError):
        kept[nn.Linear(1, 1)]
