"""A watched run as columns, and as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.monitor._grid import parameters_of, scalar_names, series_of
from torchtap.monitor._parameters import COLUMNS as PARAMETER_COLUMNS
from torchtap.monitor.history import COLUMNS, Series

if TYPE_CHECKING:
    import pandas

    from torchtap.monitor._watch import Watch

Columns = dict[str, "np.ndarray"]


def to_pandas(watch: Watch, of: str = "tensors") -> pandas.DataFrame:
    """See `Watch.to_pandas`."""
    made = columns_of(watch, of)
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_pandas() needs pandas: pip install pandas. Without it, w.series(layer) gives NumPy arrays"
        ) from error
    return pandas.DataFrame(made)


def columns_of(watch: Watch, of: str = "tensors") -> Columns:
    """The columns of that frame, all of one length. ValueError where there is no such frame."""
    if of not in _KINDS:
        raise ValueError(f"to_pandas({of!r}): one of {', '.join(map(repr, _KINDS))}")
    return _KINDS[of](watch)


def _tensors(watch: Watch) -> Columns:
    parts: list[tuple[dict[str, Any], Series]] = []
    for key, series in series_of(watch):
        layer = watch.layers[key.layer] if key.layer >= 0 else None
        told = {
            "layer": layer.name if layer else "",
            "class": layer.kind if layer else "",
            "direction": key.direction,
            "call": key.call,
            "path": key.path,
        }
        parts.append((told, series))
    made = _together(parts, ("layer", "class", "direction", "call", "path"))
    values = np.concatenate([series.values for _, series in parts] or [np.empty((0, len(COLUMNS)))])
    made.update(zip(COLUMNS, values.T, strict=True))
    made["absmax"] = np.fmax(np.abs(made["min"]), np.abs(made["max"]))
    for name in ("nonfinite", "count"):
        made[name] = made[name].astype(np.int64)
    return made


def _parameters(watch: Watch) -> Columns:
    grid = parameters_of(watch)
    there = grid["count"] > 0
    line, point = np.nonzero(there)
    names = np.array([each.label for each in grid.lines], dtype=object)
    made = {
        "parameter": names[line],
        "first_step": grid.first_step[point],
        "last_step": grid.last_step[point],
    }
    made.update({name: grid[name][there] for name in (*PARAMETER_COLUMNS, "ratio")})
    return made


def _scalars(watch: Watch) -> Columns:
    parts: list[tuple[dict[str, Any], Series]] = [
        ({"name": name}, watch.scalars(name)) for name in scalar_names(watch)
    ]
    made = _together(parts, ("name",))
    for column in ("mean", "min", "max", "nonfinite"):
        values = [series[column] for _, series in parts]
        made[column] = np.concatenate(values) if values else np.empty(0)
    return made


def _together(parts: list[tuple[dict[str, Any], Series]], names: tuple[str, ...]) -> Columns:
    """What each part is of, repeated for its points, then the points' steps."""
    made: Columns = {}
    lengths = [len(series) for _, series in parts]
    for name in names:
        values = np.array([told[name] for told, _ in parts], dtype=int if name == "call" else object)
        made[name] = np.repeat(values, lengths)
    for name in ("first_step", "last_step"):
        steps = [getattr(series, name) for _, series in parts]
        made[name] = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    return made


_KINDS = {"tensors": _tensors, "parameters": _parameters, "scalars": _scalars}
