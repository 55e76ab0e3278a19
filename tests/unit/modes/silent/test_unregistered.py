"""`module.unregistered`: modules that train() and eval() do not reach."""

from __future__ import annotations

# mypy: disable-error-code="assignment,index,union-attr"
# (nn.Module is typed as if attributes were modules and tensors only)
import gc
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes


def found(*models: nn.Module) -> list[tuple[str, str]]:
    """(severity, where) of what a guard of these models finds when it is entered, and describe() alike."""
    with modes.guard(*models, on_violation="collect") as guard:
        pass
    seen = [(each.severity.value, each.where) for each in guard.findings if each.id == "module.unregistered"]
    if len(models) == 1:
        told = modes.describe(models[0]).findings
        assert seen == [
            (each.severity.value, each.where) for each in told if each.id == "module.unregistered"
        ]
    return seen


@dataclass
class Pair:
    one: nn.Module
    other: object = None


@dataclass(slots=True)
class Slotted:
    one: nn.Module


class Plain:
    def __init__(self, module: nn.Module) -> None:
        self.module = module


HOLDERS: dict[str, Callable[[nn.Module], Any]] = {
    "list": lambda module: [module],
    "tuple": lambda module: (module,),
    "dict": lambda module: {"a": module},
    "set": lambda module: {module},
    "list of lists": lambda module: [[module]],
    "dict of tuples": lambda module: {"a": (1, module)},
    "dataclass": lambda module: Pair(nn.Identity(), module),
    "dataclass with slots": Slotted,
    "namespace": lambda module: types.SimpleNamespace(a=module),
    "object": Plain,
    "list of objects": lambda module: [Plain(module)],
    "partial": lambda module: partial(module, 1),
    "partial of a function": lambda module: partial(print, layer=module),
    "lambda": lambda module: lambda x: module(x),  # noqa: PLW0108
    "bound method": lambda module: module.forward,
    "inside another module": lambda module: [nn.Sequential(nn.Identity(), module)],
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("module", [nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.LSTM(2, 2)], ids=str)
def test_modules_out_of_reach_are_found_wherever_they_are(
    holder: Callable[[nn.Module], Any], module: nn.Module
) -> None:
    """S23, C90: eval() leaves them in train mode; and parameters(), state_dict() and to() leave them out."""
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].kept = holder(module)
    assert module not in set(net.modules())  # or the test tests nothing
    assert found(net) == [("warn", "0")]


def test_one_finding_for_each_holder_names_what_it_holds() -> None:
    net = nn.Module()
    net.blocks = [nn.Linear(2, 2), nn.Dropout()]
    net.extra = {"norm": nn.BatchNorm1d(2), "last": nn.Linear(2, 2)}
    (finding,) = modes.describe(net).findings
    assert finding.seen == (
        "blocks[0] (Linear), blocks[1] (Dropout), extra['norm'] (BatchNorm1d) and 1 more are not registered"
    )
    assert "train() and eval() pass by; their parameters are not in parameters()" in finding.cause


def test_what_is_meant_does_not_hide_what_is_not() -> None:
    net = nn.Module()
    net.teacher = [nn.Dropout().eval()]
    net.blocks = [nn.Dropout()]
    assert [(each.severity.value, each.seen) for each in modes.describe(net).findings] == [
        ("warn", "blocks[0] (Dropout) is not registered"),
        ("info", "teacher[0] (Dropout) is not registered"),
    ]
    with modes.guard(net, on_violation="collect") as guard:
        pass
    assert [each.severity.value for each in guard.findings] == ["warn"]


def test_what_is_worse_takes_the_place_of_what_was_found_before() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = [nn.Dropout().eval()]
            self.more: list[nn.Module] = []

        def forward(self, x: Tensor) -> Tensor:
            self.more = self.more or [nn.Dropout()]
            return self.more[0](x)  # type: ignore[no-any-return]

    net = Grows().eval()
    with modes.guard(net, on_violation="collect") as guard:
        assert [each.severity.value for each in guard.findings] == ["info"]
        net(torch.ones(2))
    assert [each.severity.value for each in guard.findings] == ["warn"]


def test_a_module_shared_by_a_class_is_found() -> None:
    class Net(nn.Module):
        drop = nn.Dropout()

    assert found(Net()) == [("warn", "")]


