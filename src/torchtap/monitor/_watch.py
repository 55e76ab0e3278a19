"""`watch(model)`: what every layer does in each step, while a model trains."""

from __future__ import annotations

import difflib
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchtap.hooks import Hooks, Layer, select
from torchtap.hooks.lifecycle import Quiet, is_aside
from torchtap.hooks.selection import Layers
from torchtap.modes._by_module import ByModule
from torchtap.monitor import _parameters, plots
from torchtap.monitor._bookkeeping import has_closure
from torchtap.monitor._closer import Closer
from torchtap.monitor._first import FirstNonfinite, first_of, weights_of
from torchtap.monitor._frame import to_pandas
from torchtap.monitor._layer_hook import LayerHook, PassHook
from torchtap.monitor._layers import WatchedLayer
from torchtap.monitor._looks import Look
from torchtap.monitor._ops import Values
from torchtap.monitor._parameters import ParameterNorms
from torchtap.monitor._rerun import KeptBatch, Rerun
from torchtap.monitor._rows import Rows, merged, read_later
from torchtap.monitor._scale import Unscaled
from torchtap.monitor._state import State
from torchtap.monitor._summary import Summary, summary_of
from torchtap.monitor.history import History, Scalars, Series, points
from torchtap.monitor.run import Run, run_of
from torchtap.monitor.writers.background import Background
from torchtap.monitor.writers.record import About, Record, Writer

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from torchtap.diagnose import Diagnoses

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)
"""Layers whose outputs have exact zeros: there the fraction of zeros is measured as a rule."""
_KEPT_OF_PARAMETERS = 16
_MANY_PASSES = 8
"""Forwards that record gradients, after which a step should have ended."""
_open = ByModule["weakref.ref[Watch]"]()
"""The watch of each model that has one."""


class WatchWarning(UserWarning):
    """A watch has seen something that spoils the run."""


