"""What a watch remembers of a run as arrays: what pictures, tables and data frames are made of.

A line is one tensor that a layer gives, all its calls taken together; lines stand in the order in which the layers were
first measured, so from the input to the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchtap._findings import printable
from torchtap.hooks.names import WRAPPED
from torchtap.monitor._keys import Direction, Key
from torchtap.monitor._parameters import COLUMNS as PARAMETER_COLUMNS
from torchtap.monitor._units import RECTIFIERS
from torchtap.monitor.history import COLUMNS, Series, pooled

if TYPE_CHECKING:
    from torchtap.monitor._watch import Watch

_NONFINITE, _COUNT = COLUMNS.index("nonfinite"), COLUMNS.index("count")
MODEL = "(model)"
_MANY = 0.5
"""Share of a layer's units that are dead, from which it is told."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one line of a grid is of."""

    label: str
    """A layer's name, with the way to the tensor where it gives several: "rnn[1.0]". Control characters escaped."""
    layer: int
    """The place in `Watch.layers`; -1: the model, or no layer that is watched."""
    path: str
    kind: str = ""
    """The layer's class."""

    @property
    def title(self) -> str:
        """The label, with the class where the name is a mere number: "encoder.0 Linear"."""
        numbered = self.label.rpartition(".")[2].partition("[")[0].isdigit()
        return f"{self.label} {self.kind}" if numbered and self.kind else self.label


