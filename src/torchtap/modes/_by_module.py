"""What is kept about modules: by identity, and no longer than they live."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import nn

Value = TypeVar("Value")


class ByModule(Generic[Value]):
    """A `WeakKeyDictionary` that never asks a module for its `__eq__` or `__hash__`: users define both.

    >>> kept = ByModule()
    >>> one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> kept[one] = "first"
    >>> kept.get(one), kept.get(two), two in kept, len(kept)
    ('first', None, False, 1)
    >>> del one
    >>> len(kept)
    0
    """

    __slots__ = ("__weakref__", "_forget", "_kept")

    def __init__(self) -> None:
        self._kept = dict[int, tuple["weakref.KeyedRef[int, nn.Module]", Value]]()
        # Goes with its last reference, without the garbage collector: until Python 3.12 that may run in the middle of
        # a module's end, and a weak reference with a callback that it frees there is one too many (a crash, seen).
        mine = weakref.ref(self)

        def forget(ref: weakref.KeyedRef[int, nn.Module]) -> None:
            # The number may be another module's by now.
            if (by := mine()) is not None and (item := by._kept.get(ref.key)) is not None and item[0] is ref:
                by._kept.pop(ref.key, None)

        self._forget = forget

    def get(self, module: nn.Module) -> Value | None:
        """What is kept of this module, or None."""
        item = self._kept.get(id(module))
        return item[1] if item is not None and item[0]() is module else None

    def __getitem__(self, module: nn.Module) -> Value:
        item = self._kept[id(module)]
        if item[0]() is not module:
            raise KeyError(module)
        return item[1]

    def __setitem__(self, module: nn.Module, value: Value) -> None:
        item = self._kept.get(id(module))
        known = item is not None and item[0]() is module
        ref = item[0] if known and item is not None else weakref.KeyedRef(module, self._forget, id(module))
        self._kept[id(module)] = (ref, value)

    def pop(self, module: nn.Module) -> None:
        """Forget what is kept of this module, if anything is."""
        if self.get(module) is not None:
            self._kept.pop(id(module), None)

    def __contains__(self, module: nn.Module) -> bool:
        return self.get(module) is not None

    def __len__(self) -> int:
        return len(self._kept)

    def items(self) -> Iterator[tuple[nn.Module, Value]]:
        """Those whose module is still there."""
        for ref, value in list(self._kept.values()):
            if (module := ref()) is not None:
                yield module, value

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
