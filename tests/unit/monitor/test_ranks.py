"""Ranks as plain data: what is a fault over them and what is not, how they are sent, and checksums."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from torchtap.monitor._checksums import checksums
from torchtap.monitor._first import FirstNonfinite, Measured
from torchtap.monitor._keys import Direction, Key
from torchtap.monitor._packing import packed, unpacked
from torchtap.monitor.history import Series
from torchtap.monitor.ranks import ParameterOfRank, Rank, Ranks

LAYERS = (("a", "Linear"), ("b", "Linear"))


def points(*rms: float, every: int = 1) -> Series:
    values = np.zeros((len(rms), 8), dtype=np.float32)
    values[:, 3], values[:, 7] = rms, 16
    first = np.arange(len(rms)) * every
    return Series(first, first + every - 1, values)


def parameter(*gradients: float, every: int = 1, **given: Any) -> ParameterOfRank:
    array = np.array(gradients, dtype=np.float32)
    first = np.arange(len(array)) * every
    made = ParameterOfRank((2,), False, 7, 0.5, first, first + every - 1, array + 1, array, array / 10)
    return replace(made, **given)


def rank(number: int, **given: Any) -> Rank:
    healthy = Rank(
        rank=number,
        steps=6,
        skipped=0,
        layers=LAYERS,
        series={("a", "gradient", 0, ""): points(1, 2, 1, 2, 1, 2)},
        scalars={"loss": points(3, 2, 1)},
        parameters={"a.weight": parameter(1, 2)},
        evaluating=(),
        first=None,
        place=0,
    )
    return replace(healthy, **given)


def ranks(*given: dict[str, Any]) -> Ranks:
    return Ranks(tuple(rank(number, **each) for number, each in enumerate(given)))


def first(step: int, layer: int = 0, direction: Direction = "output") -> FirstNonfinite:
    where = Measured(LAYERS[layer][0], Key(layer, 0, "", direction), {"min": float("nan"), "nonfinite": 1.0})
    return FirstNonfinite(step, where, 1, 16, (replace(where, values={"min": 0.0, "max": 1.0, "rms": 0.5}),))


def ids(*given: dict[str, Any]) -> list[str]:
    return [each.id for each in ranks(*given).diagnose()]


FAR = {"series": {("a", "gradient", 0, ""): points(*[50.0] * 6)}}
BATCHES = {"series": {("a", "gradient", 0, ""): points(3, 0.5, 4, 1, 0.2, 3)}}
APART = {"parameters": {"a.weight": parameter(1, 2, checksum=8)}}
OWN = {"parameters": {"a.weight": parameter(1, 2.01, checksum=8)}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([{}, {}, {}], []),
        ([{}], []),
        ([], []),
        ([{}, BATCHES, {}], []),
        ([{}, FAR, {}], ["ranks.gradient_far_off"]),
        ([{}, FAR], []),  # of two, neither is the odd one
        ([{}, {"series": {("a", "gradient", 0, ""): points(50, 1, 1, 1, 1, 1)}}, {}], []),  # one batch
        ([{}, {"series": {}}, {}], []),
        ([{}, APART, {}], ["ranks.out_of_sync"]),
        ([{}, OWN, {}], ["ranks.gradients_differ"]),
        ([{}, {"parameters": {"a.weight": parameter(1, 2, sharded=True, checksum=8)}}], []),
        ([{}, {"parameters": {"a.weight": parameter(1, 2, checksum=None)}}], []),
        ([{}, {"parameters": {}}], []),  # other layers on each rank: pipeline stages
        # Coarser points: 0 to 1 is not 0, nor 2 to 3 the same as 2.
        ([{}, {"steps": 4, "parameters": {"a.weight": parameter(1.5, 9, every=2)}}], ["ranks.steps_differ"]),
        ([{}, {"first": first(3)}, APART], ["ranks.nonfinite"]),  # what follows is not told
    ],
)
def test_what_is_a_fault_and_what_is_not(given: list[dict[str, Any]], expected: list[str]) -> None:
    assert ids(*given) == expected


@pytest.mark.parametrize(
    ("given", "made", "cause"),
    [
        ([{"first": first(4)}, {"first": first(3, 1)}], [1], "the batch of rank 1 in step 3: the weights"),
        # In one step: with SyncBatchNorm the others have it within the same forward, at a later layer.
        (
            [{"first": first(3, 1), "place": 5}, {"first": first(3), "place": 4}],
            [1],
            "the batch of rank 1 in step 3: the weights",
        ),
        ([{"first": first(3)}, {"first": first(3)}, {}], [0, 1], "the batch of ranks 0, 1 in step 3: the"),
        ([{"first": first(3)}, {"first": first(3)}], [0, 1], "all ranks at once"),
        ([{"first": first(0, 0, "input")}, {}], [0], "the batch of rank 0 in step 0 holds NaN"),
    ],
)
def test_which_rank_had_the_first_nan(given: list[dict[str, Any]], made: list[int], cause: str) -> None:
    assert [each.rank for each in ranks(*given).first_nonfinite()] == made
    assert ranks(*given).diagnose()[0].cause.startswith(cause)


def test_what_is_sent_comes_back_the_same() -> None:
    """Names of any letters, NaN, and ranks that have nothing at all."""
    full = rank(
        3,
        first=first(2, 1, "gradient"),
        place=17,
        evaluating=("b",),
        series={("schlüssel\n", "output", 7, "hidden.1"): points(1, float("nan")), **rank(3).series},
    )
    for one in (full, rank(0, layers=(), series={}, scalars={}, parameters={})):
        came = unpacked(packed(one))
        assert repr(came) == repr(one)
        for key, series in one.series.items():
            assert all(
                np.array_equal(a, b, equal_nan=True) for a, b in zip(came.series[key], series, strict=True)
            )


def test_what_is_sent_is_small_and_runs_nothing() -> None:
    """3 KB for a tensor with a full history; pickled data is refused."""
    series = {(f"layer.{number}", "output", 0, ""): points(*[1.0] * 48) for number in range(100)}
    assert len(packed(rank(0, series=series))) < 100 * 3000
    with pytest.raises(ValueError, match="pickled"):
        unpacked(pickle.dumps(rank(0)))


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_is_of_the_bits_and_where_they_stand(dtype: torch.dtype) -> None:
    """One changed last bit, two values exchanged, -0 for 0, a NaN: each gives another; strides do not matter."""
    x = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    real = torch.view_as_real if dtype.is_complex else lambda each: each
    nan, zero, minus, swapped, last = (x.clone() for _ in range(5))
    real(nan)[0, 0, 0], real(zero)[0, 0, 0], real(minus)[0, 0, 0] = float("nan"), 0.0, -0.0
    swapped[0, 0, 0], swapped[0, 0, 1] = x[0, 0, 1], x[0, 0, 0]
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[real(last).element_size()]
    real(last).view(whole)[..., -1] ^= 1
    different = {"x": x, "nan": nan, "zero": zero, "minus": minus, "swapped": swapped, "last": last}
    assert len(set(checksums(different).values())) == len(different)
    turned = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert checksums({"x": turned}) == checksums({"x": x})


def test_a_checksum_of_a_large_tensor_is_that_of_its_parts_placed() -> None:
    """More than one piece: still every value counts with its place."""
    x = torch.zeros((1 << 20) + 5)
    one, other = x.clone(), x.clone()
    one[3], other[(1 << 20) + 3] = 1, 1
    assert len(set(checksums({"x": x, "one": one, "other": other}).values())) == 3
    assert checksums({}) == {}
