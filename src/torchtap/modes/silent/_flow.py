"""Whether what a call without gradients returned goes into the loss: read from the source, from variable to variable.

So tells a part of a training step (targets, self-conditioning, a frozen backbone) from an evaluation, whose outputs
never reach a backward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType

from torch import nn

from torchtap.modes.silent._calls import called, parsed
from torchtap.modes.silent._order import Lines

_MODULE_PY: str = nn.Module.__call__.__code__.co_filename
_SWITCHES = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
_WITHIN_A_LINE = frozenset({"<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})

_Spot = tuple[int, int | None]
"""Line and column; the column is known since Python 3.11."""


def outside(call: Lines) -> int:
    """Which of its frames called the outermost module."""
    at = 0
    for index, (_, code, _) in enumerate(call):
        if code.co_filename == _MODULE_PY or code.co_name == "forward":
            at = index + 1
    return min(at, len(call) - 1)


def switched_inside(call: Lines) -> bool:
    """Whether gradients were switched off within the model's own code."""
    return any(_switches(code, _spot(code, at)[0]) for _, code, at in call[: outside(call)])


def goes_into(call: Lines, backward: Lines) -> bool:
    """Whether the outputs of the model that was called reach what this backward is called on.

    Both are followed outwards to the innermost function that led to both. Not where the source cannot be read.
    """
    known = {(frame, code): at for frame, code, at in backward}
    common = next((i for i, (frame, code, _) in enumerate(call) if (frame, code) in known), None)
    if common is None:
        return False
    frame, code, at = call[common]
    inner = call[min(outside(call[: common + 1]), common) : common]
    return _reaches(code, _spot(code, at), _spot(code, known[frame, code])) and all(
        _reaches(each, _spot(each, where), None) for _, each, where in inner
    )


@lru_cache(maxsize=1024)
def _spot(code: CodeType, instruction: int) -> _Spot:
    if hasattr(code, "co_positions"):
        line, _, column, _ = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
        if line is not None:
            return line, column
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return next(lines, None) or code.co_firstlineno, None


@lru_cache(maxsize=1024)
def _reaches(code: CodeType, start: _Spot, end: _Spot | None) -> bool:
    """Whether the value made at `start` gets to `end`; None: is returned."""
    if code.co_name in _WITHIN_A_LINE:
        return True
    reached: set[str] = set()
    begun = False
    for statement in _statements(code):
        first, last = not begun and _holds(statement, start), end is not None and _holds(statement, end)
        begun = begun or first
        goes_on = first or bool(begun and _uses(statement, reached))
        if last:
            return goes_on
        if (
            goes_on
            and end is None
            and any(isinstance(n, (ast.Return, ast.Yield)) for n in ast.walk(statement))
        ):
            return True
        if begun:
            made = set(_made(statement))
            reached = reached | made if goes_on else reached - made
    return False


def _statements(code: CodeType) -> Iterator[ast.AST]:
    """Of a function, in the order of the text; of `if`, `for` and `with` the head and the body apart."""
    function = _function(code)
    return _flat(function.body) if function is not None else iter(())


@lru_cache(maxsize=256)
def _function(code: CodeType) -> ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | None:
    tree = parsed(code.co_filename)
    if tree is None or code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            lines = (node.lineno, *(each.lineno for each in node.decorator_list))
            if code.co_firstlineno in lines:
                return node
    return None


def _flat(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        bodies = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or not any(bodies):
            yield statement
            continue
        yield from _head(statement)
        bodies[1:1] = [
            each.body for each in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
        ]
        for each in bodies:
            yield from _flat(each)


def _head(statement: ast.stmt) -> Iterator[ast.AST]:
    """As statements of their own: what a `for` or a `with` assigns, what an `if` looks at."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield _assignment(statement.target, statement.iter)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            target = item.optional_vars
            yield item.context_expr if target is None else _assignment(target, item.context_expr)
    elif (test := getattr(statement, "test", getattr(statement, "subject", None))) is not None:
        yield test


def _assignment(target: ast.expr, value: ast.expr) -> ast.Assign:
    return ast.copy_location(ast.Assign(targets=[target], value=value), value)


def _holds(node: ast.AST, spot: _Spot) -> bool:
    line, column = spot
    begin, end = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if begin is None or not begin <= line <= (end or begin):
        return False
    if column is None or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return column is None
    return (
        (begin, getattr(node, "col_offset", 0))
        <= (line, column)
        < (end or begin, getattr(node, "end_col_offset", 0))
    )


def _uses(node: ast.AST, names: set[str]) -> bool:
    return bool(names) and any(
        name == each or name.startswith(f"{each}.") for name in _loaded(node) for each in names
    )


def _loaded(node: ast.AST) -> Iterator[str]:
    every = isinstance(node, ast.AugAssign)  # reads what it writes
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)) and (every or isinstance(each.ctx, ast.Load)):
            yield from _path(each)


def _made(node: ast.AST) -> Iterator[str]:
    """The variables and attributes that a statement assigns, such as `loss` and `self.loss`."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
        return
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(each.ctx, ast.Store):
            yield from _path(each.value if isinstance(each, ast.Subscript) else each)


def _path(node: ast.expr) -> Iterator[str]:
    """Such as "self.loss"; nothing for what is no name."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield from (f"{inner}.{node.attr}" for inner in _path(node.value))


@lru_cache(maxsize=1024)
def _switches(code: CodeType, line: int) -> bool:
    """Whether the line stands in a `with torch.no_grad():`, or the function is decorated with one."""
    function = _function(code)
    if function is None:
        return False
    withs = [
        item.context_expr
        for node in ast.walk(function)
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= (node.end_lineno or 0)
        for item in node.items
    ]
    return any(
        isinstance(each, ast.Call) and called(each) in _SWITCHES
        for each in [*withs, *getattr(function, "decorator_list", [])]
    )
