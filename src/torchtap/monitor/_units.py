"""A close look at every layer in every tenth step: units, saturation, what normalisation sees, attention, embeddings.

What is found is kept as counts and shares: no activation outlives its step, and on a device nothing waits. The hooks
are there only in the steps that are looked at, so they cost nothing in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtap.hooks import Hooks, on_gradient, tensors
from torchtap.hooks.lifecycle import is_aside
from torchtap.monitor._layers import WatchedLayer
from torchtap.monitor._looks import Look, Numbers, Seen, look_of
from torchtap.monitor._rows import read_later
from torchtap.monitor.stats import refusal
from torchtap.monitor.stats.kernel import TYPES
from torchtap.monitor.stats.refusing import PLAIN

UNITS = 2048
"""Units of one layer that are followed: all of a smaller one, else evenly spread."""
ROWS = 16
"""Rows of a batch that are compared with each other."""
ROWS_OF_UNITS = 64
"""Rows in which a unit may show that it is alive, at most."""
VALUES_OF_A_UNIT = 4096
"""Values that are enough for that: fewer rows where each has many positions."""
VALUES_OF_A_CHANNEL = 2048
"""From which the mean and the variance of a batch are taken."""
VALUES_OF_A_ROW = 512
"""By which a row is compared with the others first."""
CALLS = 4
"""Calls of one layer in one step that are looked at."""
SATURATED = 0.98
"""Of tanh: there its derivative is below 0.04."""

_CONVOLUTIONAL = ("Conv", "BatchNorm", "GroupNorm", "InstanceNorm", "SyncBatchNorm", "LazyConv")


class Units:
    """Looks at the layers of one model."""

    def __init__(self, layers: Sequence[WatchedLayer], compiled: Collection[int] = ()) -> None:
        self._layers = layers
        self._compiled = compiled
        self.given_up: dict[int, str] = {}
        """Layers of which a look failed, and why: they are looked at no more."""
        self._seen: dict[int, Seen] = {}
        self._numbers = Numbers(len(layers))
        self._hooks = Hooks()
        self._calls: dict[int, int] = {}
        self._found: dict[tuple[int, str], Tensor] = {}
        self._reads: list[tuple[int, list[tuple[int, str, int]], Callable[[], np.ndarray]]] = []
        self._masks: dict[int, Tensor] = {}
        self._last: tuple[tuple[int, ...], int] = ((), -1)

    def begin(self) -> None:
        """The step that begins is looked at."""
        for number, watched in enumerate(self._layers):
            layer = watched.hookable()
            if layer is None or layer.compiled or number in self._compiled or number in self.given_up:
                continue
            if isinstance(layer.module, _NEED_INPUTS):
                self._hooks.add_with_inputs(layer, functools.partial(self._forward_with_inputs, number))
            else:  # a hook with inputs by name costs memory for good
                self._hooks.add(layer, functools.partial(self._forward, number))

    def _forward(self, number: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._forward_with_inputs(number, module, args, {}, output)

    def _forward_with_inputs(
        self, number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if is_aside() or (calls := self._calls.get(number, 0)) >= CALLS or number in self.given_up:
            return
        try:
            with torch.no_grad():
                self._look(number, calls, module, args, kwargs, output)
        except Exception as error:  # a layer of the user's may be anything, and its training goes on
            self.given_up[number] = f"{type(error).__name__}: {error}"

    def _look(
        self,
        number: int,
        calls: int,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        first = next((each for _, each in tensors(output) if _fits(each)), None)
        if first is None or first.dim() == 0 or not first.numel():
            return
        seen = self._seen.get(number)
        if seen is None:
            seen = Seen(str(first.dtype).removeprefix("torch."), first.device.type, len(self._seen))
            self._seen[number] = seen
        if not calls:
            seen.training, shape = module.training, tuple(first.shape)
            seen.shape = seen.shape if seen.shape == shape else shape
        self._calls[number] = calls + 1
        dimension = self._unit_dimension(module, first)
        rows = _rows_of_units(first, dimension)
        self._keep(number, "max", _by_unit(first[:rows], dimension, torch.amax), torch.maximum)
        self._apart(number, first)
        for of, measure in _MEASURES:
            if isinstance(module, of):
                for name, value in measure(module, args, kwargs, first):
                    self._keep(number, name, value, torch.maximum)
        weight = module._parameters.get("weight")
        if type(module).forward in _BY_INDEX and weight is not None:
            self._touch(number, len(weight), args, kwargs)
        if first.requires_grad and not first.is_leaf:  # which would keep the hook for good
            on_gradient(first, functools.partial(self._gradient, number, dimension, rows))

    def _unit_dimension(self, module: nn.Module, output: Tensor) -> int:
        """Which dimension counts units: channels of a convolution and of what follows it in the same shape."""
        shape, dimension = self._last
        if type(module).__name__.startswith(_CONVOLUTIONAL):
            dimension = 1 if output.dim() > 1 else 0
        elif tuple(output.shape) != shape:
            dimension = 1 if output.dim() >= 4 else output.dim() - 1
        self._last = tuple(output.shape), dimension
        return dimension

    def _apart(self, number: int, output: Tensor) -> None:
        """How far the rows of the batch are apart, in terms of the largest value: 0 where all are equal."""
        if output.shape[0] > 1:
            some = output[:ROWS].detach()
            apart = _distance(_few_of_each(some, VALUES_OF_A_ROW))
            if _is_here(some) and not apart > 0:
                apart = _distance(some)  # the values that differ may be others
            self._keep(number, "apart", apart, torch.maximum)

    def _gradient(self, number: int, dimension: int, rows: int, gradient: Tensor) -> None:
        if _fits(gradient) and gradient.numel():
            with torch.no_grad():
                some = gradient.detach()[:rows]
                high, low = (_by_unit(some, dimension, reduce) for reduce in (torch.amax, torch.amin))
                self._keep(number, "gradient", torch.maximum(high, -low), torch.maximum)
                if gradient.dtype is torch.float16:
                    self._keep(number, "gradient_zeros", (gradient == 0).float().mean(), torch.minimum)

    def _touch(
        self,
        number: int,
        rows: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        indices = args[0] if args else kwargs.get("input")
        if isinstance(indices, Tensor) and indices.dtype in (torch.int64, torch.int32):
            mask = self._masks.get(number)
            if mask is None or len(mask) < rows:
                wider = torch.zeros(rows, dtype=torch.bool, device=indices.device)
                if mask is not None:
                    wider[: len(mask)] = mask
                mask = self._masks[number] = wider
            mask[indices.reshape(-1)] = True
            self._seen[number].tokens += indices.numel()

    def _keep(self, number: int, name: str, value: Tensor, merge: Callable[[Tensor, Tensor], Tensor]) -> None:
        value = value.detach().float().reshape(-1)
        before = self._found.get((number, name))
        if before is not None:
            if before.shape != value.shape:
                return
            value = merge(before, value)
        self._found[number, name] = value

    def end(self, step: int) -> None:
        """The step has been done."""
        self._hooks.remove()
        self._calls = {}
        found, self._found = self._found, {}
        self.read()
        by_device: dict[torch.device, list[tuple[int, str]]] = {}
        for key, value in found.items():
            by_device.setdefault(value.device, []).append(key)
        for keys in by_device.values():
            values = [found[key] for key in keys]
            parts = [(number, name, len(value)) for (number, name), value in zip(keys, values, strict=True)]
            self._reads.append((step, parts, read_later(torch.cat(values))))
        if all(device.type == "cpu" for device in by_device):
            self.read()

    def remove(self) -> None:
        """Take the hooks off."""
        self._hooks.remove()

    def read(self) -> None:
        """Take in what has come."""
        reads, self._reads = self._reads, []
        for step, parts, read in reads:
            values = np.split(read(), np.cumsum([length for _, _, length in parts])[:-1])
            of: dict[int, dict[str, np.ndarray]] = {}
            for (number, name, _), value in zip(parts, values, strict=True):
                of.setdefault(number, {})[name] = value
            self._numbers.begin(step)
            for number, given in of.items():
                self._add(number, given)

    def _add(self, number: int, given: dict[str, np.ndarray]) -> None:
        seen, rectifier = self._seen[number], issubclass(self._layers[number].known().type, RECTIFIERS)
        high, gradient = given.pop("max", None), given.pop("gradient", None)
        if high is not None and (rectifier or (gradient is not None and len(gradient) == len(high))):
            dead = high <= 0
            if not rectifier:
                assert gradient is not None
                dead &= gradient == 0
            seen.add_dead(dead)
            given["dead"] = dead.mean(keepdims=True)
        if gradient is not None:
            given["gradient_reaches"] = (gradient > 0).mean(keepdims=True)
        for name, value in given.items():
            self._numbers.add(number, name, float(value[0]))

    def looks(self) -> dict[int, Look]:
        """All that was seen until now, by the layer's place; waits for what is on the way."""
        self.read()
        touched = {number: mask.cpu().numpy() for number, mask in self._masks.items()}
        return {
            number: look_of(seen, self._numbers.of(number), touched.get(number))
            for number, seen in self._seen.items()
        }


