"""What a watch remembers of a run: some dozens of points a tensor, however long the run is.

The first 24 steps are kept as they are. Then two neighbours become one point, and each new point stands for twice as
many steps, and so on: the whole run at ever coarser steps, in memory that does not grow. Nothing falls between points:
a point holds the least minimum, the greatest maximum and all non-finite values of its steps, and mean, rms and
std as if its steps' values were one tensor. The rms is not kept: mean and std give it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

KEPT = 24
SCALARS_KEPT = 48
COLUMNS = ("min", "max", "mean", "rms", "std", "zeros", "nonfinite", "count")
"""Of a point. `zeros` is a fraction and NaN where it is not measured; `nonfinite` and `count` are numbers of values."""
_MIN, _MAX, _MEAN, _RMS, _STD, _ZEROS, _NONFINITE, _COUNT = range(len(COLUMNS))


class Series(NamedTuple):
    """One tensor over the run. Arrays of one length, oldest first."""

    first_step: np.ndarray
    """[n] int64: the point is of the steps `first_step` to `last_step`."""
    last_step: np.ndarray
    values: np.ndarray
    """[n, 8] float32, see `COLUMNS`."""

    def __getitem__(self, name: str) -> np.ndarray:  # type: ignore[override]  # by name: a point's column
        """A column, [n] float32: "min", "max", "mean", "rms", "std", "absmax", "zeros", "nonfinite", "count"."""
        if name == "absmax":
            greatest: np.ndarray = np.fmax(np.abs(self.values[:, _MIN]), np.abs(self.values[:, _MAX]))
            return greatest
        column: np.ndarray = self.values[:, COLUMNS.index(name)]
        return column

    def __len__(self) -> int:
        return len(self.first_step)


def points(rows: np.ndarray) -> np.ndarray:
    """Raw rows [n, 8] float64 (`torchtap.monitor.stats`) as points [n, 8] float32."""
    minimum, maximum, total, squares, zeros, nonfinite, count, _ = rows.T
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        finite = count - nonfinite
        mean = total / finite
        rms = np.sqrt(squares / finite)
        # Never below what rounding leaves: a constant tensor's variance comes out as ±1e-17 times its square.
        std = np.sqrt(np.maximum(squares / finite - mean * mean, 0))
        made = np.stack([minimum, maximum, mean, rms, std, zeros / count, nonfinite, count], axis=1)
    return made.astype(np.float32)


def pooled(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Two arrays of points [..., 8] as one: each pair's values taken together. A count of 0 is nothing."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    count_a, count_b = a[..., _COUNT], b[..., _COUNT]
    finite_a, finite_b = count_a - a[..., _NONFINITE], count_b - b[..., _NONFINITE]
    made = np.empty_like(a)
    made[..., _MIN] = np.fmin(a[..., _MIN], b[..., _MIN])
    made[..., _MAX] = np.fmax(a[..., _MAX], b[..., _MAX])
    made[..., _MEAN] = mean = _mixed(a[..., _MEAN], b[..., _MEAN], finite_a, finite_b)
    made[..., _RMS] = np.sqrt(_mixed(a[..., _RMS] ** 2, b[..., _RMS] ** 2, finite_a, finite_b))
    spread_a = a[..., _STD] ** 2 + (a[..., _MEAN] - mean) ** 2
    spread_b = b[..., _STD] ** 2 + (b[..., _MEAN] - mean) ** 2
    made[..., _STD] = np.sqrt(_mixed(spread_a, spread_b, finite_a, finite_b))
    counted_a, counted_b = (np.where(np.isnan(each[..., _ZEROS]), 0, each[..., _COUNT]) for each in (a, b))
    made[..., _ZEROS] = _mixed(a[..., _ZEROS], b[..., _ZEROS], counted_a, counted_b)
    made[..., _NONFINITE] = a[..., _NONFINITE] + b[..., _NONFINITE]
    made[..., _COUNT] = count_a + count_b
    return made.astype(np.float32)


def _mixed(x: np.ndarray, y: np.ndarray, weight_x: np.ndarray, weight_y: np.ndarray) -> np.ndarray:
    """The weighted mean. What has no weight may be NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (weight_x * x + weight_y * y) / (weight_x + weight_y)
    return np.where(weight_y == 0, x, np.where(weight_x == 0, y, mean))


def _nothing(*shape: int) -> np.ndarray:
    empty = np.full((*shape, len(COLUMNS)), np.nan, dtype=np.float32)
    empty[..., _NONFINITE:] = 0
    return empty


