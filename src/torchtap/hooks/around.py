"""A block of code as a decorator: each call of the function enters it anew."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def around(manager: AbstractContextManager[Any], function: Callable[P, R]) -> Callable[P, R]:
    """`function` with each of its calls inside `with manager`.

    Raises TypeError for generators and coroutines: their body runs after the call, when the block has been left.
    """
    later = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(each(function) for each in later):
        raise TypeError(
            f"{function.__qualname__} is a generator or coroutine: its body runs after the call has returned. Use the "
            "`with` form inside it"
        )

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with manager:
            return function(*args, **kwargs)

    return inside
