"""What closer looks have seen of the layers, in little memory: arrays over all layers instead of objects of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

KEPT = 16
"""Looks that are remembered: when there are as many, every other one of the older half is dropped. So the first stays,
the latest are all there, and what lies between gets thinner."""
IN_A_ROW = 4
"""The last looks of which each unit's own state is known."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of one layer. Shares are of 0 to 1, one a look, in order."""

    dead: np.ndarray | None = None
    """[units] uint8: looks in a row, up to the last, in which the unit gave nothing above 0 and got no gradient;
    `IN_A_ROW` at most."""
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By name: see `_units._MEASURES`, and "dead", the share of the units."""
    steps: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of these numbers."""
    touched: np.ndarray | None = None
    """[rows] bool of an embedding."""
    tokens: int = 0
    """Indices that the embedding was given in the looks."""
    dtype: str = ""
    device: str = ""
    order: int = -1
    """Its place in the order in which layers ran first."""
    training: bool = True
    shape: tuple[int, ...] = ()

    def number(self, name: str) -> Sequence[float]:
        """One look's after the other; empty where it was not measured."""
        return self.numbers.get(name, ())


class Numbers:
    """Numbers of layers, by name and look."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self.steps: list[int] = []
        """Of the looks that are remembered."""
        self._values: dict[str, np.ndarray] = {}
        self._there: dict[str, np.ndarray] = {}
        """[KEPT, layers] each: what was measured, and whether it was."""

    def begin(self, step: int) -> None:
        """A look, later than those before."""
        if len(self.steps) == KEPT:
            half = KEPT // 2
            kept = [*range(0, half, 2), *range(half, KEPT)]
            self.steps = [self.steps[place] for place in kept]
            for table in (*self._values.values(), *self._there.values()):
                table[: len(kept)] = table[kept]
            for table in self._there.values():
                table[len(kept) :] = False
        self.steps.append(step)

    def add(self, layer: int, name: str, value: float) -> None:
        """What the look that was begun last saw."""
        if name not in self._values:
            self._values[name] = np.zeros((KEPT, self._layers), dtype=np.float32)
            self._there[name] = np.zeros((KEPT, self._layers), dtype=bool)
        place = len(self.steps) - 1
        self._values[name][place, layer] = value
        self._there[name][place, layer] = True

    def of(self, layer: int) -> dict[str, dict[int, float]]:
        """By name and step."""
        found = {}
        for name, there in self._there.items():
            places = np.flatnonzero(there[:, layer]).tolist()
            if places:
                values = self._values[name][places, layer].tolist()
                found[name] = {self.steps[at]: value for at, value in zip(places, values, strict=True)}
        return found


class Seen:
    """What is kept of one layer besides its numbers."""

    __slots__ = ("device", "dtype", "order", "shape", "tokens", "training", "units", "was_dead")

    def __init__(self, dtype: str, device: str, order: int) -> None:
        self.dtype, self.device, self.order = sys.intern(dtype), sys.intern(device), order
        self.shape: tuple[int, ...] = ()
        self.training = True
        self.tokens = 0
        self.units = 0
        self.was_dead: np.ndarray | None = None
        """[IN_A_ROW, units / 8] uint8: a bit a unit, the latest look first."""

    def add_dead(self, dead: np.ndarray) -> None:
        """One look's, [units] bool."""
        if self.was_dead is None or self.units != len(dead):
            self.units = len(dead)
            self.was_dead = np.zeros((IN_A_ROW, -(-len(dead) // 8)), dtype=np.uint8)
        self.was_dead[1:] = self.was_dead[:-1].copy()
        self.was_dead[0] = np.packbits(dead)

    def dead(self) -> np.ndarray | None:
        """See `Look.dead`."""
        if self.was_dead is None:
            return None
        masks = np.unpackbits(self.was_dead, axis=1, count=self.units)
        in_a_row: np.ndarray = np.minimum.accumulate(masks, axis=0).sum(axis=0, dtype=np.uint8)
        return in_a_row


def look_of(seen: Seen, numbers: dict[str, dict[int, float]], touched: np.ndarray | None) -> Look:
    """All of one layer."""
    return Look(
        dead=seen.dead(),
        numbers={name: tuple(some.values()) for name, some in numbers.items()},
        steps={name: tuple(some) for name, some in numbers.items()},
        touched=touched,
        tokens=seen.tokens,
        dtype=seen.dtype,
        device=seen.device,
        order=seen.order,
        training=seen.training,
        shape=seen.shape,
    )
