"""A watched run as plain data: what `torchtap.diagnose` looks at. It holds no module and no tensor, and can be sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.monitor._batches import Batches
from torchtap.monitor._bookkeeping import plain
from torchtap.monitor._layers import WatchedLayer, fan_in
from torchtap.monitor._looks import Look
from torchtap.monitor._parameters import is_plain, without_wrappers
from torchtap.monitor.history import Series

if TYPE_CHECKING:
    from torchtap.monitor._closer import Closer
    from torchtap.monitor._first import FirstNonfinite
    from torchtap.monitor._watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """One layer over the run."""

    name: str
    names: tuple[str, ...]
    kind: str
    """Name of its class."""
    facts: Mapping[str, Any]
    """Those of `FACTS` that it has, numbers and words."""
    fan_in: int | None
    calls: int
    """Of its forward, in the whole run."""
    order: int
    """Its place in the order in which layers ran; -1: it was not seen to run."""
    training: bool
    parameters: tuple[str, ...]
    """Names of its own."""
    output: Series | None
    gradient: Series | None
    """With respect to its output."""
    by_call: tuple[Series, ...]
    """Its output, call by call of one forward; the last stands for all that follow."""
    look: Look
    before: str
    """The layer with a weight that ran last before it, and its kind; "" where there is none."""
    before_kind: str
    after_kind: str
    """Of the layer that ran right after it."""

    @property
    def parametric(self) -> bool:
        """Whether it has a weight of its own that mixes units: no normalisation."""
        return self.fan_in is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRun:
    """One parameter over the run."""

    name: str
    names: tuple[str, ...]
    layer: str
    """The module that holds it."""
    layer_kind: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    in_optimizer: bool | None
    """None: no optimizer is known."""
    lr: float | None
    weight_decay: float | None
    had_gradient: bool
    """Before any step of the optimizer."""
    moved: bool
    """Whether its values now are others than before the first step."""
    moved_in_step: bool
    """Whether the optimizer's step itself changed it, in a step that was looked at."""
    equal_units: bool
    """All rows of the weight are equal now."""
    zero: bool
    """All values are 0 now."""
    nonfinite: int
    """Values that are NaN or infinite now."""
    fresh: bool
    """Its values are spread as PyTorch initialises this layer: nothing was ever trained or loaded."""
    steps: np.ndarray
    """[n] of the next four; root mean squares, NaN where there is none."""
    value: np.ndarray
    gradient: np.ndarray
    update: np.ndarray
    sampled: np.ndarray
    """Of the values that `update` is the change of."""

    @property
    def ratio(self) -> np.ndarray:
        """Update over weight, [n]."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.update / self.sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRun:
    """The optimizer."""

    kind: str
    held: int
    """Parameters that it holds."""
    strangers: int
    """Of these, not the model's."""
    stranger_shapes: tuple[tuple[int, ...], ...]
    momentum: float
    rates: tuple[float, ...]
    """Learning rate over the run, the largest of all groups."""
    closure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a watch measured."""

    steps: int
    passes: int
    """Forwards of the model itself."""
    layers: tuple[LayerRun, ...]
    """In the order in which they ran, then those that never did."""
    parameters: tuple[ParameterRun, ...]
    loss: Series | None
    inputs: tuple[Series, ...]
    """Of the model: those that are floating."""
    batches: Batches | None
    optimizer: OptimizerRun | None
    gradients_kept: tuple[int, int]
    """Looks that found the last step's gradients still there, and looks in all."""
    no_gradient_before_steps: bool
    """In no step that was looked at a parameter had a gradient other than 0."""
    undone: int
    """Looks that found all parameters as they were at the start, though steps had moved them."""
    copies: tuple[tuple[str, str], ...]
    """Weights of an embedding and a layer of one shape: equal at the start, and not one parameter."""
    shared_storage: tuple[tuple[str, str], ...]
    """Different parameters in the same memory."""
    first_nonfinite: FirstNonfinite | None
    training: bool
    """The mode of the model itself."""
    training_passes: int = 0
    """Forwards of the model itself that recorded gradients."""
    rank: int = 0
    world: int = 1

    def layer(self, name: str) -> LayerRun | None:
        """By its name."""
        return next((each for each in self.layers if name in each.names), None)


