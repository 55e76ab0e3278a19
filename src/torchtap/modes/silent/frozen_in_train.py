"""A guarded model that does not train, in train mode while another one does."""

from __future__ import annotations

import sys

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from torchtap.modes._findings import Finding, Severity
from torchtap.modes._frames import stack_from
from torchtap.modes._observer import OBSERVER
from torchtap.modes._watched import Watched
from torchtap.modes.silent._matters import counted, mode_matters, told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import trained_by


class FrozenInTrain(Rule):
    """`mode.frozen_in_train`.

    A guarded model of its own, such as a teacher, all of whose parameters are frozen, was put in train mode by a
    train() that was watched, and another guarded model trains. Set on that model alone, by a line that sets no other
    one, it is on purpose.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._version = -1

    def entered(self) -> None:
        self._version = OBSERVER.version

    def stepped(self, optimizer: Optimizer) -> None:
        if self._version == OBSERVER.version or not trained_by(self.watched, optimizer):
            return
        self._version = OBSERVER.version
        models = self.watched.models
        lines = [_line(each) for each in models]
        for model, line in zip(models, lines, strict=True):
            if line is not None and lines.count(line) > 1 and model.training and _frozen(model):
                self._report(model)

    def _report(self, model: nn.Module) -> None:
        active = [each for each in model.modules() if each.training and mode_matters(each)]
        norms = [each for each in active if isinstance(each, _BatchNorm)]
        if not active:
            return
        moving = "; running statistics move though the parameters are frozen" if norms else ""
        here = stack_from(sys._getframe(1)).here
        self.watched.report(
            Finding(
                id="mode.frozen_in_train",
                severity=Severity.WARN,
                where=self.watched.path(model) or "",
                seen=f"{counted(active)} in train mode at the training step at {here}{moving}",
                cause=f"{told(OBSERVER.last_change[model].setter)} sets this model too, which is frozen",
                remedy="eval() on this model after it, or leave it out there",
            )
        )


def _frozen(model: nn.Module) -> bool:
    parameters = list(model.parameters())
    return bool(parameters) and not any(each.requires_grad for each in parameters)


def _line(model: nn.Module) -> object:
    change = OBSERVER.last_change.get(model)
    return change.setter.stack.here if change is not None else None