class _AtFirst(NamedTuple):
    """What was found out right before the optimizer's step, in a step that was not finite."""

    weights: tuple[tuple[str, Values], ...]
    """Of the layer where it began."""
    rerun: Rerun | None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A step that has ended and has not been read yet."""

    step: int
    rows: list[Callable[[], Rows]]
    unscale: Callable[..., Unscaled]
    parameters: Callable[[], tuple[np.ndarray, np.ndarray]] | None
    scalars: dict[str, Callable[[], float]]
    at_first: _AtFirst | None


class Watch:
    """What `watch` returns: open from the start, until `close()` or the end of its `with` block."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        layers: Layers = None,
        every: int = 1,
        gradients: bool = True,
        zeros: bool | None = None,
        parameters_every: int = 10,
        scaler: GradScaler | None = None,
        writers: Sequence[Writer] = (),
        block: bool = False,
        look_closer: bool = True,
        keep_batch: bool = False,
        device_path: bool = False,
    ) -> None:
        _check(model, optimizer, every, parameters_every)
        chosen = select(model, layers)
        chosen = _without_identities(chosen) if layers is None else chosen
        self.layers: list[WatchedLayer] = [WatchedLayer(layer) for layer in chosen]
        self.refused: list[tuple[str, str]] = []
        """Layers that could not be hooked: name, and the reason in words."""
        self.every = every
        self.parameters_every = parameters_every
        self.skipped = 0
        """Backward passes whose optimizer step a GradScaler left out."""
        self._model = weakref.ref(model)
        self._state = State(every=every, scaler=scaler, device_path=device_path)
        self._history = History()
        self._parameters = ParameterNorms()
        self._parameter_history = History(_KEPT_OF_PARAMETERS, _parameters.LAYOUT)
        self._scalars = Scalars()
        self._given: dict[str, Callable[[], float]] = {}
        self._ended: _Ended | None = None
        self._first: FirstNonfinite | None = None
        self._background: Background | None = None
        self._closed_run: Run | None = None
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._closer: Closer | None = None
        self._kept = KeptBatch() if keep_batch else None
        self._at_first: _AtFirst | None = None
        self._hooks = Hooks()
        self._handles: list[RemovableHandle] = []
        self.layer_hooks: list[LayerHook] = []
        self._of_model: LayerHook | None = None
        try:
            if look_closer:
                self._closer = Closer(model, self.layers, optimizer, every, self._state.compiled)
            if writers:
                self._background = Background(writers, self._about(model), block=block)
            self._attach(model, chosen, optimizer, gradients, zeros)
        except BaseException:
            self.close()
            raise
        _open[model] = weakref.ref(self)
        # Nobody can end a step of a watch that nobody holds: then the hooks go too.
        drop = weakref.finalize(self, _dropped, self._hooks, self._handles, self._state, self._closer)
        drop.atexit = False  # at the end of the program nobody is to be told

    def _attach(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        optimizer: Optimizer | None,
        gradients: bool,
        zeros: bool | None,
    ) -> None:
        for number, layer in enumerate(layers):
            counted = isinstance(layer.module, RECTIFIERS) if zeros is None else zeros
            hook = LayerHook(self._state, number, zeros=counted, gradients=gradients)
            self.layer_hooks.append(hook)
            self._hooks.add(layer, hook)
        self.refused = [(layer.name, why) for layer, why in self._hooks.refused]
        self._hooks.refused.clear()  # they hold modules
        if type(model) is not nn.Sequential and all(layer.module is not model for layer in layers):
            # What it does itself with what its layers gave. Of a Sequential that is the last layer's output.
            self._of_model = LayerHook(self._state, -1, zeros=False, gradients=gradients)
            self._handles.append(model.register_forward_hook(self._of_model))
        if self._kept is not None:  # asks what is not finite before this pass has rows
            self._handles.append(
                model.register_forward_pre_hook(Quiet(_weakly(self._begins)), with_kwargs=True)
            )
            self._handles.append(model.register_forward_hook(Quiet(self._kept.ends)))
        begins = PassHook(self._state)
        self._handles.append(model.register_forward_pre_hook(begins, with_kwargs=True))
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(_weakly(self._before_optimizer)))
            self._handles.append(optimizer.register_step_post_hook(_weakly(self._after_optimizer)))

    def _about(self, model: nn.Module) -> About:
        layers = tuple((layer.name, layer.kind) for layer in self.layers)
        return About(type(model).__name__, layers, self.every, torch.__version__)

    @property
    def model(self) -> nn.Module | None:
        """The watched model, as long as it is there: a watch keeps no model alive."""
        return self._model()

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self._state.step

    def _measures_parameters(self) -> bool:
        return self._state.step % (self.every * self.parameters_every) == 0

    def _begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins: the batch of the one before is kept where that was not finite."""
        kept = self._kept
        if kept is None or self._first is not None or is_aside():  # the first is all that is asked for
            return
        kept.held = kept.held or self._state.first_nonfinite_now(wait=True) is not None
        kept.begins(module, args, kwargs)

    def _look_for_nonfinite(self) -> None:
        """Right before the optimizer's step: afterwards the weights are others, or NaN."""
        if self._first is not None or self._at_first is not None:
            return
        key = self._state.first_nonfinite_now(wait=self._kept is not None)
        if key is None:
            return
        model = self._model()
        layer = self.layers[key.layer].module if key.layer >= 0 else None
        rerun = self._kept.run(model) if self._kept is not None and model is not None else None
        self._at_first = _AtFirst(weights_of(layer), rerun)

    def _before_optimizer(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.before_step(closure=has_closure(args, kwargs))

    def before_step(self, *, closure: bool = False) -> None:
        """Right before the optimizer's step, gradients complete, or to be made by its closure. The optimizer's hook
        does this by itself."""
        self._look_for_nonfinite()
        if self._measures_parameters() and (model := self._model()) is not None:
            self._parameters.before(model, closure=closure)

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        groups = optimizer.param_groups
        for number, group in enumerate(groups):
            if isinstance(rate := group.get("lr"), (int, float, Tensor)):  # Adafactor may have none
                self.log(**{"lr" if len(groups) == 1 else f"lr.{number}": rate})
        self.step()

    def log(self, **values: float | Tensor) -> None:
        """Numbers of this step, such as `loss=loss`: floats, or tensors of one value on any device, not waited for."""
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ValueError(
                    f"log({name}=...): one number, but the tensor has the shape {tuple(value.shape)}. "
                    f"Give its mean: {name}={name}.mean()"
                )
            self._given[name] = _later(value)

    def step(self, loss: float | Tensor | None = None) -> None:
        """A training step has ended: call it right after `optimizer.step()`, with an optimizer given not at all.

        `loss`: as `log(loss=loss)`.
        """
        if loss is not None:
            self.log(loss=loss)
        state, model = self._state, self._model()
        parameters = None
        if model is not None and self._measures_parameters():
            parameters = self._parameters.after(model)
        if self._closer is not None:
            self._closer.step()
        if not state.step:
            for layer in self.layers:
                layer.known()  # of a lazy one all is known only now
        ended = _Ended(state.step, state.take(), state.scale.take(), parameters, self._given, self._at_first)
        self._given, self._at_first = {}, None
        if self._kept is not None:
            self._kept.drop()
        state.next_step()
        self._flush()
        self._ended = ended
        if not state.reads_late:
            self._flush()

    def _flush(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            self._read(ended)

    def _read(self, ended: _Ended) -> None:
        keys = self._state.keys
        scalars = {name: read() for name, read in ended.scalars.items()}
        norms = ended.parameters() if ended.parameters is not None else None
        devices = [ended.unscale(read(), keys) for read in ended.rows]
        self.skipped += devices[0].skipped  # passes are of the model, the same for all devices
        numbers, raw = merged(
            np.concatenate([each.numbers for each in devices]),
            np.concatenate([each.rows for each in devices]),
        )
        if len(numbers):
            made = points(raw)
            self._history.add(ended.step, numbers, made)
            if self._background is not None:
                self._background.put(self._record(ended.step, scalars, numbers, made, norms))
        if self._first is None and (first := first_of(ended.step, numbers, raw, keys, self.layers)):
            self._first = first = self._with_weights(first, ended.at_first)
            warnings.warn(str(first), WatchWarning, stacklevel=2)
        if norms is not None:
            self._parameter_history.add(ended.step, *norms)
        if scalars:
            self._scalars.add(ended.step, scalars)

    def _with_weights(self, first: FirstNonfinite, known: _AtFirst | None) -> FirstNonfinite:
        if known is not None:
            return replace(first, weights=known.weights, rerun=known.rerun)
        rerun = None
        if self._kept is not None:
            rerun = Rerun(
                None, "its weights are gone: give the optimizer to watch(), which then looks before its step"
            )
        module = self.layers[first.key.layer].module if first.key.layer >= 0 else None
        return replace(first, weights=weights_of(module), weights_of="now", rerun=rerun)

    def _record(
        self,
        step: int,
        scalars: dict[str, float],
        numbers: np.ndarray,
        made: np.ndarray,
        norms: tuple[np.ndarray, np.ndarray] | None,
    ) -> Record:
        keys = tuple(self._state.keys[number] for number in numbers.tolist())
        names = tuple(self.layers[key.layer].name if key.layer >= 0 else "" for key in keys)
        of_parameters, rows = norms if norms is not None else (np.empty(0, dtype=np.int64), None)
        parameters = tuple(self._parameters.names[number] for number in of_parameters.tolist())
        return Record(step, scalars, keys, names, made, parameters, None if rows is None else rows[:, :4])

    def first_nonfinite(self) -> FirstNonfinite | None:
        """The first value that was NaN or infinite, in the order in which things ran; None: all were finite.

        Inputs of the model, outputs and output gradients of the watched layers; gradients of steps that a GradScaler
        left out do not count.
        """
        self._flush()
        return self._first or self._first_of_open_step()

    def _first_of_open_step(self) -> FirstNonfinite | None:
        """A loop that stops at a NaN ends no step: what it has measured of it counts."""
        state = self._state
        if not self.is_open or state.scale.is_on:  # gradients of a step that may yet be left out
            return None
        first = first_of(state.step, *state.now(), state.keys, self.layers)
        return None if first is None else self._with_weights(first, self._at_first)

    def series(
        self, layer: str, direction: str = "output", *, call: int = 0, path: str | None = None
    ) -> Series:
        """What was measured of one tensor over the run: see `Series`.

        `layer`: any of its names; `direction`: "output" or "gradient" (of the loss with respect to that output);
        `call`: of several calls in one forward; `path`: of several tensors, "" or "1.0", None for the first.
        Raises KeyError where nothing was measured.
        """
        self._flush()
        numbers = {number for number, each in enumerate(self.layers) if layer in each.names}
        for number, key in enumerate(self._state.keys.keys):
            if key.layer in numbers and key[1:] == (call, key.path if path is None else path, direction):
                return self._history.series(number)
        raise KeyError(self._not_measured(layer, direction, numbers))

    def _not_measured(self, layer: str, direction: str, numbers: set[int]) -> str:
        if numbers:
            return f"{layer}: no {direction} was measured with this call and path"
        near = difflib.get_close_matches(layer, [each.name for each in self.layers], 3, 0.3)
        return (
            f"{layer!r} is not watched; near: {', '.join(near) or 'nothing'}. All: [l.name for l in w.layers]"
        )

    def scalars(self, name: str) -> Series:
        """What `log` was given under this name, over the run; empty where that is nothing."""
        self._flush()
        return self._scalars.series(name)

    def plot(self, *, save: str | os.PathLike[str] | None = None, dark: bool | None = None) -> Figure:
        """Four pictures of the run: see `torchtap.monitor.plots`, which has more. ImportError without Matplotlib.

        `save`: a file .png, .svg or .pdf; `dark`: light on dark or dark on light, None: as Matplotlib is set.
        """
        return plots.overview(self, save=save, dark=dark)

    def summary(self) -> Summary:
        """The run as a table, a line a layer: `print(w.summary())`, or `w.summary().show()` in colour."""
        return summary_of(self)

    def to_pandas(self, of: str = "tensors") -> pandas.DataFrame:
        """The run as a DataFrame: one row for each point of each tensor, for as many points as `series` has.

        "tensors": layer ("" is the model itself), class, direction, call, path, first_step, last_step and the
        statistics. "parameters": root mean squares of value, gradient, update, sampled, and their ratio. "scalars":
        what `log` was given. ImportError without pandas, ValueError for another word.
        """
        return to_pandas(self, of)

    def looks(self) -> dict[int, Look]:
        """What closer looks have seen until now, by the place in `layers`; nothing with `look_closer=False`."""
        return {} if self._closer is None else self._closer.units.looks()

    def diagnose(self) -> Diagnoses:
        """What is wrong with this training until now, the likeliest root cause first: see `torchtap.diagnose`.

        Print it, or go through it; empty where nothing was found. Raises RuntimeError after `look_closer=False`.
        """
        from torchtap.diagnose import diagnose  # which judges watches, and so imports this

        return diagnose(self)

    @property
    def is_open(self) -> bool:
        """Whether it still watches."""
        return bool(self._handles)

    def run(self) -> Run:
        """All that was measured until now, until `close` at the latest, as plain data: for `torchtap.diagnose`."""
        if self._closer is None:
            raise RuntimeError(
                "watch(look_closer=False) has not measured what diagnose needs: leave that out"
            )
        return self._closed_run or run_of(self, self._closer)

    def close(self) -> None:
        """Take all hooks off. What was measured stays. Doing it again does nothing."""
        with ExitStack() as whatever_fails:
            if self._background is not None:
                whatever_fails.callback(self._background.close)
            if self._kept is not None:
                whatever_fails.callback(self._kept.drop)
            whatever_fails.callback(_detach, self._hooks, self._handles, self._state, self._closer)
            self._flush()
            self._first = self._first or self._first_of_open_step()
            self._warn_of_no_step()
            if (
                self._closer is not None
                and self._closed_run is None
                and self.steps
                and self.model is not None
            ):
                self._closed_run = run_of(self, self._closer)  # the model may go before anybody asks

    def _warn_of_no_step(self) -> None:
        if self.is_open and not self.steps and self._state.training_passes >= _MANY_PASSES:
            ends = "the optimizer" if self._optimizer is not None else "w.step()"
            warnings.warn(
                f"no step ended in {self._state.training_passes} forwards, so nothing was measured: {ends} was never "
                + (
                    "called: optimizer.step(), of this very optimizer"
                    if self._optimizer is not None
                    else "called"
                )
                + ", or a GradScaler left out every step",
                WatchWarning,
                stacklevel=4,
            )

    def __enter__(self) -> Watch:
        if not self.is_open:
            raise RuntimeError("this watch is closed: make a new one, with torchtap.watch(model)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Watch, {state}: {len(self.layers)} layers, {self.steps} steps>"


def _without_identities(layers: list[Layer]) -> list[Layer]:
    """What hands on its input needs no second look; unless there is nothing else."""
    return [layer for layer in layers if type(layer.module) is not nn.Identity] or layers


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that does not keep its watch: that goes with the last reference that the user has."""
    weak = weakref.WeakMethod(method)

    def called(*seen: Any) -> None:
        if torch.compiler.is_compiling():  # which cannot follow weak references
            return
        if (there := weak()) is not None:
            there(*seen)

    return called


def _dropped(hooks: Hooks, handles: list[RemovableHandle], state: State, closer: Closer | None) -> None:
    if handles and not state.step:
        warnings.warn(
            "nobody holds what torchtap.watch() returned, and no step had ended: keep it, w = torchtap.watch(...)",
            WatchWarning,
            stacklevel=2,
        )
    _detach(hooks, handles, state, closer)


def _detach(hooks: Hooks, handles: list[RemovableHandle], state: State, closer: Closer | None) -> None:
    if closer is not None:
        closer.remove()
    hooks.remove()
    while handles:
        handles.pop().remove()
    state.sampling = False
    state.drop_leaves()


def _later(value: float | Tensor) -> Callable[[], float]:
    if isinstance(value, Tensor):
        read = read_later(value.detach().reshape(()).float())
        return lambda: float(read())
    number = float(value)
    return lambda: number


def _check(model: object, optimizer: object, every: int, parameters_every: int) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch() takes an nn.Module, got {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"watch(model, optimizer): the optimizer is a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    for name, number in (("every", every), ("parameters_every", parameters_every)):
        if number < 1:
            raise ValueError(f"watch({name}=...) is 1 or more, got {number}")
    known = _open.get(model)
    other = known() if known is not None else None
    if other is not None and other.is_open:
        raise RuntimeError(
            f"this {type(model).__name__} is watched already, since {other.steps} steps. Close that watch first: its "
            "close(), or torchtap.unwatch(model)"
        )


def unwatch(model: nn.Module) -> None:
    """Close the watch of this model, where there is one."""
    known = _open.get(model)
    if known is not None and (watching := known()) is not None:
        watching.close()


def watch(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    layers: Layers = None,
    every: int = 1,
    gradients: bool = True,
    zeros: bool | None = None,
    parameters_every: int = 10,
    scaler: GradScaler | None = None,
    writers: Sequence[Writer] = (),
    block: bool = False,
    look_closer: bool = True,
    keep_batch: bool = False,
) -> Watch:
    """Watch what the layers of `model` give, and the gradients that come back, in each step of a training.

    With `optimizer` a step ends by itself when that has stepped, and its learning rates are logged; without, call
    `step()` of what is returned. Measured are forwards that record gradients: a validation under `no_grad` is not.

    `layers`: which, as in `hooks.select`; None: all leaves but `nn.Identity`. `every`: only each so many steps; in
    between a hook costs a microsecond. `gradients`: of the outputs, too. `zeros`: count zeros in all outputs (True),
    none (False), or where a layer makes them (None: ReLU and its like). `parameters_every`: norms of parameters,
    gradients and updates in each so many of these. `scaler`: the GradScaler, so that gradients are unscaled, and those
    of skipped steps left out. `writers`: where each step is written, see `torchtap.monitor.writers`; a step that finds
    256 waiting is dropped and counted, or with `block` waits. `look_closer`: in each tenth step, and in some of the
    first, look at what `torchtap.diagnose` needs beyond these statistics, such as dead units. `keep_batch`: keep the
    inputs of the latest forward (no copies), and where a step was not finite run it again with a copy of the model
    before the optimizer steps, so that `first_nonfinite()` names the operation, too; on a GPU it waits once a forward
    then.

    Outputs, gradients, random numbers and `state_dict()` are what they are without. Hooks are no part of copies and
    files of the model. A step holds one row of 64 bytes for each tensor; history, hooks and all else keep some 4 KB
    for each layer, however long the run is. On a GPU nothing waits: rows are read when the next step ends.

    Raises TypeError and ValueError for arguments that are none, `hooks.PatternError` where `layers` matches nothing,
    RuntimeError where the model is watched already.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> with watch(net, optimizer) as w:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         loss = net(torch.ones(2, 4)).square().mean()
    ...         w.log(loss=loss)
    ...         loss.backward()
    ...         optimizer.step()
    >>> len(w.series("1")["rms"]), len(w.series("0", "gradient")["std"]), w
    (3, 3, <Watch, closed: 3 layers, 3 steps>)
    """
    return Watch(
        model,
        optimizer,
        layers=layers,
        every=every,
        gradients=gradients,
        zeros=zeros,
        parameters_every=parameters_every,
        scaler=scaler,
        writers=writers,
        block=block,
        look_closer=look_closer,
        keep_batch=keep_batch,
    )
