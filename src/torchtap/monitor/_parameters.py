"""Norms of parameters, their gradients and updates: a few fused kernels for all parameters together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from torchtap.hooks.names import WRAPPING, wrapped
from torchtap.monitor._rows import read_later
from torchtap.monitor.history import Layout
from torchtap.monitor.stats.kernel import TYPES
from torchtap.monitor.stats.refusing import PLAIN

COLUMNS = ("value", "gradient", "update", "sampled")
"""Root mean squares: of all values, of all gradients, of the update of a sample, of the sample's values before it."""
SAMPLE = 1024
"""Elements of one parameter that its update is measured on. All of a smaller one."""
RUN = 8
"""They are taken so many in a row, the rows evenly spread: each of them alone would be a miss of the cache."""


@dataclass
class ParameterNorms:
    """Measures the parameters of one model around an optimizer's step."""

    names: list[str] = field(default_factory=list)
    """All that were ever measured: their numbers."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _before: dict[str, Tensor] = field(default_factory=dict)
    _gradients: dict[str, Tensor] | None = None

    def before(self, model: nn.Module, *, closure: bool = False) -> None:
        """Right before the optimizer's step: gradients are there and complete, unless a closure is to make them."""
        named = _measurable(model)
        self._before = {name: _sample(parameter).clone() for name, parameter in named.items()}
        self._gradients = None if closure else root_mean_squares(_gradients(named))

    def after(self, model: nn.Module) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """Right after it: what gives the numbers of the parameters [n] and their points [n, 8].

        A point is `COLUMNS`, NaN where there is nothing, then zeros, then 1: one step.
        """
        named = _measurable(model)
        values = root_mean_squares(named)
        gradients, before = self._gradients, self._before
        if gradients is None:  # nobody called before the step, or a closure has made them in it
            gradients = root_mean_squares(_gradients(named))
        moved = {name: _sample(p) - before[name] for name, p in named.items() if name in before}
        updates = root_mean_squares(moved)
        sampled = root_mean_squares({name: before[name] for name in moved})
        self._before, self._gradients = {}, None
        numbers = np.array([self._number(name) for name in values], dtype=np.int64)
        reads = [_read(values, each) for each in (values, gradients, updates, sampled)]

        def points() -> tuple[np.ndarray, np.ndarray]:
            made = np.zeros((len(numbers), 8), dtype=np.float32)
            made[:, : len(COLUMNS)] = np.stack([read() for read in reads], axis=1)
            made[:, -1] = 1
            return numbers, made

        return points

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


def _measurable(model: nn.Module) -> dict[str, Tensor]:
    return {
        without_wrappers(model, name): parameter
        for name, parameter in model.named_parameters()
        if is_plain(parameter)
    }


def without_wrappers(model: nn.Module, path: str) -> str:
    """A parameter's name as its user knows it: without what DistributedDataParallel and other wrappers add.

    >>> without_wrappers(nn.DataParallel(nn.Linear(1, 1)), "module.weight")
    'weight'
    """
    kept, module = [], model
    for part in path.split("."):
        inner = wrapped(module) if part in WRAPPING else None
        if inner is None or inner[0] != part:
            kept.append(part)
        inside = module._modules.get(part)
        module = module if inside is None else inside  # the truth of a module may be its length
    return ".".join(kept)


def _gradients(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.grad for name, p in named.items() if p.grad is not None and is_plain(p.grad)}


def is_plain(tensor: Tensor) -> bool:
    """Dense, real, floating and in memory."""
    return (
        (type(tensor) in PLAIN or hasattr(tensor, "to_local"))
        and tensor.layout is torch.strided
        and tensor.dtype in TYPES
        and tensor.device.type != "meta"
        and local(tensor).numel() > 0  # of a small parameter some ranks hold no shard
    )


def local(tensor: Tensor) -> Tensor:
    """The shard on this rank of a DTensor, as FSDP2 makes them."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


@torch.no_grad()
def spread(tensor: Tensor, most: int) -> Tensor:
    """At most so many elements of a tensor, of its local part, evenly spread: a view where it is contiguous."""
    flat = local(tensor.detach()).reshape(-1)
    return flat[:: max(1, -(-flat.numel() // most))]


@torch.no_grad()
def _sample(parameter: Tensor) -> Tensor:
    """`SAMPLE` of its elements, those of its local part."""
    flat = local(parameter.detach()).reshape(-1)
    rows = SAMPLE // RUN
    if flat.numel() < 2 * SAMPLE:
        return spread(flat, SAMPLE)
    return flat[: flat.numel() // rows * rows].view(rows, -1)[:, :RUN]


@torch.no_grad()
def root_mean_squares(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Root mean squares, each a tensor of no dimension on its own device; norms accumulate in float32 at least."""
    if not named:
        return {}
    values = [local(each.detach()) for each in named.values()]
    dtypes = {each.dtype for each in values}
    if len(dtypes) == 1 and not dtypes & {torch.float16, torch.bfloat16}:
        norms = torch._foreach_norm(values, 2)
    else:
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
        norms = torch._foreach_norm(values, 2, dtype=wide)
    return {name: norm / value.numel() ** 0.5 for name, norm, value in zip(named, norms, values, strict=True)}


def _read(names: Sequence[str] | dict[str, Tensor], given: dict[str, Tensor]) -> Callable[[], np.ndarray]:
    """The numbers in the order of `names`, NaN where there is none; read when called, copied now."""
    places = {name: place for place, name in enumerate(names)}
    groups: dict[torch.device, list[str]] = {}
    for name in given:
        if name in places:
            groups.setdefault(given[name].device, []).append(name)
    reads = [
        ([places[name] for name in group], read_later(torch.stack([given[name].float() for name in group])))
        for group in groups.values()
    ]

    def values() -> np.ndarray:
        made = np.full(len(places), np.nan)
        for at, read in reads:
            made[at] = read()
        return made

    return values


def pooled(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Two steps' columns as one: means of what is there. The last column of the history's point counts."""
    with np.errstate(invalid="ignore"):
        both = np.where(np.isnan(one), other, np.where(np.isnan(other), one, (one + other) / 2))
    both[..., -1] = one[..., -1] + other[..., -1]
    return np.asarray(both, dtype=np.float32)


LAYOUT = Layout((*range(len(COLUMNS)), 7), pooled)
"""Of a history of points as `ParameterNorms.after` gives them."""
