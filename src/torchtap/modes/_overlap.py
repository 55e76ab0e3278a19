"""Contexts that change the same modules, left in another order than entered: from two threads, or two coroutines."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Generic, TypeVar

Value = TypeVar("Value")

LOCK = threading.RLock()
"""Held while a context looks at its modules and changes them, and while it puts them back; not in between.

One for all, and one that its own thread may take again: an overridden train() may open a fix of its own.
"""


class Overlap(Generic[Value]):
    """What the open contexts found, each by the `id()` of its modules, which live as long as the context is open.

    The last one of a module puts back what it found. One that is left before has its finds handed on to the next that
    uses the module, so that in whatever order they are left, the module is in the end as it was at first.

    >>> dropouts = Overlap()
    >>> first, second = {1: 0.5, 2: 0.1}, {1: 0.0}
    >>> dropouts.entered(first), dropouts.entered(second)
    (None, None)
    >>> dropouts.left(first), second
    ({1}, {1: 0.5})
    >>> dropouts.left(second)
    set()
    """

    def __init__(self) -> None:
        self._open: list[dict[int, Value]] = []

    def entered(self, found: dict[int, Value]) -> None:
        """A context has found this."""
        self._open.append(found)

    def left(self, found: dict[int, Value]) -> Collection[int]:
        """It is left: which of its modules it must not touch, as another one that was opened later has them now."""
        place = next(number for number, each in enumerate(self._open) if each is found)
        later = self._open[place + 1 :]
        del self._open[place]
        handed = set()
        for key, value in found.items() if later else ():
            heir = next((each for each in later if key in each), None)
            if heir is not None:
                heir[key] = value
                handed.add(key)
        return handed
