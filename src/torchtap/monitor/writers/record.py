"""What writers are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from torchtap.monitor._keys import Key
from torchtap.monitor._parameters import COLUMNS as PARAMETER_COLUMNS
from torchtap.monitor.history import COLUMNS


@dataclass(frozen=True, slots=True)
class About:
    """What a run is of, told once at its start."""

    model: str
    """The model's class."""
    layers: tuple[tuple[str, str], ...]
    """(name, class) of the watched ones."""
    every: int
    torch: str
    """Its version."""


@dataclass(frozen=True, slots=True)
class Record:
    """One step."""

    step: int
    scalars: dict[str, float]
    """What `log` was given: loss, lr, ..."""
    keys: tuple[Key, ...]
    names: tuple[str, ...]
    """The layer of each key; "" is the model itself."""
    points: np.ndarray
    """[len(keys), 8] float32, see `history.COLUMNS`."""
    parameters: tuple[str, ...] = ()
    norms: np.ndarray | None = None
    """[len(parameters), 4] float32: root mean squares of value, gradient, update, and of what was updated."""

    def tensors(self) -> Iterator[dict[str, Any]]:
        """Each measured tensor as JSON types; what is not finite or not there is None."""
        for key, name, point in zip(self.keys, self.names, self.points.tolist(), strict=True):
            yield {
                "layer": name,
                "direction": key.direction,
                "call": key.call,
                "path": key.path,
                **{column: _finite(value) for column, value in zip(COLUMNS, point, strict=True)},
            }

    def norms_of_parameters(self) -> Iterator[dict[str, Any]]:
        """Each parameter as JSON types."""
        if self.norms is not None:
            for name, row in zip(self.parameters, self.norms.tolist(), strict=True):
                values = zip(PARAMETER_COLUMNS, row, strict=False)
                yield {"name": name, **{column: _finite(value) for column, value in values}}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


class Writer(Protocol):
    """Called by one thread, never at the same time. What it raises ends it, with a warning; the training goes on."""

    def start(self, about: About) -> None:
        """Before the first step. Called in the thread of `watch(...)`: what it raises is the user's to see."""

    def write(self, record: Record) -> None:
        """A step has been read."""

    def close(self) -> None:
        """No more steps come."""
