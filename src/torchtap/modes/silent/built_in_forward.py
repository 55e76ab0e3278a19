"""Modules that run in a guarded model, are no part of it, and stay in train mode when it is in eval."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType, FrameType

from torch import Tensor, nn
from torch.fx import GraphModule

from torchtap._findings import Finding, Severity
from torchtap.modes._frames import Place, first_argument
from torchtap.modes._observer import OBSERVER, Ran, RnnCall
from torchtap.modes._walk import mode_of
from torchtap.modes._watched import Watched
from torchtap.modes.reach import unregistered
from torchtap.modes.silent._around import Around, SomeInEval, around, direct_caller
from torchtap.modes.silent._calls import call_at, called, made_in
from torchtap.modes.silent._rule import Rule


class BuiltInForward(Rule):
    """`module.built_in_forward`: seen when such a module drops, or uses the batch's statistics, in an eval forward."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._some_in_eval = SomeInEval(watched)
        self._told: set[tuple[CodeType, int, str]] = set()

    def ran(self, what: Ran) -> None:
        """Dropout, batch norm, attention."""
        if what.active and self._some_in_eval:
            module = direct_caller(what.frame)
            if module is None or self.watched.path(module) is None:
                self._look(around(what.frame))

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:  # noqa: ARG002
        """An RNN in train mode differs from one in eval by its dropout only."""
        module = call.module() if call.module is not None and call.training else None
        if isinstance(module, nn.RNNBase) and module.dropout and module.num_layers > 1 and self._some_in_eval:
            self._look(around(sys._getframe(1)))

    def _look(self, where: Around) -> None:
        if not where.modules or not where.frames or mode_of(where.modules[0]) is False:
            return
        for inner, outer in zip(where.modules, where.modules[1:], strict=False):
            if self.watched.path(inner) is not None:
                return  # part of a guarded model, or another rule's business
            if isinstance(inner, GraphModule):
                return  # what torch.compile or a tracer made of the model itself: its mode says nothing
            path = self.watched.path(outer)
            if path is not None:
                if mode_of(outer) is False:
                    self._found(inner, outer, path, where)
                return

    def _found(self, module: nn.Module, caller: nn.Module, path: str, where: Around) -> None:
        site = _site(where.frames, module)
        key = (site.f_code, site.f_lasti, path)
        if key in self._told:
            return
        self._told.add(key)
        if _set_there(where.modules[0], site) or _set_there(module, site):
            return
        for holder, finding in unregistered(self.watched.models, only=module):
            self.watched.report(replace(finding, where=self.watched.path(holder) or ""))
            return
        self.watched.report(_finding(where.modules[0], type(caller).__name__, path, site))


def _site(frames: list[FrameType], module: nn.Module) -> FrameType:
    """The frame that called the module: the first one that does not run a method of it."""
    for frame in frames:
        if frame.f_code.co_varnames[:1] != ("self",) or first_argument(frame) is not module:
            return frame
    return frames[-1]


def _set_there(module: nn.Module, site: FrameType) -> bool:
    """Whether the function that calls the module calls its train() first, on purpose: dropout for many samples."""
    change = OBSERVER.last_write.get(module)
    here = change.setter.stack.here if change is not None else None
    return here is not None and here.code is site.f_code


def _finding(module: nn.Module, caller: str, path: str, site: FrameType) -> Finding:
    name, place = type(module).__name__, Place(site.f_code, site.f_lineno)
    if _is_built_there(site):
        seen = f"{name}, built at {place} in each forward, ran in train mode; {caller} is in eval"
        cause = "a new module is in train mode, and eval() before the forward cannot reach it"
        remedy = "make it once, in __init__, as an attribute"
    else:
        seen = f"{name}, called at {place}, is no part of {caller} and ran in train mode; {caller} is in eval"
        cause = (
            "train() and eval() reach what is registered below; this belongs to another object, or to nothing"
        )
        remedy = "eval() on it too, with its owner: modes.eval_mode() on both; or register it in the model"
    return Finding(
        id="module.built_in_forward",
        severity=Severity.WARN,
        where=path,
        seen=seen,
        cause=cause,
        remedy=remedy,
    )


def _is_built_there(site: FrameType) -> bool:
    """Whether the source shows that the function makes the module that it calls."""
    call = call_at(site, "")
    if call is None:
        return False
    if isinstance(call.func, ast.Call):
        return called(call.func)[:1].isupper()
    return isinstance(call.func, ast.Name) and call.func.id in made_in(site.f_code)
