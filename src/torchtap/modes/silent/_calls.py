"""What a call says in the source: whether an argument was given, and as what.

A call's place in the source is known exactly since Python 3.11 (PEP 657); before, by line and name of the function.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

from torchtap.modes._frames import Place


def call_at(frame: FrameType, name: str) -> ast.Call | None:
    """The call that `frame` is executing, of a function called `name` as a rule; None where it cannot be read."""
    return _call(frame.f_code, frame.f_lasti, frame.f_lineno, name)


@lru_cache(maxsize=256)
def made_in(code: CodeType) -> frozenset[str]:
    """The local names that the function binds to what a class makes, going by its capital letter."""
    tree = parsed(code.co_filename)
    names = set()
    for function in ast.walk(tree) if tree is not None else ():
        if isinstance(function, ast.FunctionDef) and _first_line(function) == code.co_firstlineno:
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and _makes(node.value):
                    names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return frozenset(names)


def _makes(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and called(value)[:1].isupper()


def _first_line(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


@lru_cache(maxsize=256)
def calls_in(place: Place, name: str) -> int:
    """How many calls of functions of that name stand in a line."""
    tree = parsed(place.file)
    nodes = ast.walk(tree) if tree is not None else ()
    return sum(
        isinstance(node, ast.Call) and called(node) == name and node.lineno == place.lineno for node in nodes
    )


@lru_cache(maxsize=16)
def parsed(file: str) -> ast.Module | None:
    """The source file; None where it cannot be read."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):  # not the source of what runs
        return None


@lru_cache(maxsize=256)
def _call(code: CodeType, instruction: int, line: int, name: str) -> ast.Call | None:
    tree = parsed(code.co_filename)
    if tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if hasattr(code, "co_positions"):
        spot = next(islice(code.co_positions(), instruction // 2, None), None)
        if spot is not None and None not in spot:
            for call in calls:
                if (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset) == spot:
                    return call
    there = [call for call in calls if call.lineno <= line <= (call.end_lineno or call.lineno)]
    named = [call for call in there if called(call) == name]
    return named[0] if len(named) == 1 else None


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


BY_NAME_ONLY = 1000
"""The position of a parameter that has none."""
GIVEN_NOT = "not given"
CANNOT_TELL = "cannot tell"


def argument(call: ast.Call, name: str, position: int) -> ast.expr | str:
    """The expression given for a parameter; `GIVEN_NOT`, or `CANNOT_TELL` behind a star."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if any(isinstance(each, ast.Starred) for each in call.args[: position + 1]) and position < BY_NAME_ONLY:
        return CANNOT_TELL
    if position < len(call.args):
        return call.args[position]
    return CANNOT_TELL if any(keyword.arg is None for keyword in call.keywords) else GIVEN_NOT
