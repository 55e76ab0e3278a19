"""The batch of the latest forward, kept so that a step that made NaN can be run again before its weights are lost."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.hooks import on_gradient, tensors
from torchtap.hooks.lifecycle import is_aside
from torchtap.hooks.names import wrapped
from torchtap.hooks.nested import Nested
from torchtap.monitor._find_nan import NanReport, look_for_nan

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Rerun:
    """What came of running a kept batch again.

    >>> print(Rerun(None, "the model cannot be copied"))
    not run again: the model cannot be copied
    """

    report: NanReport | None
    """As `find_nan` gives it; None where it was not run."""
    why_not: str = ""

    def __str__(self) -> str:
        if self.report is None:
            return f"not run again: {self.why_not}"
        if not self.report:
            return f"run again on the kept batch: {self.report}. It came of another forward of this step"
        return f"run again on the kept batch: {self.report}"


class KeptBatch:
    """Of one model. Holds the inputs of its latest training forward, and the gradients of its outputs."""

    def __init__(self) -> None:
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._random: tuple[Tensor, list[Tensor]] | None = None
        self._autocast: dict[str, tuple[bool, torch.dtype]] = {}
        self._gradients: dict[str, Tensor] = {}
        self.held = False
        """Whether something not finite was seen: then the batch stays."""

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        """The model's forward pre-hook."""
        if self.held or is_aside():
            return
        self._inputs, self._gradients = _detached((args, kwargs)), {}
        self._random = torch.get_rng_state(), _cuda_states()
        self._autocast = {
            each: (torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in _DEVICES
        }

    def ends(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        """Its forward hook."""
        if not (self.held or is_aside()):
            for path, tensor in tensors(output):
                on_gradient(tensor, functools.partial(self._came, path))

    def _came(self, path: str, gradient: Tensor) -> None:
        if not self.held:
            self._gradients[path] = gradient.detach()

    def drop(self) -> None:
        """The step has ended well, or the batch has been used."""
        self._inputs, self._random, self._gradients, self.held = None, None, {}, False

    def run(self, model: nn.Module) -> Rerun:
        """Run it again, with a copy of the model as it is now: nothing of the model's own changes, nor who watches it.

        The backward begins with the gradients that the loss gave to the model's outputs.
        """
        if self._inputs is None:
            return Rerun(None, "no forward of the model itself has recorded gradients in this step")
        bad = [path for path, each in self._gradients.items() if not bool(torch.isfinite(each).all())]
        if bad:  # by a forward that gave NaN, or by the loss itself
            self._gradients = {}
        args, kwargs = self._inputs
        try:
            copied = copy.deepcopy(_unwrapped(model))
        except Exception as error:
            return Rerun(None, f"the model cannot be copied: {type(error).__name__}: {error}")
        try:
            with self._as_it_was():
                report = look_for_nan(copied, args, kwargs, self._loss, backward=bool(self._gradients))
        except Exception as error:
            return Rerun(None, f"its copy raised {type(error).__name__}: {error}")
        if bad and not report:
            output = f"output {bad[0]}".strip()
            return Rerun(
                None,
                f"what the loss gave to the model's {output} as its gradient was not finite already, so the loss made "
                "it: torchtap.find_nan(model, batch, loss) names the operation",
            )
        return Rerun(report)

    def _loss(self, output: Any) -> Tensor:
        """Whose gradients are those that came."""
        parts = [
            (each * self._gradients[path]).sum()
            for path, each in tensors(output)
            if path in self._gradients and each.requires_grad
        ]
        if not parts:
            floating = [
                each.detach().float().sum() for _, each in tensors(output) if each.is_floating_point()
            ]
            parts = floating or [torch.zeros(())]
        return torch.stack([each.float() for each in parts]).sum()

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """The random state and autocast of that forward."""
        assert self._random is not None
        own, cuda = self._random
        with contextlib.ExitStack() as stack:
            # Of no other GPU: to ask for its state would initialise CUDA on it.
            stack.enter_context(torch.random.fork_rng(range(len(cuda))))
            torch.set_rng_state(own)
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            for device, (enabled, dtype) in self._autocast.items():
                if enabled:
                    stack.enter_context(torch.autocast(device, dtype=dtype))
            stack.enter_context(torch.enable_grad())
            yield


def _cuda_states() -> list[Tensor]:
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # asking would initialise it
    return torch.cuda.get_rng_state_all() if initialised else []


def _unwrapped(model: nn.Module) -> nn.Module:
    """What DistributedDataParallel and its like hold: they cannot be copied."""
    while (inner := wrapped(model)) is not None:
        model = inner[1]
    return model


def _detached(given: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same memory, without the graph that it may come of."""
    apart = Nested(given, lambda each: each.detach().requires_grad_(each.requires_grad))
    args, kwargs = apart.built()
    return args, kwargs
