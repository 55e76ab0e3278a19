"""The closer looks of a watch, in few steps: what rules need beyond the statistics of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchtap.hooks import Layer
from torchtap.hooks.lifecycle import Quiet
from torchtap.monitor._batches import BatchLook
from torchtap.monitor._bookkeeping import Bookkeeping
from torchtap.monitor._clearing import Clearing
from torchtap.monitor._units import Units

EVERY = 10
FIRST = 6
"""Steps at the start whose batches and gradients are compared one after the other."""


class Closer:
    """Looks closer at one model. Watch calls `step` when a training step has ended."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer], optimizer: Optimizer | None) -> None:
        self.units = Units(layers)
        self.clearing = Clearing(layers, optimizer)
        self.batches = BatchLook()
        self.book = Bookkeeping(model, optimizer)
        self._step = 0
        self._handles: list[Any] = [model.register_forward_pre_hook(Quiet(self.batches), with_kwargs=True)]
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
        self.batches.looking = True
        self.units.begin()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        # args begins with the optimizer itself.
        closure = kwargs.get("closure") is not None or any(
            callable(each) and not isinstance(each, Optimizer) for each in args
        )
        self.book.before(looking=_units(self._step), closure=closure)

    def step(self) -> None:
        """Right after the optimizer's step."""
        step, following = self._step, self._step + 1
        self.book.after(looking=_units(step))
        if _units(step):
            self.units.end(step)
        self.clearing.end(next_too=_often(following))
        self.batches.step(next_too=_often(following))
        self._step = following
        if _units(following):
            self.units.begin()
        if _often(following):
            self.clearing.begin()

    def remove(self) -> None:
        """Take all hooks off."""
        self.units.remove()
        self.clearing.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.batches.looking = False


def _units(step: int) -> bool:
    return step % EVERY == 0 or step == EVERY // 2


def _often(step: int) -> bool:
    """Not at a fixed distance: a data set of ten batches must not look like one."""
    return step < FIRST or step % (EVERY + 1) == 0 or step % (EVERY + 3) == 0
