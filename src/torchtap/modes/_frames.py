"""Where in the user's code something happened: places, kept as code objects and lines, no frames.

A frame would keep every local variable alive, tensors too; a code object keeps nothing but itself.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType

import torch
from torch import nn

_TORCH = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120  compared with co_filename, letter by letter
_TORCHTAP = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120
_CONTEXTLIB = contextlib.__file__
_MODULE_PY: str = nn.Module.__call__.__code__.co_filename
_DEEPEST = 60
"""Frames looked at on the way out. Deeper than any model's own calls; a recursion must not cost more."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code.

    >>> place = Place(code=Place.__repr__.__code__, lineno=7)
    >>> place.lineno, place.function
    (7, '__repr__')
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
    """The user's lines that led to an event, innermost first; none where C++ alone called."""

    places: tuple[Place, ...]

    @property
    def here(self) -> Place | None:
        """The innermost line, outside PyTorch and Torchtap: of the model's code, as a rule."""
        return self.places[0] if self.places else None

    @property
    def caller(self) -> Place | None:
        """The line that called the outermost module: of the training loop, as a rule."""
        return self.places[-1] if self.places else None


_USER, _CALLS_MODULES, _OURS = range(3)


@cache
def _owner(file: str) -> int:
    if file == _MODULE_PY:
        return _CALLS_MODULES
    return _OURS if file.startswith((_TORCH, _TORCHTAP, _CONTEXTLIB, "<frozen", "<string>")) else _USER


def stack_from(frame: FrameType | None) -> Stack:
    """The user's places from `frame` outwards to the line that called the outermost module.

    Looks at code objects only, never at a frame's variables: before Python 3.13 that would leave a copy of them in
    the frame, and keep tensors alive that the user has deleted.
    """
    places: list[Place] = []
    inside = 0  # so many of them ran inside a module's call
    looked_at = 0
    while frame is not None and looked_at < _DEEPEST:
        looked_at += 1
        code = frame.f_code
        owner = _owner(code.co_filename)
        if owner == _USER:
            places.append(Place(code, frame.f_lineno))
        elif owner == _CALLS_MODULES and code.co_name == "_call_impl":
            inside = len(places)
        frame = frame.f_back
    while inside < len(places) - 1 and places[inside].function == "forward":  # called without __call__
        inside += 1
    return Stack(tuple(places[: inside + 1]))


def first_argument(frame: FrameType) -> object:
    """What a function was called with first: `self`, in a method. Only for frames that end soon: see `stack_from`."""
    code = frame.f_code
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


def is_users(frame: FrameType) -> bool:
    """Whether it runs code of neither PyTorch nor Torchtap nor Python's own machinery."""
    return _owner(frame.f_code.co_filename) == _USER
