"""What has to come along with what is asked for: checks that others need, steps that must run before others."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def with_needed(names: Iterable[str], needs: Callable[[str], Iterable[str]]) -> set[str]:
    """The names, what they need, what that needs, and so on.

    >>> sorted(with_needed(["c"], {"a": [], "b": ["a"], "c": ["b"]}.__getitem__))
    ['a', 'b', 'c']
    """
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += needs(name)
    return wanted
