"""Around a call that just ran: the modules that it ran in, and the user's frames that led to it.

Variables are read of few frames only, all of which end when the module's call ends: see `stack_from`.
"""

from __future__ import annotations

from types import FrameType
from typing import NamedTuple

from torch import nn

from torchtap.modes._frames import first_argument, is_users, outside_functional
from torchtap.modes._observer import OBSERVER
from torchtap.modes._walk import mode_of, modules
from torchtap.modes._watched import Watched

_MODULE_PY: str = nn.Module.__call__.__code__.co_filename
_MODULES: str = _MODULE_PY.rpartition("module.py")[0]
_DEEPEST = 60


class Around(NamedTuple):
    """Where a call of a mode-dependent function was made."""

    modules: list[nn.Module]
    """Whose methods led to it, innermost first."""
    frames: list[FrameType]
    """The user's frames inside these modules, innermost first. Valid during the call only."""


def around(frame: FrameType | None) -> Around:
    """Look outwards from the frame that called the function."""
    frames: list[FrameType] = []
    outermost = -1  # the last frame that is known to be inside a module's call
    while frame is not None and len(frames) < _DEEPEST:
        code = frame.f_code
        if (code.co_name == "_call_impl" and code.co_filename == _MODULE_PY) or code.co_name == "forward":
            outermost = len(frames)
        frames.append(frame)
        frame = frame.f_back
    modules: list[nn.Module] = []
    for each in frames[: outermost + 1]:
        if each.f_code.co_varnames[:1] == ("self",):
            module = first_argument(each)
            if isinstance(module, nn.Module) and not (modules and modules[-1] is module):
                modules.append(module)
    # One more: a function of the user's that calls F.dropout on what a module gave is in no module, but a place.
    return Around(modules, [each for each in frames[: outermost + 2] if is_users(each) or _is_executed(each)])


def _is_executed(frame: FrameType) -> bool:
    """Code that exec() was given: the user's, inside a module."""
    return frame.f_code.co_filename == "<string>"


def direct_caller(frame: FrameType) -> nn.Module | None:
    """PyTorch's own module that called the function, such as an nn.Dropout; None where other code did."""
    outer = outside_functional(frame)
    if outer is None or not outer.f_code.co_filename.startswith(_MODULES):
        return None
    module = first_argument(outer)
    return module if isinstance(module, nn.Module) else None


class SomeInEval:
    """Whether any module of the guarded models is in eval mode; asked anew only after a mode was changed."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._version = -1
        self._some = False

    def __bool__(self) -> bool:
        if OBSERVER.version != self._version:
            self._version = OBSERVER.version
            self._some = any(
                mode_of(module) is False for model in self._watched.models for module in modules(model)
            )
        return self._some