def run_of(watch: Watch, closer: Closer) -> Run:
    """The run as it is now. Reads the model's parameters once."""
    watch._flush()
    model = watch.model
    moved = closer.book.finish()
    optimizer = watch._optimizer() if watch._optimizer is not None else None
    parameters = tuple(_parameters(watch, closer, model, optimizer, moved)) if model is not None else ()
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return Run(
        steps=watch.steps,
        passes=watch._state.forwards,
        layers=tuple(_layers(watch, closer)),
        parameters=parameters,
        loss=_filled(watch._scalars.series("loss")),
        inputs=tuple(
            watch._history.series(number)
            for number, key in enumerate(watch._state.keys.keys)
            if key.direction == "input" and number not in watch._state.whole_inputs
        ),
        batches=closer.batches.seen(),
        optimizer=None if optimizer is None else _optimizer(closer.book, model, optimizer),
        gradients_kept=closer.clearing.counts(),
        no_gradient_before_steps=not closer.book.sparse_gradients and _without_gradients(parameters),
        undone=closer.book.undone,
        copies=tuple(_copies(closer, model)) if model is not None else (),
        shared_storage=tuple(_shared(model)) if model is not None else (),
        first_nonfinite=watch.first_nonfinite(),
        training=model.training if model is not None else True,
        training_passes=watch._state.training_passes,
        rank=torch.distributed.get_rank() if distributed else 0,
        world=torch.distributed.get_world_size() if distributed else 1,
    )


def _without_gradients(parameters: Sequence[ParameterRun]) -> bool:
    """Whether they were measured, and none had a gradient other than 0."""
    measured = [each for each in parameters if len(each.steps)]
    # A norm of NaN is none that was measured, or that of gradients with NaN: what had a gradient must show 0.
    return bool(measured) and all(
        not each.had_gradient or bool((each.gradient == 0).all()) for each in measured
    )


def _filled(series: Series) -> Series | None:
    return series if len(series) else None


def _layers(watch: Watch, closer: Closer) -> Iterator[LayerRun]:
    looks = closer.units.looks()
    ran = sorted((number for number in looks), key=lambda number: looks[number].order)
    silent = [number for number in range(len(watch.layers)) if number not in looks]
    first: dict[tuple[int, str], Series] = {}
    for number, key in enumerate(watch._state.keys.keys):
        if key.direction != "input" and (key.layer, key.direction) not in first:
            series = watch._history.series(number)
            if len(series):
                first[key.layer, key.direction] = series
    calls: dict[int, list[tuple[int, Series]]] = {}
    for number, key in enumerate(watch._state.keys.keys):
        if key.direction == "output" and key.path in ("", "0"):
            series = watch._history.series(number)
            if len(series):
                calls.setdefault(key.layer, []).append((key.call, series))
    before: WatchedLayer | None = None
    for place, number in enumerate([*ran, *silent]):
        layer = watch.layers[number]
        known = layer.known()
        after = watch.layers[ran[place + 1]].kind if place + 1 < len(ran) else ""
        yield LayerRun(
            name=layer.name,
            names=layer.names,
            kind=layer.kind,
            facts=known.facts,
            fan_in=known.fan_in,
            calls=watch.layer_hooks[number].calls,
            order=place if number in looks else -1,
            training=looks[number].training if number in looks else known.training,
            parameters=tuple(f"{layer.name}.{name}".lstrip(".") for name in known.parameters),
            output=first.get((number, "output")),
            gradient=first.get((number, "gradient")),
            by_call=tuple(series for _, series in sorted(calls.get(number, ()), key=lambda each: each[0])),
            look=looks.get(number) or Look(),
            before=before.name if before is not None else "",
            before_kind=before.kind if before is not None else "",
            after_kind=after,
        )
        if known.fan_in is not None:
            before = layer


