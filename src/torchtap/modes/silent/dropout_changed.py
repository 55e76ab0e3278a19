"""Dropout that an evaluation switched off by its probability, for good."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from torchtap.modes._by_module import ByModule
from torchtap.modes._findings import Finding, Severity
from torchtap.modes._frames import Stack, stack_from
from torchtap.modes._observer import OBSERVER, ModeChange, Ran, Setter
from torchtap.modes._watched import Watched
from torchtap.modes.silent._matters import told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import trained_by


class DropoutChanged(Rule):
    """`mode.dropout_changed`.

    The probability was above 0 at the last training step or at entry, an evaluation came, and now it is 0. A schedule
    that lowers it without one is on purpose. Looks at `p` of dropout modules, and at numbers with "drop" in their
    name.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known = ByModule[dict[str, float]]()
        self._version = -1
        self._evaluation: Setter | None = None  # the last eval() since the last step
        self._ran_eval = False  # a dropout has dropped nothing, and no gradients were recorded

    def entered(self) -> None:
        self._version = OBSERVER.version
        self._evaluation = None
        self._ran_eval = False
        for model in self.watched.models:
            for module in model.modules():
                if numbers := _probabilities(module):
                    self._known[module] = numbers

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        setter = change.setter
        if not setter.training and setter is not self._evaluation and self.watched.path(module) is not None:
            self._evaluation = setter

    def ran(self, what: Ran) -> None:
        if not what.active and not self._ran_eval and not torch.is_grad_enabled():
            self._ran_eval = True

    def stepped(self, optimizer: Optimizer) -> None:
        if self._version == OBSERVER.version and not self._ran_eval:
            return
        models = trained_by(self.watched, optimizer)
        if not models:
            return
        self._version = OBSERVER.version
        for model in self.watched.models:
            if self._evaluation is not None or self._ran_eval:
                self._judge(model, stack_from(sys._getframe(1)))
        for module, numbers in self._known.items():
            for name in numbers:
                now = vars(module).get(name)
                numbers[name] = float(now) if isinstance(now, (int, float)) else 0.0
        self._evaluation = None
        self._ran_eval = False

    def _judge(self, model: nn.Module, stack: Stack) -> None:
        before_it = told(self._evaluation) if self._evaluation is not None else "the last evaluation"
        for module in model.modules():
            before = self._known.get(module) or {}
            off = {name: p for name, p in before.items() if p > 0 and vars(module).get(name) == 0}
            if not off:
                continue
            name, p = next(iter(off.items()))
            self.watched.report(
                Finding(
                    id="mode.dropout_changed",
                    severity=Severity.WARN,
                    where=self.watched.path(module) or "",
                    seen=f"{name} is 0 at the training step at {stack.here}, and was {p:g} before {before_it}",
                    cause=f"the evaluation wrote {name} = 0; train() does not bring it back",
                    remedy=f"leave {name} alone and let the mode decide: F.dropout(x, self.{name}, self.training)",
                )
            )


def _probabilities(module: nn.Module) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in vars(module).items()
        if isinstance(value, float)
        and 0 < value < 1
        and ("drop" in name or (name == "p" and isinstance(module, _DropoutNd)))
    }
