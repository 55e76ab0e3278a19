"""Fixes that are open at the same time and left in another order than they were entered: by threads, generators, tasks.

What one of them finds on entry is what another one has set. Left before that one, it would put the model's own values
back too early, and the other one afterwards what is nobody's. So who leaves first hands on what it would put back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Kept = dict[tuple[int, str], tuple[nn.Module, Any]]
"""By a module's id and the name of what is kept of it: the module, and what to put back."""

_lock = (
    threading.RLock()
)  # over reading and putting back too, so that nobody reads what is about to be put back
_open: list[Kept] = []  # in the order of entry


@contextmanager
def keeping(read: Callable[[], Kept], put_back: Callable[[Kept], None]) -> Iterator[None]:
    """`read` on entry; on leaving `put_back` that of it which nobody keeps who came later and is still open.

    >>> relu, now = nn.ReLU(), ["train"]
    >>> read = lambda: {(id(relu), "mode"): (relu, now[0])}
    >>> write = lambda kept: now.extend(value for _, value in kept.values())
    >>> first, second = keeping(read, write), keeping(read, write)
    >>> first.__enter__()
    >>> now[0] = "eval"
    >>> second.__enter__()
    >>> first.__exit__(None, None, None), now
    (False, ['eval'])
    >>> second.__exit__(None, None, None), now
    (False, ['eval', 'train'])
    """
    with _lock:
        kept = read()
        _open.append(kept)
    try:
        yield
    finally:
        with _lock:
            position = next(index for index, each in enumerate(_open) if each is kept)
            del _open[position]
            for later in _open[position:]:
                for key in kept.keys() & later.keys():
                    later[key] = kept.pop(key)
            put_back(kept)