def test_a_guard_of_several_models_names_the_model() -> None:
    first, second = nn.ReLU(), nn.GELU()
    second.kept = [nn.Dropout()]
    assert found(first, second) == [("warn", "GELU")]


def registered_too(net: nn.Module) -> None:
    net.layers = [net[0]]
    net.by_name = {"first": net[0]}


def without_modes(net: nn.Module) -> None:
    net.kept = [nn.ReLU(), nn.Identity()]


def parent(net: nn.Module) -> None:
    net[0].parent = [net]


def grandparent(net: nn.Module) -> None:
    net.owner = [nn.Sequential(net, nn.Dropout())]


def weakly(net: nn.Module) -> None:
    net.kept = weakref.ref(STRANGER)


def no_modules(net: nn.Module) -> None:
    net.kept = [1, "two", None, torch.zeros(2), {"a": nn.Parameter(torch.zeros(1))}]
    net.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.function = nn.functional.relu
    net.kind = nn.Dropout


STRANGER = nn.Dropout()
INNOCENT = [registered_too, without_modes, parent, grandparent, weakly, no_modules]


@pytest.mark.parametrize("change", INNOCENT, ids=lambda each: each.__name__)
def test_what_is_in_reach_or_has_no_mode_is_not_found(change: Callable[[nn.Module], None]) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    change(net)
    assert found(net) == []


def test_what_another_guarded_model_has_registered_is_not_found() -> None:
    teacher, student = nn.Sequential(nn.Dropout()), nn.Sequential(nn.Linear(2, 2))
    student.teacher = [teacher]
    assert found(student, teacher) == []


def test_a_train_of_its_own_that_names_the_attribute_is_trusted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [nn.Dropout()]

        def train(self, mode: bool = True) -> Net:
            super().train(mode)
            for block in self.blocks:
                block.train(mode)
            return self

    assert found(Net()) == []


def hidden_teacher(*, frozen: bool, training: bool) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2))
    net.teacher = [nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train(training).requires_grad_(not frozen)]
    return net


@pytest.mark.parametrize("frozen", [True, False])
def test_a_teacher_in_eval_is_hidden_on_purpose(frozen: bool) -> None:
    assert found(hidden_teacher(frozen=frozen, training=False)) == [("info", "")]


def test_a_frozen_module_without_a_mode_is_hidden_on_purpose() -> None:
    net = nn.Sequential(nn.ReLU())
    net.teacher = [nn.Linear(2, 2).requires_grad_(False)]
    assert found(net) == [("info", "")]


def test_a_frozen_teacher_that_drops_is_not_meant() -> None:
    """eval() on the student does not reach it."""
    assert found(hidden_teacher(frozen=True, training=True)) == [("warn", "")]


def test_it_is_true_eval_does_not_reach_them() -> None:
    net = nn.Sequential(nn.Identity())
    net.kept = [nn.Dropout()]
    net.eval()
    assert net.kept[0].training


def test_a_list_filled_while_the_guard_is_open_is_found_when_it_runs_in_eval() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[nn.Module] = []

        def forward(self, x: Tensor) -> Tensor:
            if not self.kept:
                self.kept.append(nn.Dropout())
            return self.kept[0](x)  # type: ignore[no-any-return]

    net = Lazy()
    with modes.guard(net, on_violation="collect") as guard:
        net(torch.ones(2))
        assert guard.findings == []
        net.eval()
        net(torch.ones(2))
        net(torch.ones(2))
    assert [(each.id, each.seen) for each in guard.findings] == [
        ("module.unregistered", "kept[0] (Dropout) is not registered")
    ]


def test_large_and_deep_values_are_looked_into_only_so_far() -> None:
    net = nn.Sequential(nn.ReLU())
    net.buffer = [[i] * 100 for i in range(100_000)]
    net.itself = [net]
    endless: list[object] = []
    endless.append(endless)
    net.endless = endless
    assert found(net) == []


def test_no_module_is_held_alive() -> None:
    net = nn.Sequential(nn.ReLU())
    net.kept = [nn.Dropout()]
    gone = weakref.ref(net), weakref.ref(net.kept[0])
    with modes.guard(net, on_violation="collect") as guard:
        del net
        gc.collect()
        assert [each() for each in gone] == [None, None]
    assert guard.findings
