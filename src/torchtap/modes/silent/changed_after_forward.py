"""train() between a forward in eval mode and its backward: too late."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, FrameType

import torch
from torch import Tensor, nn

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import Stack, stack_from
from torchtap.modes._graph import nodes
from torchtap.modes._observer import OBSERVER, Backward, ModeChange, Ran, RnnCall
from torchtap.modes._walk import all_parameters, mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._callers import callers
from torchtap.modes.silent._matters import counted, mode_matters, together, told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._scopes import codes, put_back


@dataclass(slots=True)
class _EvalCall:
    """The last call of a module, made in eval mode."""

    serial: int
    stack: Stack | None
    """None: the same as that of the module before, which was called since the same mode change."""
    change: ModeChange | None
    """Who had put it in eval mode."""
    codes: frozenset[CodeType]
    """The functions that ran then."""


class ChangedAfterForward(Rule):
    """`mode.changed_after_forward`.

    Only where the module's last call ran in eval mode, train() came after it, and the backward that runs now reaches
    the model's parameters. The other way round, eval() after a forward in train mode, changes nothing. Calls that
    cuDNN refuses raise, and are told of by the guard itself. Nor where a scope of the user's own, as a context manager,
    puts back the mode that it has changed: see `put_back`.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._calls = ByModule[_EvalCall | None]()
        self._any = False
        """Whether there may be any; asking the dictionary would take longer."""
        self._version = -1  # of the modes at the last of these calls
        self._codes = frozenset[CodeType]()

    def entered(self) -> None:
        self._calls.clear()
        self._any = False

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        if (
            self._any and change.setter.restores
        ):  # the forward ran inside eval_mode() and its like: on purpose
            self._calls[module] = None

    def ran(self, what: Ran) -> None:
        if what.active:
            if self._any:
                for module in callers(what, self.watched):
                    self._calls[module] = None
            return
        if not torch.is_grad_enabled():
            return
        for module in callers(what, self.watched):
            if mode_of(module) is False and mode_matters(module):
                self._note(module, what.serial, None if self._known() else stack_from(what.frame), what.frame)

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:  # noqa: ARG002
        module = call.module() if call.module is not None else None
        if module is None:
            return
        if call.training or call.breaks_backward or not call.grad:
            self._calls[module] = None
        else:
            self._note(module, call.serial, call.stack, sys._getframe(1))

    def _known(self) -> bool:
        return self._version == OBSERVER.version and self._any

    def _note(self, module: nn.Module, serial: int, stack: Stack | None, frame: FrameType) -> None:
        if not self._known():
            self._codes = codes(frame)
        self._calls[module] = _EvalCall(serial, stack, OBSERVER.last_change.get(module), self._codes)
        self._any = True
        self._version = OBSERVER.version

    def backward(self, run: Backward) -> AbstractContextManager[object]:
        if not self._any or self._version == OBSERVER.version or run.inputs:
            return nullcontext()
        late = [module for module, call in self._calls.items() if call and _changed_since(module, call)]
        now = codes(run.frame) if late else frozenset()
        late = [module for module in late if not self._put_back(module, now)]
        reached = {id(getattr(node, "variable", None)) for node in nodes(run.tensors)} if late else set()
        ids = {id(module) for module in late}
        for model in self.watched.models:
            mine = [module for module in modules(model) if id(module) in ids]
            if mine and any(id(each) in reached for each in all_parameters(model)):
                self._report(model, mine)
        for module, call in list(self._calls.items()):
            if call and _changed_since(module, call):
                self._calls[module] = None
        self._any = any(call is not None for _, call in self._calls.items())
        return nullcontext()

    def _put_back(self, module: nn.Module, now: frozenset[CodeType]) -> bool:
        call = self._calls[module]
        if call is None or call.change is None or call.change.before is False:
            return False
        setter = OBSERVER.last_change[module].setter
        return put_back(call.change.setter, setter, forward=call.codes, backward=now)

    def _report(self, model: nn.Module, modules: list[nn.Module]) -> None:
        stack = next((call.stack for _, call in self._calls.items() if call and call.stack), None)
        forward = stack.caller if stack is not None else None
        setter = OBSERVER.last_change[modules[0]].setter
        self.watched.report(
            Finding(
                id="mode.changed_after_forward",
                severity=Severity.WARN,
                where=self.watched.path(together(model, modules)) or "",
                seen=f"{counted(modules)} ran in eval mode at {forward}; {told(setter)} came after it",
                cause="the mode counts when the forward runs; a change before backward() does nothing to it",
                remedy=f"move train() before the forward at {forward}, or leave it out if eval mode is meant",
            )
        )


def _changed_since(module: nn.Module, call: _EvalCall) -> bool:
    change = OBSERVER.last_change.get(module)
    return mode_of(module) is True and change is not None and change.setter.serial > call.serial
