"""The walk over a model, where PyTorch's own raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from torchtap import modes
from torchtap.modes._walk import is_made, mode_of, modules, named_modules


class Unhashable(nn.Module):
    """Equal to all of its kind, as a class with a setting in it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(2, 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    __hash__ = None  # type: ignore[assignment]


class Moody(nn.Module):
    """Its mode is a property, which raises."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()

    @property
    def training(self) -> bool:
        raise ValueError("not now")

    @training.setter
    def training(self, value: bool) -> None:
        pass


def nested(depth: int = 1500) -> nn.Module:
    model: nn.Module = nn.Dropout()
    for _ in range(depth):
        model = nn.Sequential(model)
    return model


DIFFICULT: dict[str, Callable[[], nn.Module]] = {"unhashable": Unhashable, "moody": Moody, "nested": nested}
FIXES = (modes.eval_mode, modes.preserve_modes, modes.differentiable_eval)


def test_modules_are_those_of_pytorch_in_its_order() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"one": nn.Sequential(shared, nn.Dropout()), "two": shared})
    assert list(named_modules(model)) == list(model.named_modules())
    assert modules(model, shared, model) == list(model.modules())


@pytest.mark.parametrize("make", DIFFICULT.values(), ids=DIFFICULT)
def test_difficult_models_are_walked(make: Callable[[], nn.Module]) -> None:
    model = make()
    every = modules(model, model)
    assert len({id(each) for each in every}) == len(every) > 1
    assert all(map(is_made, every))


def test_a_mode_that_cannot_be_read_is_none() -> None:
    assert (mode_of(nn.ReLU()), mode_of(nn.ReLU().eval()), mode_of(Moody())) == (True, False, None)
    assert mode_of(nn.Module.__new__(nn.Module)) is None
    assert not is_made(nn.Module.__new__(nn.Module))


@pytest.mark.parametrize("make", DIFFICULT.values(), ids=DIFFICULT)
@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.__name__)
def test_fixes_take_difficult_models(fix: Any, make: Callable[[], nn.Module]) -> None:
    model = make()
    before = [mode_of(each) for each in modules(model)]
    if fix is modes.eval_mode and make is nested:
        with pytest.raises(RecursionError), fix(model):  # PyTorch's own eval()
            pass
    else:
        with fix(model) as same:
            assert same is model
            modules(model)[-1].eval()
    assert [mode_of(each) for each in modules(model)] == before


@pytest.mark.parametrize("make", DIFFICULT.values(), ids=DIFFICULT)
def test_difficult_models_are_described(make: Callable[[], nn.Module]) -> None:
    model = make()
    tree = modes.describe(model)
    every = [each for _, each in tree.root.walk()]
    assert [each.training for each in every] == [mode_of(each) for each in modules(model)]
    told = tree.to_dict()["root"]
    for each in every:
        assert (told["path"], told["training"]) == (each.path, each.training)
        told = (told["children"] or [None])[0]
    assert type(model).__name__ in str(tree)
    assert type(model).__name__ in tree._repr_html_()
    assert type(model).__name__ in repr(tree.root)


def test_a_mode_that_cannot_be_read_is_marked() -> None:
    (finding,) = modes.describe(nn.Sequential(Moody())).findings
    assert (finding.id, finding.where, finding.seen) == (
        "module.unreadable",
        "0",
        "its training cannot be read",
    )
