"""What is handed to the public functions, and is no model or no function: one error that says what to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from torchtap import modes
from torchtap.modes._given import decorated, models_given

NET = nn.Linear(2, 2)  # a guard keeps no model alive
TAKE_MODELS: dict[str, Callable[..., Any]] = {
    "guard": modes.guard,
    "eval_mode": modes.eval_mode,
    "preserve_modes": modes.preserve_modes,
    "differentiable_eval": modes.differentiable_eval,
}
DECORATE: dict[str, Callable[[], Any]] = {
    "guard(model)": lambda: modes.guard(NET),
    "eval_mode(...)": lambda: modes.eval_mode(NET),
    "without_cudnn()": modes.without_cudnn,
    "emulate_cudnn()": modes.emulate_cudnn,
}
each_taking_models = pytest.mark.parametrize("door", TAKE_MODELS)
each_decorating = pytest.mark.parametrize("door", DECORATE)


def fit() -> None:
    """A function of the user's."""


class HalfMade(nn.Module):
    """Sets an attribute, which works, and forgets super().__init__()."""

    def __init__(self) -> None:
        self.scale = 2.0


@each_taking_models
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ([NET], "a list: write {door}(*models)"),
        ((NET, NET), "a tuple: write {door}(*models)"),
        (None, "None: write {door}(model), or {door}(actor, critic)"),
        ({"net": NET}, "a dict: write {door}(model), or {door}(actor, critic)"),
        (nn.Linear, "the class Linear: give it a model, Linear(...), not its class"),
        (fit, "the function fit(). As a decorator: @modes.{door}(model)"),
        (int, "the class int. As a decorator: @modes.{door}(model)"),
    ],
    ids=["list", "tuple", "None", "dict", "module-class", "function", "class"],
)
def test_what_is_no_model_is_told_what_to_write(door: str, what: Any, words: str) -> None:
    for models in ((what,), (NET, what)):
        with pytest.raises(TypeError) as caught:
            TAKE_MODELS[door](*models)
        assert str(caught.value) == f"{door}() takes nn.Modules, got {words.format(door=door)}"


@each_taking_models
@pytest.mark.parametrize(
    ("model", "where"),
    [(HalfMade(), "the HalfMade itself"), (nn.Sequential(NET, nn.Sequential(HalfMade())), "1.0 (HalfMade)")],
    ids=["model", "part"],
)
def test_a_half_made_model_is_told_where_and_what_is_missing(door: str, model: nn.Module, where: str) -> None:
    with pytest.raises(TypeError) as caught:
        TAKE_MODELS[door](model)
    assert str(caught.value) == (
        f"{door}() was given a model that is half made: {where} has no register of modules. "
        "Call super().__init__() first in HalfMade.__init__"
    )


def test_each_model_is_taken_once_and_by_identity() -> None:
    class Equal(nn.Module):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    one, two = Equal(), Equal()
    taken = models_given("guard", one, two, one)
    assert [id(each) for each in taken] == [id(one), id(two)]


@pytest.mark.parametrize("door", [modes.emulate_cudnn, modes.without_cudnn])
def test_a_decorator_without_its_brackets_is_told_to_have_them(door: Any) -> None:
    name = door.__name__
    for what, words in ((fit, "the function fit()"), (HalfMade, "the class HalfMade"), (NET, "a Linear")):
        with pytest.raises(TypeError) as caught:
            door(what)
        assert str(caught.value) == f"{name}() takes nothing, got {words}. As a decorator: @modes.{name}()"


@each_decorating
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (HalfMade, "the class HalfMade: decorate its methods"),
        (NET, "a Linear: it does not stand in for the model. Call the model inside `with modes.{door}:`"),
        (
            torch.zeros(1),
            "a Tensor: it does not stand in for the model. Call the model inside `with modes.{door}:`",
        ),
        (3, "an int"),
        (None, "None"),
    ],
    ids=["class", "module", "tensor", "number", "None"],
)
def test_what_is_no_function_is_not_decorated(door: str, what: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        DECORATE[door]()(what)
    assert str(caught.value) == f"{door} decorates functions, got {words.format(door=door)}"


def generator() -> Iterator[int]:
    yield 1


async def asynchronous() -> AsyncIterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


class Batches:
    """An object that is called as a generator function is."""

    def __call__(self) -> Iterator[int]:
        yield 1


@each_decorating
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (generator, "generator, a generator"),
        (partial(generator), "partial, a generator"),
        (asynchronous, "asynchronous, an asynchronous generator"),
        (Batches(), "Batches, a generator"),
    ],
    ids=["generator", "partial", "asynchronous-generator", "object"],
)
def test_what_runs_after_the_call_is_not_decorated(door: str, function: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        DECORATE[door]()(function)
    assert str(caught.value) == (
        f"{door} cannot decorate {words}: its body runs after the call. Use `with modes.{door}:` inside it"
    )


def test_a_coroutine_is_run_inside_or_refused() -> None:
    events: list[str] = []

    class Opened(nullcontext[None]):
        def __enter__(self) -> None:
            events.append("in")

        def __exit__(self, *_: object) -> None:
            events.append("out")

    async def body() -> int:
        await asyncio.sleep(0)
        events.append("body")
        return 3

    later = decorated("fix()", body, Opened, coroutines=True)()
    assert events == []
    assert asyncio.run(later) == 3
    assert events == ["in", "body", "out"]
    with pytest.raises(TypeError, match=r"fix\(\) cannot decorate body, a coroutine: its body runs after"):
        decorated("fix()", body, Opened)