@dataclass(frozen=True, slots=True)
class Grid:
    """Lines over the points of a run: n lines, m points."""

    lines: tuple[Line, ...]
    first_step: np.ndarray
    """[m] int64: a point is of the steps `first_step` to `last_step`."""
    last_step: np.ndarray
    values: np.ndarray
    """[n, m, 8] float32: see `history.COLUMNS`, of parameters `_parameters.COLUMNS`; a count of 0: not measured."""

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column, [n, m]: of tensors "absmax" too, of parameters "ratio", of update and value."""
        if name == "absmax":
            return np.asarray(np.fmax(np.abs(self["min"]), np.abs(self["max"])))
        if name == "ratio":
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = self["update"] / self["sampled"]
            return np.where(np.isfinite(ratio), ratio, np.nan)
        columns = PARAMETER_COLUMNS if name in PARAMETER_COLUMNS else COLUMNS
        return np.asarray(self.values[..., columns.index(name)])

    @property
    def bad(self) -> np.ndarray:
        """[n, m] bool: where there was NaN or Inf."""
        return np.asarray(self.values[..., _NONFINITE] > 0)

    @property
    def edges(self) -> np.ndarray:
        """[m + 1]: where the points begin and end as cells of a picture; each lasts until the next one begins."""
        if not len(self.first_step):
            return np.zeros(1, dtype=np.int64)
        between = self.first_step[1:] - self.last_step[:-1]
        end = self.first_step[-1] + between[-1] if len(between) else 0
        edges: np.ndarray = np.append(self.first_step, max(end, self.last_step[-1] + 1))
        return edges

    @property
    def middles(self) -> np.ndarray:
        """[m]: where the points stand on an axis of steps."""
        return np.asarray((self.first_step + self.last_step) / 2)

    def only(self, chosen: np.ndarray) -> Grid:
        """The lines at these places, or where a mask is True."""
        places = np.arange(len(self))[chosen]
        lines = tuple(self.lines[place] for place in places.tolist())
        return Grid(lines, self.first_step, self.last_step, self.values[places])


def series_of(watch: Watch) -> list[tuple[Key, Series]]:
    """All tensors that were ever measured, in the order in which they first were."""
    watch._flush()
    all_series = [(key, watch._history.series(number)) for number, key in enumerate(watch._state.keys.keys)]
    return [(key, series) for key, series in all_series if len(series)]


def tensors_of(watch: Watch, direction: Direction) -> Grid:
    """Inputs, outputs or gradients. The steps are those of all three, whichever is asked for."""
    all_series = series_of(watch)
    groups: dict[tuple[int, str], list[Series]] = {}
    for key, series in all_series:
        of_layer = (
            key.layer >= 0 or direction == "input"
        )  # the model's own output is mostly that of a layer again
        if key.direction == direction and of_layer:
            groups.setdefault((key.layer, key.path), []).append(series)
    several = Counter(layer for layer, _ in groups)
    kinds = [printable(layer.kind) for layer in watch.layers]
    lines = tuple(
        Line(
            _label(watch, layer, path if several[layer] > 1 else ""),
            layer,
            path,
            kinds[layer] if layer >= 0 else "",
        )
        for layer, path in groups
    )
    return _grid(lines, list(groups.values()), [series for _, series in all_series], len(COLUMNS))


def dead_of(watch: Watch) -> Grid:
    """Layers whose units were followed: the share of those that gave nothing and got nothing, in the column "zeros".

    Rectifying layers; where they are functions, the layers before them. A point is a closer look. No lines where nobody
    looked closer.
    """
    looks = watch.looks()
    shares = {number: look.number("dead") for number, look in sorted(looks.items()) if look.number("dead")}
    rectifying = {number for number in shares if issubclass(watch.layers[number].known().type, RECTIFIERS)}
    shares = {number: some for number, some in shares.items() if not rectifying or number in rectifying}
    steps = sorted({step for number in shares for step in looks[number].steps["dead"]})
    first = np.array(steps, dtype=np.int64)
    values = np.full((len(shares), len(steps), len(COLUMNS)), np.nan, dtype=np.float32)
    values[..., _NONFINITE:] = 0
    for line, (number, some) in enumerate(shares.items()):
        at = np.searchsorted(first, looks[number].steps["dead"])
        values[line, at, COLUMNS.index("zeros")] = some
    lines = tuple(
        Line(_label(watch, each, ""), each, "", printable(watch.layers[each].kind)) for each in shares
    )
    return Grid(lines, first, first, values)


def dead_in_the_end(watch: Watch) -> dict[str, float]:
    """Layers of which half of the units and more were dead in the last look, each with its share."""
    grid = dead_of(watch)
    last = grid["zeros"][:, -1] if len(grid) else ()
    return {line.label: float(each) for line, each in zip(grid.lines, last, strict=True) if each >= _MANY}


def _label(watch: Watch, layer: int, path: str) -> str:
    if layer < 0:
        return f"(input {path})" if path else "(input)"
    return printable(watch.layers[layer].name or MODEL) + (f"[{path}]" if path else "")


def _grid(
    lines: tuple[Line, ...], groups: list[list[Series]], all_series: list[Series], columns: int
) -> Grid:
    ends: dict[int, int] = {}
    for series in all_series:
        ends.update(zip(series.first_step.tolist(), series.last_step.tolist(), strict=True))
    first = np.array(sorted(ends), dtype=np.int64)
    last = np.array([ends[step] for step in sorted(ends)], dtype=np.int64)
    values = np.full((len(lines), len(first), columns), np.nan, dtype=np.float32)
    values[..., _NONFINITE:] = 0
    for line, group in enumerate(groups):
        for number, series in enumerate(group):
            at = np.searchsorted(first, series.first_step)
            values[line, at] = pooled(values[line, at], series.values) if number else series.values
    return Grid(lines, first, last, values)


def parameters_of(watch: Watch) -> Grid:
    """Parameters: root mean squares of their values, gradients and updates. Lines in the order of the model."""
    watch._flush()
    layers = {name: number for number, layer in enumerate(watch.layers) for name in layer.names}
    lines, groups = [], []
    for number, raw in enumerate(watch._parameters.names):
        name = _clean(raw, layers)
        lines.append(Line(printable(name), _nearest(name, layers), ""))
        groups.append([watch._parameter_history.series(number)])
    return _grid(tuple(lines), groups, [series for (series,) in groups], len(COLUMNS))


def _clean(name: str, layers: Iterable[str]) -> str:
    """A parameter's name without wrappers. The model, which could tell them by their class, may be gone."""
    parts = [part for part in name.split(".") if part not in WRAPPED]
    if parts[0] == "module" and not any(layer.split(".")[0] == "module" for layer in layers):
        parts = parts[1:]
    return ".".join(parts)


def _nearest(parameter: str, layers: dict[str, int]) -> int:
    """The watched layer that holds a parameter, or a module within which it is held."""
    module = parameter
    while module:
        module = module.rpartition(".")[0]
        if module in layers:
            return layers[module]
    return -1


def stacked(one: Grid, other: Grid) -> Grid:
    """Two grids of tensors of one watch as one, the lines of the first on top."""
    values = np.concatenate([one.values, other.values])
    return Grid(one.lines + other.lines, one.first_step, one.last_step, values)


def scalar_names(watch: Watch) -> list[str]:
    """What `log` was given, by name."""
    watch._flush()
    return list(watch._scalars.names)
