"""Dropout that an evaluation switched off by its probability, for good."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import Stack, stack_from
from torchtap.modes._observer import OBSERVER, ModeChange, Ran, Setter
from torchtap.modes._walk import modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._callers import callers
from torchtap.modes.silent._matters import told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import trained_by


class DropoutChanged(Rule):
    """`mode.dropout_changed`.

    The probability was above 0 at the last training step or at entry, an evaluation came, and now it is 0. The
    evaluation has written it: it was above 0 at eval(), and 0 when the module ran; or `forward`, `train` or `eval` of
    the class itself writes it. Written before or after the evaluation it is a schedule, on purpose.

    Looks at `p` of dropout modules, and at numbers with "drop" in their name.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known = ByModule[dict[str, float]]()
        self._forget()

    def _forget(self) -> None:
        self._version = OBSERVER.version
        self._evaluation: Setter | None = None  # the last eval() since the last step
        self._ran_eval = False  # a dropout has dropped nothing, and no gradients were recorded
        self._at_eval = ByModule[dict[str, float]]()
        """At the first eval() since the last step."""
        self._when_run = ByModule[dict[str, float]]()
        """When the module ran last, in an evaluation since the last step."""

    def entered(self) -> None:
        self._forget()
        for model in self.watched.models:
            for module in modules(model):
                if numbers := _probabilities(module):
                    self._known[module] = numbers

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        setter = change.setter
        if not setter.training and setter is not self._evaluation and self.watched.path(module) is not None:
            if self._evaluation is None:
                for each, numbers in self._known.items():
                    self._at_eval[each] = _now(each, numbers)
            self._evaluation = setter

    def ran(self, what: Ran) -> None:
        if what.active or torch.is_grad_enabled():
            return
        self._ran_eval = True
        for module in callers(what, self.watched):
            numbers = self._known.get(module)
            if numbers is not None:
                self._when_run[module] = _now(module, numbers)

    def stepped(self, optimizer: Optimizer) -> None:
        if self._version == OBSERVER.version and not self._ran_eval:
            return
        if not trained_by(self.watched, optimizer):
            return
        if self._evaluation is not None or self._ran_eval:
            for model in self.watched.models:
                self._judge(model, stack_from(sys._getframe(1)))
        for module, numbers in self._known.items():
            numbers.update(_now(module, numbers))
        self._forget()

    def _judge(self, model: nn.Module, stack: Stack) -> None:
        before_it = told(self._evaluation) if self._evaluation is not None else "the last evaluation"
        for module in modules(model):
            before = self._known.get(module) or {}
            now = _now(module, before)
            off = [name for name, p in before.items() if p > 0 and now[name] == 0]
            name = next((each for each in off if self._by_evaluation(module, each)), None)
            if name is None:
                continue
            self.watched.report(
                Finding(
                    id="mode.dropout_changed",
                    severity=Severity.WARN,
                    where=self.watched.path(module) or "",
                    seen=f"{name} is 0 at the training step at {stack.here}, "
                    f"and was {before[name]:g} before {before_it}",
                    cause=f"the evaluation wrote {name} = 0; train() does not bring it back",
                    remedy=f"leave {name} alone and let the mode decide: F.dropout(x, self.{name}, self.training)",
                )
            )

    def _by_evaluation(self, module: nn.Module, name: str) -> bool:
        if _writes(type(module), name):
            return True
        at_eval = (self._at_eval.get(module) or {}).get(name, 1.0)
        when_run = (self._when_run.get(module) or {}).get(name, 1.0)
        return at_eval > 0 and when_run == 0


def _now(module: nn.Module, names: Iterable[str]) -> dict[str, float]:
    values = vars(module)
    return {name: float(p) if isinstance(p := values.get(name), (int, float)) else 0.0 for name in names}


def _writes(cls: type[nn.Module], name: str) -> bool:
    """Whether what an evaluation calls writes the attribute."""
    codes = [
        getattr(inspect.unwrap(function), "__code__", None)
        for method in ("forward", "train", "eval")
        if (function := getattr(cls, method, None)) is not None
    ]
    return any(
        each.opname == "STORE_ATTR" and each.argval == name
        for code in codes
        if code is not None
        for each in dis.get_instructions(code)
    )


def _probabilities(module: nn.Module) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in vars(module).items()
        if isinstance(value, float)
        and 0 < value < 1
        and ("drop" in name or (name == "p" and isinstance(module, _DropoutNd)))
    }
