"""What a fix gives back: for `with`, and as a decorator of functions, the same way for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

from torchtap.modes._given import Function, decorated

T = TypeVar("T")


class _Entered(threading.local):
    def __init__(self) -> None:
        self.managers: list[AbstractContextManager[Any]] = []


class Scope(Generic[T]):
    """A context that may be entered again, also within itself and from several threads, and decorates functions.

    `contextlib.contextmanager` gives a context that works once. As a decorator it takes generators and coroutines too,
    and has closed before their body runs. Here that is a `TypeError` where the function is decorated.

    >>> from contextlib import nullcontext
    >>> scope = Scope("fix()", lambda: nullcontext("inside"))
    >>> with scope as outer, scope as inner:
    ...     outer, inner
    ('inside', 'inside')
    >>> @scope
    ... def rows():
    ...     yield 1
    Traceback (most recent call last):
    ...
    TypeError: fix() cannot decorate rows, a generator: its body runs after the call. Use `with modes.fix():` inside it
    """

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._name = name
        self._make = make
        self._entered = _Entered()

    def __repr__(self) -> str:
        return f"<{self._name}, {len(self._entered.managers)} times entered>"

    def __enter__(self) -> T:
        manager = self._make()
        result = manager.__enter__()
        self._entered.managers.append(manager)
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if not self._entered.managers:
            raise RuntimeError(f"{self._name} is left in a thread that has not entered it")
        return self._entered.managers.pop().__exit__(kind, error, trace)

    def __call__(self, function: Function) -> Function:
        """A function that runs `function` inside, entered anew at each call."""
        return decorated(self._name, function, lambda: self)
