"""Whether the model gets the same batch in every step: a few elements of each input, in a few steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtap.hooks import tensors
from torchtap.hooks.lifecycle import is_aside
from torchtap.monitor._parameters import spread
from torchtap.monitor._rows import read_later
from torchtap.monitor.stats.refusing import in_cuda_graph

ELEMENTS = 64
PASSES = 4
"""Forwards of one step that are looked at."""
STEPS = 40


@dataclass(frozen=True, slots=True)
class Batches:
    """What was seen of the model's inputs."""

    steps: int
    """Looked at."""
    same: bool
    """Whether the inputs of all of them were equal."""
    made_anew: bool
    """Whether they were other tensors with the same values: something makes the same batch again and again."""
    part: bool
    """Whether they are a small part of a larger tensor."""
    rows: int
    """Of the first input."""
    plain: bool
    """Whether they are numbers in a row, or all one number: positions, or no data at all."""
    empty: bool
    """Whether all values that were looked at are one number."""


class BatchLook:
    """Of one model: a forward pre-hook."""

    def __init__(self) -> None:
        self.looking = False
        self._passes = 0
        self._seen: list[Tensor] = []
        self._steps: list[Callable[[], np.ndarray]] = []
        self._last: list[weakref.ref[Tensor]] = []
        self._same_objects = 0
        self._changes = 0
        self._part = False
        self._rows = 0
        self._objects: list[weakref.ref[Tensor]] = []

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        # First of all: code that is being compiled must not read what changes, or it is compiled anew each time.
        if is_aside() or not self.looking or self._passes >= PASSES:
            return
        self._passes += 1
        for _, tensor in tensors((args, kwargs)):
            if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel():
                continue
            if in_cuda_graph(tensor) or tensor.is_nested or tensor.is_quantized:
                continue
            if not self._rows and tensor.dim():
                self._rows = tensor.shape[0]
                stored = tensor.untyped_storage().nbytes() // tensor.element_size()
                self._part = tensor.numel() * 4 <= stored
            self._objects.append(weakref.ref(tensor))
            self._seen.append(_sample(tensor))

    def step(self, *, next_too: bool) -> None:
        """A step has ended; `next_too`: look at the next one."""
        if self._seen and len(self._steps) < STEPS:
            devices = {each.device for each in self._seen}
            if len(devices) == 1:
                self._steps.append(read_later(torch.cat(self._seen)))
            if self._last:
                same = len(self._last) == len(self._objects) and all(
                    one() is not None and one() is other()
                    for one, other in zip(self._last, self._objects, strict=True)
                )
                self._same_objects += same
                self._changes += not same
            self._last = self._objects
        self._seen, self._objects, self._passes = [], [], 0
        self.looking = next_too

    def seen(self) -> Batches | None:
        """None: nothing was seen."""
        rows = [read() for read in self._steps]
        if not rows:
            return None
        first = rows[0]
        same = all(each.shape == first.shape and np.array_equal(each, first, equal_nan=True) for each in rows)
        finite = first[np.isfinite(first)]
        steps = np.diff(finite)
        empty = all(bool((each == each[:1]).all()) for each in rows)
        plain = bool(
            len(finite) and ((finite == finite[0]).all() or (len(steps) and (steps == steps[0]).all()))
        )
        anew = self._changes > 0 and self._same_objects == 0
        return Batches(len(rows), same and len(rows) > 1, anew, self._part, self._rows, plain, empty)


@torch.no_grad()
def _sample(tensor: Tensor) -> Tensor:
    values = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor
    return spread(values, ELEMENTS).double()