@dataclass(frozen=True, slots=True)
class Layout:
    """How a history keeps points of eight columns, and makes one of two."""

    kept: tuple[int, ...]
    """The columns that it keeps, the count last."""
    pool: Callable[[np.ndarray, np.ndarray], np.ndarray]
    derive: Callable[[np.ndarray], None] | None = None
    """Fills in columns that are not kept."""

    def packed(self, values: np.ndarray) -> np.ndarray:
        """Of points [..., 8] what is kept."""
        return values[..., self.kept]

    def whole(self, packed: np.ndarray) -> np.ndarray:
        """The points [..., 8] float32 again."""
        values = _nothing(*packed.shape[:-1])
        values[..., self.kept] = packed
        if self.derive is not None:
            self.derive(values)
        return values


def _derive_rms(values: np.ndarray) -> None:
    mean, std = values[..., _MEAN].astype(np.float64), values[..., _STD].astype(np.float64)
    with np.errstate(over="ignore"):
        values[..., _RMS] = np.sqrt(mean * mean + std * std)


OF_TENSORS = Layout((_MIN, _MAX, _MEAN, _STD, _ZEROS, _NONFINITE, _COUNT), pooled, _derive_rms)


class History:
    """Points of many things over the run, each known by its number: [8] float32."""

    def __init__(self, most: int = KEPT, layout: Layout = OF_TENSORS) -> None:
        self._most = most
        self._layout = layout
        self._points = self._room(0)
        self._first = np.zeros(most, dtype=np.int64)
        self._last = np.zeros(most, dtype=np.int64)
        self._used = 0
        self._stride = 1
        """Steps in one point."""
        self._open = 0
        """Steps in the last point, as long as it is not full."""

    def __len__(self) -> int:
        return self._used

    def _room(self, things: int) -> np.ndarray:
        return self._layout.packed(_nothing(self._most, things))

    def add(self, step: int, keys: np.ndarray, values: np.ndarray) -> None:
        """One step: the numbers of its keys [n], each once, and their points [n, 8]."""
        layout = self._layout
        if len(keys) and keys.max() >= self._points.shape[1]:
            wider = self._room(int(keys.max()) + 1)
            wider[:, : self._points.shape[1]] = self._points
            self._points = wider
        if self._open == 0:
            if self._used == self._most:
                self._halve()
            if self._open == 0:
                self._points[self._used] = layout.packed(_nothing())
                self._first[self._used] = step
                self._used += 1
        here = self._points[self._used - 1]
        if self._open:
            values = layout.pool(layout.whole(here[keys]), values)
        here[keys] = layout.packed(values)
        self._last[self._used - 1] = step
        self._open = (self._open + 1) % self._stride

    def _halve(self) -> None:
        half, whole = self._most // 2, self._layout.whole
        for place in range(half):
            pair = (whole(each) for each in self._points[2 * place : 2 * place + 2])
            self._points[place] = self._layout.packed(self._layout.pool(*pair))
        self._first[:half] = self._first[0::2]
        self._last[:half] = self._last[1::2]
        self._used = half
        self._stride *= 2

    def series(self, key: int) -> Series:
        """Of one key: the points in which it was measured."""
        if key >= self._points.shape[1]:
            return Series(self._first[:0], self._last[:0], _nothing(0))
        packed = self._points[: self._used, key]
        there = packed[:, -1] > 0
        return Series(
            self._first[: self._used][there],
            self._last[: self._used][there],
            self._layout.whole(packed[there]),
        )


class Scalars:
    """Numbers of a step, such as the loss, over the run: kept as `History` keeps, by name."""

    def __init__(self, most: int = SCALARS_KEPT) -> None:
        self._history = History(most)
        self._names: dict[str, int] = {}

    @property
    def names(self) -> Sequence[str]:
        """In the order in which they were first given."""
        return list(self._names)

    def add(self, step: int, values: dict[str, float]) -> None:
        """One step's numbers."""
        keys = np.array([self._names.setdefault(name, len(self._names)) for name in values], dtype=np.int64)
        raw = np.zeros((len(keys), len(COLUMNS)), dtype=np.float32)
        given = np.array(list(values.values()), dtype=np.float64)
        finite = np.isfinite(given)
        raw[:, _MIN] = raw[:, _MAX] = raw[:, _MEAN] = np.where(finite, given, np.nan)
        raw[:, _RMS] = np.abs(raw[:, _MEAN])
        raw[:, _ZEROS] = given == 0
        raw[:, _NONFINITE] = ~finite
        raw[:, _COUNT] = 1
        self._history.add(step, keys, raw)

    def series(self, name: str) -> Series:
        """Of one name; empty where it was never given."""
        return self._history.series(self._names.get(name, 1 << 40))
