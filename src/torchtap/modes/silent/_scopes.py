"""Whether a mode was put back by the scope that had changed it: a context manager, a decorator, a function."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection
from types import CodeType, FrameType

from torchtap.modes._observer import Setter
from torchtap.modes.silent._calls import called, parsed

_DEEPEST = 60
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def codes(frame: FrameType | None) -> frozenset[CodeType]:
    """Of all functions that run. Reads no variables: see `_frames.stack_from`."""
    found: list[CodeType] = []
    while frame is not None and len(found) < _DEEPEST:
        found.append(frame.f_code)
        frame = frame.f_back
    return frozenset(found)


def within(inner: CodeType, outer: CodeType) -> bool:
    """Whether it is that function, or one that is written in it: a lambda, a comprehension, a helper."""
    return inner is outer or any(
        within(inner, each) for each in outer.co_consts if isinstance(each, CodeType)
    )


def put_back(
    was: Setter | None, now: Setter, *, forward: Collection[CodeType], backward: Collection[CodeType]
) -> bool:
    """Whether `now` gives back the mode that `was` has changed around the forward, by intent.

    `forward` and `backward` are the functions that ran at these times. A scope has ended by the time of the backward;
    in one function with it, only `finally`, the end of a `with`, or a mode that was kept in a variable tells it from
    the train() that is put before backward() by mistake.
    """
    first = was.stack.here if was is not None else None
    last = now.stack.here
    if first is None or last is None:
        return False
    if (first.function, last.function) == ("__enter__", "__exit__"):
        return first.file == last.file
    if first.code is not last.code:
        return False
    if first.code not in backward:
        return bool(first.code.co_flags & _GENERATOR) or first.code in forward
    return _at_an_end(first.code, last.lineno) or _from_a_variable(first.code, last.lineno)


def _at_an_end(code: CodeType, line: int) -> bool:
    """Whether the line is in a `finally`, or is the `with` whose end called train()."""
    tree = parsed(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Try) and any(_holds(each, line) for each in node.finalbody):
            return True
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line < node.body[0].lineno:
            return True
    return False


def _from_a_variable(code: CodeType, line: int) -> bool:
    """Whether the line is `net.train(was)` or `net.training = was`, and not `net.train()` or `net.train(True)`."""
    tree = parsed(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and called(node) == "train" and _holds(node, line):
            given = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.Assign) and _writes_mode(node) and _holds(node, line):
            given = [node.value]
        else:
            continue
        if any(not isinstance(each, ast.Constant) for each in given):
            return True
    return False


def _writes_mode(node: ast.Assign) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "training" for each in node.targets)


def _holds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
