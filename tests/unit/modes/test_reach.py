"""`hidden_modules`: what a model keeps out of reach of train() and eval(), by what name; how far it is looked for."""

# mypy: disable-error-code="assignment"
# (nn.Module is typed as if attributes were modules and tensors only)

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchtap.modes import reach
from torchtap.modes.reach import Hidden, hidden_modules


def hidden(*models: nn.Module) -> list[str]:
    """`path: name` of each that is found."""
    return [f"{each.path}: {each.name}" for each in hidden_modules(models)]


def holding(**attributes: object) -> nn.Module:
    model = nn.Module()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@dataclass
class Pair:
    one: object
    other: object = None


@dataclass(slots=True)
class Slotted:
    one: object


NAMES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "list": (lambda m: [None, m], "kept[1]"),
    "tuple": (lambda m: (m,), "kept[0]"),
    "set": (lambda m: {m}, "kept[0]"),
    "deque": (lambda m: deque([m]), "kept[0]"),
    "dict": (lambda m: {"a": m}, "kept['a']"),
    "dict by number": (lambda m: {3: m}, "kept[3]"),
    "list of dicts": (lambda m: [{"a": m}], "kept[0]['a']"),
    "dataclass": (lambda m: Pair(1, m), "kept.other"),
    "slots": (Slotted, "kept.one"),
    "namespace": (lambda m: SimpleNamespace(a=m), "kept.a"),
    "partial": (functools.partial, "kept.func"),
    "argument of a partial": (lambda m: functools.partial(print, m), "kept.args"),
    "keyword of a partial": (lambda m: functools.partial(print, file=m), "kept.keywords['file']"),
    "bound method": (lambda m: m.forward, "kept.__self__"),
    "lambda": (lambda m: lambda: m, "kept.__closure__"),
}


@pytest.mark.parametrize(("hold", "name"), NAMES.values(), ids=NAMES)
def test_the_name_says_how_the_holder_gets_at_it(hold: Callable[[nn.Module], object], name: str) -> None:
    module = nn.GRU(2, 2)
    model = nn.Sequential(nn.Identity(), holding(kept=hold(module)))
    assert hidden_modules([model]) == [Hidden(model[1], "1", name, module)]


@pytest.mark.parametrize(
    "how", ["list", "tuple", "dict", "dict by number", "list of dicts", "slots", "namespace"]
)
def test_such_a_name_is_an_expression(how: str) -> None:
    module = nn.GRU(2, 2)
    model = holding(kept=NAMES[how][0](module))
    assert eval(f"model.{hidden_modules([model])[0].name}", {"model": model}) is module


def test_each_is_told_once_and_not_what_lies_below_it() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    assert hidden(holding(first=[inner], second=[inner, inner[0]])) == [": first[0]"]


def test_what_is_registered_in_any_of_the_models_is_in_reach() -> None:
    part = nn.Linear(2, 2)
    assert hidden(holding(kept=[part], part=part)) == []
    assert hidden(holding(kept=[part]), nn.Sequential(part)) == []
    assert hidden(holding(kept=[part])) == [": kept[0]"]


def test_a_way_back_to_the_parent_is_none() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].parent = [model]
    model[0].trainer = SimpleNamespace(net=nn.Sequential(model))
    assert hidden(model) == []


def test_what_pytorch_itself_keeps_is_not_looked_into() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    hook = nn.Dropout()
    model.register_forward_hook(lambda *_: hook(torch.zeros(1)))
    assert hidden(model, torch.jit.script(nn.ReLU())) == []


def test_a_half_made_module_and_odd_values_raise_nothing() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            self.__dict__["kept"] = [nn.Linear(2, 2)]

    def unfilled() -> Callable[[], object]:
        def function() -> object:
            return later

        if unfilled.__name__ == "":
            later = 1
        return function

    assert hidden(nn.Sequential(Half())) == ["0: kept[0]"]
    assert hidden(holding(a=unfilled(), b=int, c=torch.zeros(2), d="text", e=object())) == []


def test_a_cycle_ends() -> None:
    loop: list[Any] = [nn.Linear(2, 2)]
    loop.append(loop)
    assert hidden(holding(kept=loop)) == [": kept[0]"]


# --- how far it is looked for ---


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_containers_within_containers_are_looked_into_three_deep(levels: int) -> None:
    value: Any = nn.Linear(2, 2)
    for _ in range(levels):
        value = [value]
    assert hidden(holding(kept=value)) == [f": kept{'[0]' * levels}"] * (levels <= 3)


@pytest.mark.parametrize("make", [list, tuple, deque, lambda items: dict(enumerate(items))])
def test_of_one_container_the_first_thousand_items(make: Callable[[list[object]], object]) -> None:
    for before, found in ((999, True), (1000, False)):
        items = [*range(before), nn.Linear(2, 2)]
        assert bool(hidden(holding(kept=make(items)))) is found


def counted(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> int:
    """How many items are looked at."""
    looked_at = 0
    native = reach._items

    def items(value: object) -> Iterator[tuple[str, object]]:
        nonlocal looked_at
        for each in native(value):
            looked_at += 1
            yield each

    with monkeypatch.context() as patch:
        patch.setattr(reach, "_items", items)
        hidden_modules([model])
    return looked_at


def test_of_one_attribute_five_thousand_items_on_all_levels_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay buffer: a thousand episodes of a thousand steps each would take seconds at every entry of a guard."""
    buffer = [[*range(900)] for _ in range(100)]
    assert 5000 <= counted(monkeypatch, holding(buffer=buffer)) < 5200
    assert counted(monkeypatch, holding(small=[[*range(10)] for _ in range(10)])) == 110
    # The next attribute has a budget of its own.
    model = holding(buffer=buffer, kept=[nn.Linear(2, 2)])
    assert hidden(model) == [": kept[0]"]


def test_what_comes_before_the_budget_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_LOOKED_AT", 20)
    for before, found in ((9, True), (30, False)):
        assert bool(hidden(holding(kept=[[*range(before)], nn.Linear(2, 2)]))) is found
