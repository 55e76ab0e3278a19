"""`watch(model)`: the monitor of a training run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.hooks import Layer, select
from torchtap.hooks.lifecycle import Hooks
from torchtap.hooks.lifecycle import _Quiet as Quiet
from torchtap.monitor import _parameters
from torchtap.monitor._closer import Closer
from torchtap.monitor._keys import Key
from torchtap.monitor._layer_hook import LayerHook, PassHook
from torchtap.monitor._parameters import ParameterNorms
from torchtap.monitor._rows import Rows, merged
from torchtap.monitor._state import State
from torchtap.monitor.history import History, Scalars, Series, points
from torchtap.monitor.run import Run, run_of
from torchtap.monitor.stats import derive

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)
"""Layers whose outputs have exact zeros: there the fraction of zeros is measured as a rule."""
_KEPT_OF_PARAMETERS = 24


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step that has ended and has not been read."""

    step: int
    rows: list[Callable[[], Rows]]
    parameters: Callable[[], tuple[np.ndarray, np.ndarray]] | None
    scalars: dict[str, Callable[[], float]]


@dataclass(frozen=True, slots=True)
class FirstNonfinite:
    """The first value of a run that was NaN or infinite."""

    step: int
    layer: str
    key: Key
    nonfinite: int
    """How many of the tensor's values."""
    count: int
    before: tuple[tuple[Key, dict[str, float]], ...]
    """What was measured before it in the same step, in order."""


class Watch:
    """What `watch` returns."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        layers: Any = None,
        every: int = 1,
        gradients: bool = True,
        parameters_every: int = 10,
        device_path: bool = False,
    ) -> None:
        self.layers: list[Layer] = select(model, layers)
        self.every = every
        self.parameters_every = parameters_every
        self._model = weakref.ref(model)
        self._state = State(device_path=device_path)
        self._history = History()
        self._parameters = ParameterNorms()
        self._parameter_history = History(_KEPT_OF_PARAMETERS, _parameters.pooled)
        self._scalars = Scalars()
        self._given: dict[str, Callable[[], float]] = {}
        self._pending: _Pending | None = None
        self._first: FirstNonfinite | None = None
        self._hooks = Hooks()
        self._layer_hooks: list[LayerHook] = []
        self._handles: list[Any] = []
        self._closed_run: Run | None = None
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        try:
            self._closer = Closer(model, self.layers, optimizer)
            self._attach(model, optimizer, gradients=gradients)
        except BaseException:
            self.close()
            raise

    def _attach(self, model: nn.Module, optimizer: Optimizer | None, *, gradients: bool) -> None:
        for number, layer in enumerate(self.layers):
            hook = LayerHook(
                self._state, number, zeros=isinstance(layer.module, RECTIFIERS), gradients=gradients
            )
            self._layer_hooks.append(hook)
            self._hooks.add(layer, hook)
        self._handles.append(model.register_forward_pre_hook(Quiet(PassHook(self._state)), with_kwargs=True))
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_optimizer))
            self._handles.append(optimizer.register_step_post_hook(self._after_optimizer))

    @property
    def model(self) -> nn.Module | None:
        """The watched model, as long as it is there."""
        return self._model()

    @property
    def steps(self) -> int:
        """Finished until now."""
        return self._state.step

    def _before_optimizer(self, *_: object) -> None:
        model = self._model()
        if model is not None and self._state.step % self.parameters_every == 0:
            self._parameters.before(model)

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        rate = optimizer.param_groups[0]["lr"]
        self.log(lr=rate)
        self.step()

    def log(self, **values: float | Tensor) -> None:
        """Numbers of this step, such as `loss=loss`: floats or tensors of one value, on any device, not waited for."""
        from torchtap.monitor._rows import read_later

        for name, value in values.items():
            if isinstance(value, Tensor):
                read = read_later(value.detach().reshape(()).float())
                self._given[name] = lambda read=read: float(read())  # type: ignore[misc]
            else:
                self._given[name] = lambda value=value: float(value)  # type: ignore[misc]

    def step(self, loss: float | Tensor | None = None) -> None:
        """A training step has ended: right after `optimizer.step()`. Called by itself where an optimizer was given."""
        if loss is not None:
            self.log(loss=loss)
        state, model = self._state, self._model()
        parameters = None
        if model is not None and state.step % self.parameters_every == 0:
            parameters = self._parameters.after(model)
        self._closer.step()
        ended = _Pending(state.step, state.take(), parameters, self._given)
        self._given = {}
        state.step += 1
        state.gradients = 0
        state.sampling = state.step % self.every == 0
        if self._pending is not None:
            self._read(self._pending)
        self._pending = ended
        if not state.reads_late:
            self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._read(pending)

    def _read(self, ended: _Pending) -> None:
        for read in ended.rows:
            keys, raw = merged(*read())
            if not len(keys):
                continue
            made = points(raw)
            self._history.add(ended.step, keys, made)
            if self._first is None and raw[:, 5].any():
                self._note_first(ended.step, keys, raw)
        if ended.parameters is not None:
            self._parameter_history.add(ended.step, *ended.parameters())
        if ended.scalars:
            self._scalars.add(ended.step, {name: read() for name, read in ended.scalars.items()})

    def _note_first(self, step: int, keys: np.ndarray, raw: np.ndarray) -> None:
        table = self._state.keys
        bad = int(np.flatnonzero(raw[:, 5])[0])
        key = table[int(keys[bad])]
        derived = derive(raw)
        before = tuple(
            (table[int(keys[place])], {name: float(column[place]) for name, column in derived.items()})
            for place in range(bad)
        )
        name = self.layers[key.layer].name if key.layer >= 0 else "the model's inputs"
        self._first = FirstNonfinite(step, name, key, int(raw[bad, 5]), int(raw[bad, 6]), before)

    def first_nonfinite(self) -> FirstNonfinite | None:
        """The first value that was NaN or infinite, in the order in which things ran; None: all were finite."""
        self._flush()
        return self._first

    def series(self, layer: str, direction: str = "output", call: int = 0, path: str | None = None) -> Series:
        """One tensor over the run; `path` None: the first of the output."""
        self._flush()
        for number, key in enumerate(self._state.keys.keys):
            name = self.layers[key.layer].name if key.layer >= 0 else ""
            if name == layer and key.direction == direction and key.call == call and path in (None, key.path):
                return self._history.series(number)
        known: Sequence[str] = [each.name for each in self.layers]
        raise KeyError(f"{layer!r} has no {direction} that was measured; layers: {', '.join(known[:8])}")

    def scalars(self, name: str) -> Series:
        """What `log` was given under a name, over the run."""
        self._flush()
        return self._scalars.series(name)

    def run(self) -> Run:
        """All that was measured until now, until `close` at the latest, as plain data: for `torchtap.diagnose`."""
        return self._closed_run or run_of(self)

    def close(self) -> None:
        """Remove all hooks. What was measured stays."""
        if self._closed_run is None and self.steps and self.model is not None:
            self._closed_run = run_of(self)  # the model may go before anybody asks
        self._closer.remove()
        self._hooks.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._state.sampling = False
        self._flush()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(model: nn.Module, optimizer: Optimizer | None = None, **options: Any) -> Watch:
    """Watch a model while it trains."""
    return Watch(model, optimizer, **options)


__all__ = ["FirstNonfinite", "Watch", "torch", "watch"]
