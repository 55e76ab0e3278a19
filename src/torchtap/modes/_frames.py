"""Where in the user's code something happened: places, kept as code objects and lines, no frames.

A frame would keep every local variable alive, tensors too; a code object keeps nothing but itself.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

_TORCH = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120  compared with co_filename, letter by letter
_TORCHTAP = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120
_STANDARD = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_FUNCTIONAL: str = nn.functional.dropout.__code__.co_filename
_MODULE_PY: str = nn.Module.__call__.__code__.co_filename
_DEEPEST = 60
"""Frames looked at on the way out. Deeper than any model's own calls; a recursion must not cost more."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code.

    >>> place = Place(code=shown.__code__, lineno=7)
    >>> place.lineno, place.function
    (7, 'shown')
    """

    code: CodeType
    lineno: int

    @property
    def file(self) -> str:
        """As Python gives it: absolute as a rule; a temporary file for a notebook's cell."""
        return self.code.co_filename

    @property
    def function(self) -> str:
        """The function's name; `<module>` at the top level of a file."""
        return self.code.co_name

    @property
    def text(self) -> str:
        """The source line, stripped; "" where it cannot be read."""
        return linecache.getline(self.file, self.lineno).strip()

    def __str__(self) -> str:
        """`file:line`, relative to the working directory where it lies below it; `In[5]:3` for a notebook's cell."""
        return f"{shown(self.file)}:{self.lineno}"


def shown(file: str) -> str:
    """The file's path as short as it is still clear; `In[5]` for a cell, as IPython's own tracebacks name it."""
    if cell := _cell(file):
        return cell
    for folder in _PACKAGES:
        if folder in file:
            return file.rpartition(folder)[2]
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):  # another drive; a working directory that is gone
        return file
    return file if file.startswith("<") or relative.startswith(os.pardir) else relative


def _cell(file: str) -> str | None:
    """Which cell of a notebook or of IPython this is. Its file has a name that no reader knows."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named: Callable[[str], tuple[str, str] | None] | None = getattr(
        getattr(shell, "compile", None), "format_code_name", None
    )
    kind_and_name = named(file) if named is not None else None
    return kind_and_name[1] if kind_and_name is not None else None


@dataclass(frozen=True, slots=True)
class Stack:
    """The lines of user and packages that led to an event, innermost first; none where C++ alone called."""

    lines: tuple[tuple[CodeType, int], ...]
    """Up to the line that called the outermost module. Places are made of them only when somebody asks."""
    beyond: tuple[CodeType, int] | None = None
    """Where all of `lines` lie in installed packages: the innermost line outside of them."""

    @property
    def places(self) -> tuple[Place, ...]:
        """All of `lines`."""
        return tuple(Place(*line) for line in self.lines)

    @property
    def here(self) -> Place | None:
        """The innermost line, outside PyTorch and Torchtap: of the model's code, as a rule."""
        return Place(*self.lines[0]) if self.lines else None

    @property
    def caller(self) -> Place | None:
        """The line that called the outermost module: of the training loop, as a rule.

        Where that lies in an installed package (a trainer's), and the user's own code called it: that line.
        """
        if not self.lines:
            return None
        outermost = self.lines[-1]
        if self.beyond is not None:
            return Place(*self.beyond)
        if _owner(outermost[0].co_filename) == _PACKAGE:  # then the outermost line that is the user's own
            outermost = next((each for each in reversed(self.lines) if _is_users(each)), outermost)
        return Place(*outermost)


_LED_OUT_OF = frozenset({"forward", "<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""A forward called without `__call__`, and what stands within a line of the function that is meant."""
_USER, _PACKAGE, _CALLS_MODULES, _SKIPPED = range(4)


@cache
def _owner(file: str) -> int:
    if file == _MODULE_PY:
        return _CALLS_MODULES
    if file.startswith((_TORCH, _TORCHTAP, "<frozen", "<string>")):
        return _SKIPPED
    if any(folder in file for folder in _PACKAGES):
        return _PACKAGE
    return _SKIPPED if file.startswith(_STANDARD) else _USER


def _is_users(line: tuple[CodeType, int]) -> bool:
    return _owner(line[0].co_filename) == _USER


@cache
def _is_models(code: CodeType) -> bool:
    """Whether it computes a part of a model's outputs: `forward`, or another method of a module, such as `encode`.

    A method that runs backward or an optimizer trains the model, and is the loop itself.
    """
    if code.co_name == "forward":
        return True
    return not _TRAINS.intersection(code.co_names) and any(
        _runs(vars(cls).get(code.co_name), code) for cls in _module_classes()
    )


_TRAINS = frozenset({"backward", "grad", "step", "zero_grad"})


def _module_classes() -> Iterator[type]:
    todo: list[type] = [nn.Module]
    seen: set[type] = set(todo)
    while todo:
        cls = todo.pop()
        yield cls
        new = set[type](cls.__subclasses__()) - seen
        seen |= new
        todo += new


def _runs(method: Any, code: CodeType) -> bool:
    """Whether `code` is that of this method, decorators that use functools.wraps taken off."""
    method = method.fget if isinstance(method, property) else getattr(method, "__func__", method)
    while method is not None:
        if getattr(method, "__code__", None) is code:
            return True
        method = getattr(method, "__wrapped__", None)
    return False


def stack_from(frame: FrameType | None) -> Stack:
    """The places from `frame` outwards to the line that called the outermost module.

    Looks at code objects only, never at a frame's variables: before Python 3.13 that would leave a copy of them in
    the frame, and keep tensors alive that the user has deleted.
    """
    lines: list[tuple[CodeType, int]] = []
    inside = 0  # so many of them ran inside a module's call
    left = _DEEPEST
    users = -1  # the first that is the user's own
    while frame is not None and left:
        left -= 1
        code = frame.f_code
        owner = _owner(code.co_filename)
        if owner <= _PACKAGE:
            if owner == _USER and users < 0:
                users = len(lines)
            lines.append((code, frame.f_lineno))
        elif owner == _CALLS_MODULES and code.co_name == "_call_impl":
            inside = len(lines)
        frame = frame.f_back
    # called without __call__, or from within an expression
    while inside < len(lines) - 1 and (
        _is_models(lines[inside][0]) or lines[inside][0].co_name in _LED_OUT_OF
    ):
        inside += 1
    return Stack(tuple(lines[: inside + 1]), lines[users] if users > inside else None)


def first_argument(frame: FrameType) -> object:
    """What a function was called with first: `self`, in a method. Only for frames that end soon: see `stack_from`."""
    code = frame.f_code
    if code.co_name.startswith("torch_dynamo_resume_in_"):  # the rest of a method after a graph break
        return frame.f_locals.get("self")
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def calling_module(frame: FrameType | None) -> tuple[nn.Module | None, FrameType | None]:
    """The nearest module whose method led to `frame` or is it, and that method's frame."""
    looked_at = 0
    while frame is not None and looked_at < _DEEPEST:
        looked_at += 1
        first = first_argument(frame)
        if isinstance(first, nn.Module):
            return first, frame
        frame = frame.f_back
    return None, None


def outside_functional(frame: FrameType | None) -> FrameType | None:
    """The frame that called functions of torch.nn.functional; `frame` itself where it runs none of them."""
    while frame is not None and frame.f_code.co_filename == _FUNCTIONAL:
        frame = frame.f_back
    return frame


def is_users(frame: FrameType) -> bool:
    """Whether it runs code of neither PyTorch nor Torchtap nor Python's own machinery."""
    return _owner(frame.f_code.co_filename) == _USER