def _parameters(
    watch: Watch, closer: Closer, model: nn.Module, optimizer: Any, moved: Mapping[str, bool]
) -> Iterator[ParameterRun]:
    book = closer.book
    groups = {
        id(parameter): group
        for group in (optimizer.param_groups if optimizer is not None else ())
        for parameter in group["params"]
    }
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(without_wrappers(model, name))
    modules = dict(model.named_modules())
    never = book.never_gradient()
    numbers = {name: number for number, name in enumerate(watch._parameters.names)}
    for path, parameter in model.named_parameters():
        if is_lazy(parameter):  # of no shape yet
            continue
        holder = modules.get(path.rpartition(".")[0])
        name = without_wrappers(model, path)
        series = watch._parameter_history.series(numbers.get(name, 1 << 40))
        group = groups.get(id(parameter))
        now = _now(parameter, holder)
        yield ParameterRun(
            name=name,
            names=tuple(names[id(parameter)]),
            layer=name.rpartition(".")[0],
            layer_kind=type(holder).__name__ if holder is not None else "",
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            in_optimizer=None if optimizer is None else group is not None,
            lr=float(group["lr"]) if group is not None and group.get("lr") is not None else None,
            weight_decay=float(group.get("weight_decay", 0)) if group is not None else None,
            had_gradient=path not in never,
            moved=moved.get(path, True),
            moved_in_step=path in book.moved_in_step,
            **now,
            steps=series.first_step,
            value=series.values[:, 0],
            gradient=series.values[:, 1],
            update=series.values[:, 2],
            sampled=series.values[:, 3],
        )


@torch.no_grad()
def _now(parameter: Tensor, holder: nn.Module | None) -> dict[str, Any]:
    nothing = {"equal_units": False, "zero": False, "nonfinite": 0, "fresh": False}
    if not is_plain(parameter) or hasattr(parameter, "to_local"):
        return nothing
    value = parameter.detach()
    matrix = value.dim() >= 2 and value.shape[0] > 1
    nonfinite = int((~torch.isfinite(value)).sum())
    return {
        "equal_units": bool(matrix and not nonfinite and (value == value[:1]).all()),
        "zero": bool((value == 0).all()),
        "nonfinite": nonfinite,
        "fresh": matrix and not nonfinite and _is_fresh(value, holder),
    }


def _is_fresh(value: Tensor, holder: nn.Module | None) -> bool:
    """Uniform up to ±1 / sqrt(fan_in), as nn.Linear and convolutions are made: 64 values and more show it."""
    inputs = fan_in(holder) if isinstance(holder, (nn.Linear, nn.modules.conv._ConvNd)) else None
    if inputs is None or value.numel() < 64:
        return False
    bound = float(inputs) ** -0.5
    rms, high = float(value.float().square().mean().sqrt()), float(value.abs().amax())
    return bool(0.93 * bound < high <= 1.0001 * bound and abs(rms / bound * 3**0.5 - 1) < 0.15)


def _optimizer(book: Any, model: nn.Module | None, optimizer: Any) -> OptimizerRun:
    own = {id(each) for each in model.parameters()} if model is not None else set()
    held = [each for group in optimizer.param_groups for each in group["params"]]
    strangers = [each for each in held if id(each) not in own]
    group = optimizer.param_groups[0]
    return OptimizerRun(
        kind=type(optimizer).__name__,
        held=len(held),
        strangers=len(strangers),
        stranger_shapes=tuple(tuple(each.shape) for each in strangers[:64]),
        momentum=float(group.get("momentum", 0) or (group.get("betas") or (0,))[0]),
        rates=tuple(book.rates.values),
        closure=book.closure,
    )


def _copies(closer: Closer, model: nn.Module) -> Iterator[tuple[str, str]]:
    embeddings = {
        f"{name}.weight".lstrip("."): each
        for name, each in model.named_modules()
        if isinstance(each, nn.Embedding) and each._parameters.get("weight") is not None
    }
    layers = {
        f"{name}.weight".lstrip("."): each
        for name, each in model.named_modules()
        if isinstance(each, nn.Linear) and each._parameters.get("weight") is not None
    }
    for one, embedding in embeddings.items():
        for other, layer in layers.items():
            a, b = embedding.weight, layer.weight
            if (
                a is not b
                and a.shape == b.shape
                and a.data_ptr() != b.data_ptr()
                and closer.book.start_equal(one, other)
            ):
                yield without_wrappers(model, one), without_wrappers(model, other)


def _shared(model: nn.Module) -> Iterator[tuple[str, str]]:
    at: dict[tuple[Any, ...], str] = {}
    for name, parameter in model.named_parameters():
        if not plain(parameter):
            continue
        if hasattr(parameter, "to_local"):
            continue
        place = parameter.device, parameter.data_ptr(), tuple(parameter.shape)
        if place in at:
            yield at[place], without_wrappers(model, name)
        at.setdefault(place, without_wrappers(model, name))
