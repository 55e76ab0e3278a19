"""Dropout that is active in eval mode since nobody told the function about modes."""

from __future__ import annotations

import ast
import functools
import inspect
from types import FrameType

import torch
from torch import Tensor, nn

from torchtap._findings import Finding, Severity
from torchtap.modes._frames import Place, first_argument, is_users, outside_functional
from torchtap.modes._observer import Ran
from torchtap.modes._walk import mode_of
from torchtap.modes._watched import Watched
from torchtap.modes.silent._around import Around, SomeInEval, around, direct_caller
from torchtap.modes.silent._calls import BY_NAME_ONLY, CANNOT_TELL, GIVEN_NOT, argument, call_at
from torchtap.modes.silent._rule import Rule

_FUNCTIONAL: str = nn.functional.dropout.__code__.co_filename
_TRACED = "<eval_with_key>"
"""Of what torch.fx writes."""
_ATTENTION = "scaled_dot_product_attention"


class DropoutByConstruction(Rule):
    """`dropout.active_in_eval`: `F.dropout(x, p)` and its like drop in both modes, unless `training` is given.

    Looked at only while some guarded module is in eval mode. A `training=True` that stands in the source is taken to
    be on purpose, and so is any other value that the user gives.

    Outside of any module only where that very call trains too: what it drops of asks for gradients there. Else it may
    be noise that an evaluation is made with.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._some_in_eval = SomeInEval(watched)
        self._told: set[tuple[object, int, str]] = set()
        self._trains: set[tuple[object, int]] = set()
        """Calls outside of modules that have dropped something of a training step."""

    def ran(self, what: Ran) -> None:
        """Every dropout of the process comes here: the first line must be cheap."""
        if not what.active or what.kind == "batch_norm":
            return
        if not self._some_in_eval:
            if what.kind == "dropout" and torch.is_grad_enabled():
                self._note_outside(what.frame)
            return
        if direct_caller(what.frame) is not None:
            return  # it gives its own mode
        where = around(what.frame)
        if not where.modules and not torch.is_grad_enabled():
            self._ran_outside(what.frame)
        if not where.modules or mode_of(where.modules[0]) or not where.frames:
            return
        paths = (self.watched.path(module) for module in where.modules)
        path = next((each for each in paths if each is not None), None)
        if path is None:
            return  # in a model that nobody guards
        site = where.frames[0]
        key = (site.f_code, site.f_lasti, path)
        if key in self._told:
            return
        name = _function_called(what.frame)
        how = "dropout_p is not 0" if name == _ATTENTION else _given(name, where)
        if how is not None:
            self._told.add(key)
            self.watched.report(_finding(path, name, how, Place(site.f_code, site.f_lineno)))

    def _note_outside(self, frame: FrameType) -> None:
        site = outside_functional(frame)
        if site is None or site is frame or site.f_code.co_name == "forward" or not is_users(site):
            return
        key = (site.f_code, site.f_lasti)
        if key not in self._trains and not around(frame).modules:
            dropped = first_argument(frame)
            if isinstance(dropped, Tensor) and dropped.requires_grad:
                self._trains.add(key)

    def _ran_outside(self, frame: FrameType) -> None:
        site = outside_functional(frame)
        key = (site.f_code, site.f_lasti, "") if site is not None else None
        if key is None or site is None or key[:2] not in self._trains or key in self._told:
            return
        if any(mode_of(model) for model in self.watched.models):
            return  # somebody's training goes on
        self._told.add(key)
        name = _function_called(frame)
        how = _given(name, Around([], [site]))
        if how is not None:
            self.watched.report(_finding("", name, how, Place(site.f_code, site.f_lineno)))


def _function_called(frame: FrameType) -> str:
    """The name of PyTorch's function that the user called."""
    name = _ATTENTION  # the one that is no Python function of its own
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename == _FUNCTIONAL:
        name = outer.f_code.co_name
        outer = outer.f_back
    return name


def _given(name: str, where: Around) -> str | None:
    """How the call was told to drop, in words; None where the user told it so."""
    parameters = list(inspect.signature(getattr(nn.functional, name)).parameters)
    wanted, position = "training", parameters.index("training")
    callee = name
    for frame in where.frames:
        call = call_at(frame, callee)
        if call is None:
            return "training not given, as far as can be told without the source"
        if _bound_before(call, frame, where):
            return None
        value = argument(call, wanted, position)
        if value == CANNOT_TELL and _hands_on_names(call, frame):  # **kwargs of its own: its caller decides
            position, callee = BY_NAME_ONLY, frame.f_code.co_name
            continue
        if value == GIVEN_NOT:
            return f"{callee}() is not told the mode: training is True by default"
        if value == CANNOT_TELL:
            return f"training is True in what {callee}(*args, **kwargs) is given"
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        if not isinstance(value, ast.Name) or value.id not in names or frame.f_code.co_name == "forward":
            if frame.f_code.co_filename.startswith(_TRACED):
                return "training=True was recorded when the graph was traced"
            return None  # True on purpose, or a choice of the user's own
        # A function of the user's that hands its own argument on: then its caller decides, or its default.
        wanted, position, callee = (
            value.id,
            names.index(value.id) - (names[0] == "self"),
            frame.f_code.co_name,
        )
    return None


def _hands_on_names(call: ast.Call, frame: FrameType) -> bool:
    """Whether the call ends in the `**kwargs` that the function itself was given."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    own = code.co_varnames[
        code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    ]
    return any(
        each.arg is None and isinstance(each.value, ast.Name) and each.value.id == own
        for each in call.keywords
    )


def _bound_before(call: ast.Call, frame: FrameType, where: Around) -> bool:
    """Whether what is called is a functools.partial that was given `training` on purpose."""
    function = call.func
    value = None
    if isinstance(function, ast.Name):
        value = frame.f_globals.get(function.id)
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and where.modules:
        value = vars(where.modules[0]).get(function.attr) or vars(type(where.modules[0])).get(function.attr)
    return isinstance(value, functools.partial) and "training" in value.keywords


def _finding(path: str, name: str, how: str, place: Place) -> Finding:
    if name == _ATTENTION:
        cause = "its dropout_p drops in both modes: it knows of none"
        remedy = "dropout_p=self.p if self.training else 0.0"
    else:
        cause = f"F.{name} knows no module: only its argument training says whether to drop"
        remedy = f"F.{name}(..., training=self.training), or an nn.Dropout registered in __init__"
    return Finding(
        id="dropout.active_in_eval",
        severity=Severity.WARN,
        where=path,
        seen=f"F.{name} at {place} dropped in eval mode: {how}",
        cause=cause,
        remedy=f"{remedy}; on purpose: training=True" if name != _ATTENTION else remedy,
    )