RECTIFIERS = (nn.ReLU, nn.ReLU6)
_BY_INDEX = (nn.Embedding.forward, nn.EmbeddingBag.forward)
"""Of layers whose first input are rows of their weight; a class derived from them may take anything."""


def _fits(tensor: Tensor) -> bool:
    """Whether a closer look can be taken: more is done with it than statistics of one row."""
    return type(tensor) in PLAIN and tensor.dtype in TYPES and refusal(tensor) is None


def _by_unit(tensor: Tensor, dimension: int, reduce: Callable[..., Tensor]) -> Tensor:
    others = [each for each in range(tensor.dim()) if each != dimension]
    values = reduce(tensor.detach(), others) if others else tensor.detach()
    return values[:: -(-values.numel() // UNITS)]


def _rows_of_units(tensor: Tensor, dimension: int) -> int:
    """How many rows give `VALUES_OF_A_UNIT`."""
    in_a_row = tensor[0].numel() // (tensor.shape[dimension] if dimension else 1)
    return min(ROWS_OF_UNITS, -(-VALUES_OF_A_UNIT // max(1, in_a_row)))


def _few_of_each(rows: Tensor, values: int) -> Tensor:
    """Of each row so many of its values, evenly spread; all where that would cost a copy, and on a device, where
    nobody can look at the rest afterwards."""
    if not _is_here(rows) or not rows.is_contiguous():
        return rows
    flat = rows.view(len(rows), -1)
    return flat[:, :: _odd(flat.shape[1] // values)]


def _is_here(tensor: Tensor) -> bool:
    """Whether reading it waits for no device."""
    return tensor.is_cpu


def _odd(distance: int) -> int:
    """An odd distance near this one: even and odd places may differ, as after a transposed convolution."""
    return max(1, distance | 1 if distance > 1 else 1)


def _distance(rows: Tensor) -> Tensor:
    """How far the first row is from the others, in terms of the largest value."""
    low, high = torch.aminmax(rows.float() - rows[:1])
    least, most = torch.aminmax(rows)
    return torch.maximum(high, -low) / torch.maximum(most, -least)


Measured = list[tuple[str, Tensor]]


def _tanh(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Measured:  # noqa: ARG001
    return [("saturated", (output.detach().abs() > SATURATED).float().mean())]


def _sigmoid(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Measured:  # noqa: ARG001
    return [("saturated", ((output.detach() - 0.5).abs() > SATURATED / 2).float().mean())]


def _softmax(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Measured:  # noqa: ARG001
    dimension = getattr(module, "dim", None)
    dimension = -1 if dimension is None else dimension
    return [
        ("entropy", _entropy(output.detach().float(), dimension)),
        ("choices", _number(output, output.shape[dimension])),
    ]


def _entropy(weights: Tensor, dimension: int) -> Tensor:
    """Mean over rows, in terms of the highest that is possible: 1 is uniform, 0 one choice."""
    bits = -(weights * weights.clamp_min(1e-30).log()).sum(dimension)
    made: Tensor = bits.mean() / np.log(max(2, weights.shape[dimension]))
    return made


def _number(like: Tensor, value: float) -> Tensor:
    return torch.full((), float(value), device=like.device)


def _batch_norm(module: Any, args: tuple[Any, ...], kwargs: Any, output: Tensor) -> Measured:  # noqa: ARG001
    given = args[0].detach().float() if args and isinstance(args[0], Tensor) else None
    if given is None or given.dim() < 2:
        return []
    made = [
        ("rows", _number(given, given.numel() / given.shape[1])),
        ("samples", _number(given, given.shape[0])),
    ]
    if module.training and module.running_mean is not None and given.numel() > given.shape[1]:
        some = _few_of_each_channel(given)
        others = [each for each in range(given.dim()) if each != 1]
        # Not var(): on a CPU that takes ten times as long.
        mean = some.mean(others, keepdim=True)
        variance, mean = (some - mean).square_().mean(others), mean.flatten()
        # Of which channels? All that vary: a dead one has no scale.
        there = variance > module.eps
        distance = (mean - module.running_mean).abs() / (module.running_var + module.eps).sqrt()
        factor = (variance.clamp_min(module.eps) / module.running_var.clamp_min(module.eps)).log().abs()
        weight = there.float() / there.sum().clamp_min(1)
        made += [("mean_off", (distance * weight).sum()), ("variance_off", (factor * weight).sum())]
    return made


def _few_of_each_channel(given: Tensor) -> Tensor:
    """Of each channel some `VALUES_OF_A_CHANNEL`, of every row alike."""
    places = max(1, given.dim() - 2)
    over = given.numel() // (given.shape[1] * VALUES_OF_A_CHANNEL)
    if given.dim() == 2 or over < 2:
        return given
    distance = _odd(round(over ** (1 / places)))
    some = (slice(None), slice(None)) + (slice(None, None, distance),) * places
    return given[some].contiguous()


def _layer_norm(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Measured:  # noqa: ARG001
    given = args[0] if args else kwargs.get("input")
    if not isinstance(given, Tensor):
        return []
    rows = given.detach()[:ROWS].reshape(-1, module.normalized_shape[0], *module.normalized_shape[1:])
    rows = rows[:: -(-len(rows) // ROWS_OF_UNITS)]
    rows = rows.float().flatten(1)
    variance = (rows - rows.mean(1, keepdim=True)).square_().mean(1)
    return [("below_eps", (variance < module.eps).float().mean())]


def _attention(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Measured:  # noqa: ARG001
    """Entropy of the attention weights, computed once more for two rows of the batch."""
    query = args[0] if args else kwargs.get("query")
    key = args[1] if len(args) > 1 else kwargs.get("key")
    own = module._parameters.get("in_proj_weight")  # no attribute: a parametrization would compute it anew
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or own is None:
        return []
    if query.dim() != 3 or key.dim() != 3 or query.is_nested:
        return []
    masked = any(kwargs.get(name) is not None for name in ("attn_mask", "key_padding_mask")) or len(args) > 3
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    width, heads = module.embed_dim, module.num_heads
    weight, bias = own.detach().float(), module._parameters.get("in_proj_bias")
    q = query[:2, :64].detach().float() @ weight[:width].T
    k = key[:2].detach().float() @ weight[width : 2 * width].T
    if bias is not None:
        q, k = q + bias[:width].detach().float(), k + bias[width : 2 * width].detach().float()
    q, k = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k))
    scores = q @ k.transpose(-1, -2) / (width // heads) ** 0.5
    if masked:  # a mask leaves fewer choices: what is told then is of the scores without it
        scores = scores - scores.amax(-1, keepdim=True)
    weights = scores.softmax(-1)
    return [("entropy", _entropy(weights, -1)), ("choices", _number(weights, weights.shape[-1]))]


_MEASURES: tuple[tuple[Any, Callable[..., Measured]], ...] = (
    ((nn.Tanh, nn.Softsign, nn.Hardtanh, nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell), _tanh),
    ((nn.Sigmoid, nn.Hardsigmoid), _sigmoid),
    (nn.Softmax, _softmax),
    (nn.modules.batchnorm._BatchNorm, _batch_norm),
    (nn.LayerNorm, _layer_norm),
    (nn.MultiheadAttention, _attention),
)
"""saturated: share of values; entropy: 0 to 1, of `choices`; samples: rows of the batch; rows: values a channel;
mean_off: in running standard deviations; variance_off: logarithm of the factor; below_eps: share of rows whose
variance is below eps."""
_NEED_INPUTS = tuple(
    {nn.Embedding, nn.EmbeddingBag, nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.MultiheadAttention}
)
