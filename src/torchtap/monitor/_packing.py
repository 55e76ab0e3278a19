"""One rank's view as bytes, for the others: JSON and numpy arrays. Never pickle: to read it runs nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from torchtap.monitor._first import FirstNonfinite, Measured
from torchtap.monitor._keys import Key
from torchtap.monitor.history import COLUMNS, Series
from torchtap.monitor.ranks import ParameterOfRank, Rank


def packed(rank: Rank) -> bytes:
    """Some 3 KB for each tensor that was measured."""
    parameters = rank.parameters.items()
    series = [
        *rank.series.values(),
        *rank.scalars.values(),
        *(_as_series(each) for _, each in parameters),
    ]
    head = {
        "rank": rank.rank,
        "steps": rank.steps,
        "skipped": rank.skipped,
        "layers": rank.layers,
        "evaluating": rank.evaluating,
        "series": list(rank.series),
        "scalars": list(rank.scalars),
        "parameters": [
            [name, each.shape, each.sharded, each.checksum, each.rms] for name, each in parameters
        ],
        "lengths": [len(each) for each in series],
        "first": _first(rank.first),
        "place": rank.place,
    }
    into = io.BytesIO()
    nothing = Series(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, len(COLUMNS)), np.float32))
    first_step, last_step, values = (np.concatenate(each) for each in zip(*series, nothing, strict=True))
    np.savez(
        into,
        head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
        first_step=first_step.astype(np.int64),
        last_step=last_step.astype(np.int64),
        values=values.astype(np.float32),
    )
    return into.getvalue()


def unpacked(data: bytes) -> Rank:
    """What `packed` was given."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        head: dict[str, Any] = json.loads(arrays["head"].tobytes())
        parts = _parts(arrays["first_step"], arrays["last_step"], arrays["values"], head["lengths"])
        return Rank(
            rank=head["rank"],
            steps=head["steps"],
            skipped=head["skipped"],
            layers=tuple((name, kind) for name, kind in head["layers"]),
            series={
                (layer, direction, call, path): next(parts) for layer, direction, call, path in head["series"]
            },
            scalars={name: next(parts) for name in head["scalars"]},
            parameters={
                name: parameter_of(next(parts), tuple(shape), sharded, checksum, rms)
                for name, shape, sharded, checksum, rms in head["parameters"]
            },
            evaluating=tuple(head["evaluating"]),
            first=_first_from(head["first"]),
            place=head["place"],
        )


def parameter_of(
    series: Series, shape: tuple[int, ...], sharded: bool, checksum: int | None, rms: float
) -> ParameterOfRank:
    """From a parameter's points, see `_parameters.COLUMNS`."""
    value, gradient, update = series.values[:, :3].T
    steps = series.first_step, series.last_step
    return ParameterOfRank(shape, sharded, checksum, rms, *steps, value, gradient, update)


def _as_series(parameter: ParameterOfRank) -> Series:
    values = np.full((len(parameter.value), len(COLUMNS)), np.nan, dtype=np.float32)
    values[:, 0], values[:, 1], values[:, 2] = parameter.value, parameter.gradient, parameter.update
    return Series(parameter.first_step, parameter.last_step, values)


def _parts(first: np.ndarray, last: np.ndarray, values: np.ndarray, lengths: list[int]) -> Iterator[Series]:
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        yield Series(first[part], last[part], values[part])
        start += length


def _first(first: FirstNonfinite | None) -> list[Any] | None:
    if first is None:
        return None
    measured = [[each.layer, each.key, each.values] for each in (first.where, *first.before)]
    return [first.step, first.nonfinite, first.count, measured]


def _first_from(given: list[Any] | None) -> FirstNonfinite | None:
    if given is None:
        return None
    step, nonfinite, count, measured = given
    where, *before = (Measured(layer, Key(*key), values) for layer, key, values in measured)
    return FirstNonfinite(step, where, nonfinite, count, tuple(before))
