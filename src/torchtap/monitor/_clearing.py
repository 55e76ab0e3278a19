"""Whether gradients are cleared between two steps of the optimizer: of a few layers, in a few steps.

At the moment when the gradient of a layer's output comes, the backward has not reached the layer's own weight. What the
weight has as its gradient then was there before: of this step (accumulated), or left from the last one (not cleared).
A step counts as not cleared where none of its backwards found the weight without a gradient, and the first found
exactly what the last step had left. So a GAN, whose other loss runs through the model first, is not mistaken for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.hooks import Hooks, on_gradient, tensors
from torchtap.hooks.lifecycle import is_aside
from torchtap.monitor._layers import WatchedLayer
from torchtap.monitor._parameters import local, spread
from torchtap.monitor._rows import read_later

LAYERS = 3
ELEMENTS = 16


class Clearing:
    """Of one model."""

    def __init__(
        self, layers: Sequence[WatchedLayer], optimizer: Optimizer | None, compiled: Collection[int] = ()
    ) -> None:
        self._compiled = compiled
        # Only its own parameters are cleared by an optimizer.
        held = None
        if optimizer is not None:
            held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        able = [
            (place, layer)
            for place, layer in enumerate(layers)
            if (weight := _weight(layer.module)) is not None
            and (held is None or id(weight) in held)
            and (hookable := layer.hookable()) is not None
            and not hookable.compiled
        ]
        places = {round(place) for place in np.linspace(0, len(able) - 1, LAYERS)} if able else set()
        self._layers = [able[place] for place in sorted(places)]
        self._hooks = Hooks()
        self._left: dict[int, Tensor] = {}
        self._had_none: set[int] = set()
        self._found: dict[int, list[Tensor]] = {}
        self._reads: list[Callable[[], np.ndarray]] = []
        """Of the last look that has an answer to be read."""
        self._kept = self._looks = 0

    def begin(self) -> None:
        """The step that begins is looked at."""
        for number, (place, watched) in enumerate(self._layers):
            if place not in self._compiled and (layer := watched.hookable()) is not None:
                self._hooks.add(layer, functools.partial(self._forward, number))

    def _forward(self, number: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        if not is_aside():
            for _, tensor in tensors(output):
                if tensor.is_leaf:  # it would keep the hook for good
                    continue
                on_gradient(tensor, lambda _gradient: self._backward(number))
                return

    def _backward(self, number: int) -> None:
        weight = _weight(self._layers[number][1].module)
        if weight is None or number not in self._left:
            return
        gradient = weight.grad
        if gradient is None or gradient.layout is not torch.strided or not local(gradient).numel():
            self._had_none.add(number)
            return
        now = spread(gradient, ELEMENTS)
        found = self._found.setdefault(number, [])
        same = (now == self._left[number]).all() if not found else torch.ones_like(now[0], dtype=torch.bool)
        found.append(same & (now != 0).any())

    def end(self, *, next_too: bool) -> None:
        """The optimizer's step has been done. With `next_too` the next one will be looked at: keep what is left."""
        self._looks += len(self._had_none)
        if self._found:
            self._read()
        for number, found in self._found.items():
            if number not in self._had_none:
                self._reads.append(read_later(torch.stack(found).all()))
        self._had_none, self._found, self._left = set(), {}, {}
        self._hooks.remove()
        if next_too:
            for number, (_, layer) in enumerate(self._layers):
                weight = _weight(layer.module)
                if weight is not None and weight.grad is not None and weight.grad.layout is torch.strided:
                    self._left[number] = spread(weight.grad, ELEMENTS).clone()

    def remove(self) -> None:
        """Take the hooks off."""
        self._hooks.remove()

    def _read(self) -> None:
        reads, self._reads = self._reads, []
        self._kept += sum(int(read()) for read in reads)
        self._looks += len(reads)

    def counts(self) -> tuple[int, int]:
        """Looks that found the last step's gradient still there, and looks in all."""
        self._read()
        return self._kept, self._looks


def _weight(module: nn.Module | None) -> Tensor | None:
    if module is None:
        return None
    # No attribute is read: a parametrization would compute it, and may change by that.
    weight = module._parameters.get("weight")
    return weight if weight is not None and weight.requires_grad else None
