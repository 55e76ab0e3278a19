"""A guarded model that does not train, in train mode while another one does."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import stack_from
from torchtap.modes._observer import OBSERVER
from torchtap.modes._walk import all_parameters, mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._calls import calls_in
from torchtap.modes.silent._matters import counted, mode_matters, told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import trained_by


class FrozenInTrain(Rule):
    """`mode.frozen_in_train`.

    A guarded model of its own, such as a teacher, does not train while another one does, and a line that sets several
    models has put it in train mode. It does not train: all its parameters are frozen; or it came in eval mode, and no
    optimizer that has stepped until the second step holds it. Set by a line of its own, it is on purpose.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._forget()

    def _forget(self) -> None:
        self._version = -1
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._train = ByModule[bool]()
        self._came_in_eval = ByModule[bool]()

    def entered(self) -> None:
        self._forget()
        for model in self.watched.models:
            self._came_in_eval[model] = mode_of(model) is False

    def stepped(self, optimizer: Optimizer) -> None:
        if self._version == OBSERVER.version:
            return
        trained = trained_by(self.watched, optimizer)
        if not trained:
            return
        for model in trained:
            self._train[model] = True
        if optimizer in self._stepped:  # then all have stepped: a GAN freezes one net for the other's step
            self._version = OBSERVER.version
            self._judge(lambda model: model not in self._train and self._idle(model))
        self._stepped.add(optimizer)

    def _idle(self, model: nn.Module) -> bool:
        return _frozen(model) or bool(self._came_in_eval.get(model))

    def _judge(self, idle: Callable[[nn.Module], bool]) -> None:
        models = self.watched.models
        lines = [_line(each) for each in models]
        for model, line in zip(models, lines, strict=True):
            if line is not None and lines.count(line) > 1 and mode_of(model) and idle(model):
                self._report(model)

    def _report(self, model: nn.Module) -> None:
        active = [each for each in modules(model) if mode_of(each) and mode_matters(each)]
        norms = [each for each in active if isinstance(each, _BatchNorm)]
        if not active:
            return
        moving = "; running statistics move" if norms else ""
        here = stack_from(sys._getframe(1)).here
        self.watched.report(
            Finding(
                id="mode.frozen_in_train",
                severity=Severity.WARN,
                where=self.watched.path(model) or "",
                seen=f"{counted(active)} in train mode at the training step at {here}{moving}",
                cause=f"{told(OBSERVER.last_write[model].setter)} sets this model too, which does not train",
                remedy="eval() on this model after it, or leave it out there",
            )
        )


def _frozen(model: nn.Module) -> bool:
    parameters = all_parameters(model)
    return bool(parameters) and not any(each.requires_grad for each in parameters)


def _line(model: nn.Module) -> object:
    """What set its mode: the line, or that one call where several stand in it, as in `net.train(); ema.train()`."""
    change = OBSERVER.last_write.get(model)
    here = change.setter.stack.here if change is not None else None
    if change is None or here is None or change.setter.on() is not model:
        return here
    return (here, id(model)) if calls_in(here, change.setter.by) > 1 else here
