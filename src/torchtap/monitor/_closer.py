"""The closer looks of a watch, in few steps: what rules need beyond the statistics of every step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtap.hooks.lifecycle import Quiet
from torchtap.monitor._batches import BatchLook
from torchtap.monitor._bookkeeping import Bookkeeping, has_closure
from torchtap.monitor._clearing import Clearing
from torchtap.monitor._layers import WatchedLayer
from torchtap.monitor._units import Units

EVERY = 10
LATER, EVERY_LATER = 100, 20
"""Looks are further apart after so many: what a run has not shown by then changes slowly."""
FIRST = 6
"""Steps at the start whose batches and gradients are compared one after the other."""


class Closer:
    """Looks closer at one model. Watch calls `step` when a training step has ended."""

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[WatchedLayer],
        optimizer: Optimizer | None,
        every: int = 1,
        compiled: Collection[int] = (),
    ) -> None:
        self._every = every
        self.units = Units(layers, compiled)
        self.clearing = Clearing(layers, optimizer, compiled)
        self.batches = BatchLook()
        self.book = Bookkeeping(model, optimizer)
        self._step = 0
        self._handles: list[Any] = [model.register_forward_pre_hook(Quiet(self.batches), with_kwargs=True)]
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
        self.batches.looking = True
        self.units.begin()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        if torch.compiler.is_compiling():
            return
        self.book.before(looking=self._looks(self._step), closure=has_closure(args, kwargs))

    def _looks(self, step: int) -> bool:
        """Of the steps that are measured."""
        number, between = divmod(step, self._every)
        apart = EVERY if number <= LATER else EVERY_LATER
        return not between and (number % apart == 0 or number == EVERY // 2)

    def step(self) -> None:
        """Right after the optimizer's step."""
        step, following = self._step, self._step + 1
        self.book.after(looking=self._looks(step))
        if self._looks(step):
            self.units.end(step)
        self.clearing.end(next_too=_often(following))
        self.batches.step(next_too=_often(following))
        self._step = following
        if self._looks(following):
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


def _often(step: int) -> bool:
    """Not at a fixed distance: a data set of ten batches must not look like one."""
    return step < FIRST or step % (EVERY + 1) == 0 or step % (EVERY + 3) == 0
