"""Which operation made a value that is not finite: every operation of a run is looked at as it ends."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchtap.hooks import tensors
from torchtap.modes._frames import Place, stack_from

_UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
"""Operations whose outputs hold whatever was in memory."""
_CHECKPOINT = "CheckpointFunctionBackward"  # of use_reentrant=True; the other kind has no node of its own


@dataclass(frozen=True, slots=True)
class Values:
    """What a tensor held: of its finite values, and how many are not."""

    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    nans: int
    infinities: int

    def __str__(self) -> str:
        kind = f"{self.dtype}{list(self.shape)}"
        counts = [
            f"{number} {name}" for number, name in ((self.nans, "NaN"), (self.infinities, "Inf")) if number
        ]
        spread = "" if math.isnan(self.low) else f" {self.low:.3g} to {self.high:.3g}"
        return f"{kind}{spread}{', ' * bool(spread and counts)}{' ' * bool(counts and not spread)}{', '.join(counts)}"


def values_of(tensor: Tensor) -> Values:
    """Waits for the device."""
    flat = tensor.detach()
    finite = flat[torch.isfinite(flat)].double()
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (math.nan, math.nan)
    nans = int(torch.isnan(flat).sum())
    infinities = flat.numel() - finite.numel() - nans
    return Values(tuple(flat.shape), str(flat.dtype).removeprefix("torch."), low, high, nans, infinities)


@dataclass(frozen=True, slots=True)
class Where:
    """Where an operation ran."""

    module: str | None
    """The path of the innermost module whose forward it was part of, "" for the model itself; None: of none."""
    kind: str
    """That module's class."""
    call: int
    """0 for that module's first call."""
    place: Place | None
    """The user's line."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An operation that made NaN or Inf of what had none."""

    operator: str
    """As PyTorch names it: "aten.log"."""
    direction: str
    """"forward" or "backward"; there `where` is where its forward ran."""
    where: Where | None
    inputs: tuple[Values, ...]
    outputs: tuple[Values, ...]
    node: str = ""
    """In backward, the node: "LogBackward0"."""


class _Stop(BaseException):
    """Enough is known. No Exception, so that no `except Exception` of the model's stops it."""


@dataclass
class Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Open around a forward and its backward. Ends the run by `_Stop` at the first NaN that was made of none."""

    infinite: Origin | None = None
    """The first Inf that was made of finite values."""
    nan: Origin | None = None
    modules: list[Where] = field(default_factory=list)
    """The calls that run now, outermost first: kept by who registers hooks."""
    backward: bool = False
    _forwards: dict[int, Where] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node() if self.backward else None
        where = None
        # A checkpoint runs its forward again within backward.
        if node is None or self.modules or node.name() == _CHECKPOINT:
            node, where = None, self._here()
            # Autograd has made its node already, and numbers its nodes in this order.
            self._forwards[torch.autograd._get_sequence_nr() - 1] = where  # type: ignore[attr-defined]
        before = [_state(each) for each in _floating((args, kwargs))]
        constants = any(
            isinstance(each, float) and not math.isfinite(each) for each in _numbers((args, kwargs))
        )
        out = func(*args, **kwargs)
        if func.overloadpacket.__name__ in _UNWRITTEN:
            return out
        made = list(_floating(out))
        nan, infinity = (
            (any(marks) for marks in zip(*map(_state, made), strict=True)) if made else (False, False)
        )
        if nan and not any(had for had, _ in before):
            self.nan = self._origin(func, node, where, args, kwargs, made)
            raise _Stop
        if infinity and self.infinite is None and not constants and not any(a or b for a, b in before):
            self.infinite = self._origin(func, node, where, args, kwargs, made)
        return out

    def _here(self) -> Where:
        place = stack_from(sys._getframe(2)).here
        inner = self.modules[-1] if self.modules else Where(None, "", 0, None)
        return Where(inner.module, inner.kind, inner.call, place)

    def _origin(
        self, func: Any, node: Any, where: Where | None, args: Any, kwargs: Any, made: list[Tensor]
    ) -> Origin:
        if node is not None:
            where = self._forwards.get(node._sequence_nr())
        with torch._C._DisableTorchDispatch():
            return Origin(
                operator=str(func.overloadpacket),
                direction="forward" if node is None else "backward",
                where=where,
                inputs=tuple(values_of(each) for each in _floating((args, kwargs))),
                outputs=tuple(values_of(each) for each in made),
                node=node.name() if node is not None else "",
            )


def _floating(value: object) -> Iterator[Tensor]:
    for _, each in tensors(value):
        if each.is_floating_point() and each.layout is torch.strided and not each.is_meta and each.numel():
            yield each


def _numbers(value: object) -> Iterable[object]:
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, (tuple, list)):
            todo += each
        elif isinstance(each, dict):
            todo += each.values()
        else:
            yield each


def _state(tensor: Tensor) -> tuple[bool, bool]:
    """Whether it holds a NaN, whether an infinity."""
    # A sum is one pass, and finite unless there is one or it overflows: then the exact look.
    if math.isfinite(tensor.sum(dtype=torch.float64).item()):
        return False, False
    return bool(torch.isnan(tensor).any()), bool(torch.isinf(tensor).any())
