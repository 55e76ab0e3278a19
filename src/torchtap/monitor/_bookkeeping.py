"""What the optimizer and the parameters have to do with each other, noted at the steps of the optimizer.

Nothing of this is measured on activations. Each step costs a look at the learning rates and at those parameters that
never had a gradient yet; a few elements of every parameter are compared in every tenth step only.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.monitor._parameters import local, spread
from torchtap.monitor._rows import read_later
from torchtap.monitor.stats.refusing import PLAIN

ELEMENTS = 64
"""Of one parameter, evenly spread, that are compared over the run."""
MOST_RATES = 4096


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the optimizer runs forward and backward itself: what a hook before its step is told. It is args[0]."""
    return kwargs.get("closure") is not None or any(callable(each) for each in args[1:])


@dataclass(slots=True)
class Rates:
    """The largest learning rate of all groups, step by step."""

    values: list[float] = field(default_factory=list)
    stride: int = 1
    _steps: int = 0

    def add(self, rate: float) -> None:
        """One step's."""
        if self._steps % self.stride == 0:
            self.values.append(rate)
            if len(self.values) > MOST_RATES:
                self.values, self.stride = self.values[::2], self.stride * 2
        self._steps += 1


class Bookkeeping:
    """Of one model and, where it is known, its optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        self._model = weakref.ref(model)
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self.rates = Rates()
        self.steps_seen = 0
        self.closure = False
        """The optimizer runs the backward itself, so what is there before its step says nothing."""
        self._never: set[str] | None = None
        self.sparse_gradients = False
        """There are some, of which nothing is measured."""
        self._start: _Samples | None = None
        self._before: _Samples | None = None
        self._after: _Samples | None = None
        self.moved_in_step: set[str] = set()
        """Parameters that the optimizer's step changed in any look."""
        self.looks = 0
        self.undone = 0
        """Looks at whose start all sampled parameters were what they were at the start of the run, after a step had
        moved them."""

    def before(self, *, looking: bool, closure: bool) -> None:
        """Right before the optimizer's step."""
        self.closure |= closure
        model = self._model()
        if model is None:
            return
        if self._never is None:
            self._never = {
                sys.intern(name) for name, parameter in model.named_parameters() if parameter.requires_grad
            }
        if self._never:
            named = dict(model.named_parameters())
            self._never = {name for name in self._never if name in named and named[name].grad is None}
        if not looking:
            return
        if self._before is not None:
            self._compare()
        self._before = _Samples(model)
        if self._start is None:
            self._start = self._before
        self.sparse_gradients |= any(
            p.grad is not None and p.grad.layout is not torch.strided for p in model.parameters()
        )

    def after(self, *, looking: bool) -> None:
        """Right after it."""
        self.steps_seen += 1
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is not None:
            rates = [rate for group in optimizer.param_groups if (rate := group.get("lr")) is not None]
            plain = [
                float(rate) for rate in rates if not isinstance(rate, Tensor) or rate.device.type == "cpu"
            ]
            if plain:
                self.rates.add(max(plain))
        model = self._model()
        if looking and model is not None and self._before is not None:
            self._after = _Samples(model)
            if self._before.is_here and self._after.is_here:
                self._compare()

    def _compare(self) -> None:
        before, after, start = self._before, self._after, self._start
        if before is None or after is None or start is None:
            return
        moved = {name for name in before.hashes if not after.same(before, name)}
        self.looks += 1
        self.moved_in_step |= moved
        later = before is not start and all(before.same(start, name) for name in before.hashes)
        self.undone += later and bool(moved)
        self._before = self._after = None

    def never_gradient(self) -> frozenset[str]:
        """Parameters that require a gradient and had none before any step."""
        return frozenset(self._never or ())

    def finish(self) -> dict[str, bool]:
        """Which parameters are other than at the start of the run; none that were not there then."""
        self._compare()
        model = self._model()
        if model is None or self._start is None:
            return {}
        now = _Samples(model)
        return {name: not now.same(self._start, name) for name in now.hashes if name in self._start.hashes}

    def start_equal(self, one: str, other: str) -> bool:
        """Whether two parameters had the same values at the start."""
        start = self._start
        found = start.hashes.get(one) if start is not None else None
        return start is not None and found is not None and found == start.hashes.get(other)


def plain(tensor: Tensor) -> bool:
    """Whether it has values that can be read as they are."""
    return (
        (type(tensor) in PLAIN or hasattr(tensor, "to_local"))
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and tensor.numel() > 0
    )


class _Samples:
    """What tells whether a parameter has changed: a hash of a few of its elements, as they were at this moment.

    They are copied to the host without waiting, and hashed when that has come: 8 bytes are kept of a parameter.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module) -> None:
        self._hashes: dict[str, int] = {}
        self._reads: list[tuple[list[str], list[int], Callable[[], np.ndarray]]] = []
        of_devices: dict[torch.device, dict[str, Tensor]] = {}
        for name, parameter in model.named_parameters():
            if plain(parameter) and plain(value := local(parameter).detach()):
                of_devices.setdefault(value.device, {})[sys.intern(name)] = spread(value, ELEMENTS).double()
        for device, parts in of_devices.items():
            read = read_later(torch.cat(list(parts.values())))
            self._reads.append((list(parts), [len(part) for part in parts.values()], read))
            if device.type == "cpu":
                self._take()

    def _take(self) -> None:
        reads, self._reads = self._reads, []
        for names, lengths, read in reads:
            parts = np.split(read() + 0.0, np.cumsum(lengths)[:-1])  # -0.0 is the same as 0.0
            self._hashes.update((name, hash(part.tobytes())) for name, part in zip(names, parts, strict=True))

    @property
    def is_here(self) -> bool:
        """Whether nothing is on the way."""
        return not self._reads

    @property
    def hashes(self) -> dict[str, int]:
        """By the parameter's name. Waits for what is on the way."""
        if self._reads:
            self._take()
        return self._hashes

    def same(self, other: _Samples, name: str) -> bool:
        """Whether this parameter's elements are those of the other time."""
        theirs = other.hashes.get(name)
        return theirs is not None and self.hashes.get(name) == theirs
