"""What users hand in as a model, or to be decorated: taken if it is that, else one error that says what to write."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from torchtap.modes._walk import is_made, modules, named_modules

Function = TypeVar("Function", bound=Callable[..., Any])


def models_given(door: str, *models: Any) -> tuple[nn.Module, ...]:
    """The models, each once, for `door`: the name of a public function that takes models.

    Raises `TypeError` for what is no `nn.Module` and for a model of which a part is half made.

    >>> models_given("guard", [nn.ReLU()])
    Traceback (most recent call last):
    ...
    TypeError: guard() takes nn.Modules, got a list: write guard(*models)
    """
    for each in models:
        if not isinstance(each, nn.Module):
            raise TypeError(f"{door}() takes nn.Modules, got {named(each)}{_hint(door, each)}")
    for module in modules(*models):
        if not is_made(module):
            path = next(path for each in models for path, part in named_modules(each) if part is module)
            where = f"{path} ({type(module).__name__})" if path else f"the {type(module).__name__} itself"
            raise TypeError(
                f"{door}() was given a model that is half made: {where} has no register of modules. "
                f"Call super().__init__() first in {type(module).__name__}.__init__"
            )
    return tuple({id(each): each for each in models}.values())


def named(value: object) -> str:
    """What this is, in a message: "a list", "the class LSTM", "the function train()"."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '?')}()"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in {*'aeio'} else 'a'} {name}"


def _hint(door: str, value: object) -> str:
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f": give it a model, {value.__name__}(...), not its class"
    if isinstance(value, (list, tuple, set)):
        return f": write {door}(*models)"
    if callable(value):
        return f". As a decorator: @modes.{door}(model)"
    return f": write {door}(model), or {door}(actor, critic)"


def no_brackets(door: str, value: object) -> TypeError:
    """The error for a decorator that takes nothing and was written without its brackets."""
    return TypeError(f"{door}() takes nothing, got {named(value)}. As a decorator: @modes.{door}()")


_LATER: dict[str, Callable[[object], bool]] = {
    "a generator": inspect.isgeneratorfunction,
    "an asynchronous generator": inspect.isasyncgenfunction,
    "a coroutine": inspect.iscoroutinefunction,
}


def decorated(
    door: str,
    function: Function,
    opened: Callable[[], AbstractContextManager[Any]],
    *,
    coroutines: bool = False,
) -> Function:
    """A function that runs `function` inside of what `opened` gives, entered anew at each call.

    `door` is how the context is written: "guard(model)". With `coroutines`, an `async def` runs inside until its
    coroutine ends. Else these are refused, as generators are always: their body runs after the call. Raises
    `TypeError` for those, and for what is no function.
    """
    if not callable(function) or isinstance(function, (type, nn.Module)):
        hint = next((hint for kind, hint in _INSTEAD.items() if isinstance(function, kind)), "").format(door)
        raise TypeError(f"{door} decorates functions, got {named(function)}{hint}")
    for kind in _kinds_of(function):
        if kind != "a coroutine" or not coroutines:
            name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
            raise TypeError(
                f"{door} cannot decorate {name}, {kind}: its body runs after the call. "
                f"Use `with modes.{door}:` inside it"
            )

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with opened():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def coroutine_inside(*args: Any, **kwargs: Any) -> Any:
        with opened():
            return await function(*args, **kwargs)

    return cast(Function, coroutine_inside if any(_kinds_of(function)) else inside)


_INSTEAD: dict[type, str] = {
    nn.Module: ": it does not stand in for the model. Call the model inside `with modes.{}:`",
    Tensor: ": it does not stand in for the model. Call the model inside `with modes.{}:`",
    type: ": decorate its methods",
}


def _kinds_of(function: Callable[..., Any]) -> Iterator[str]:
    """How its body runs after the call; an object with such a `__call__` counts."""
    for kind, is_kind in _LATER.items():
        if is_kind(function) or is_kind(getattr(function, "__call__", None)):  # noqa: B004
            yield kind
