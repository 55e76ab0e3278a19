"""Every way of measuring against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from tests.unit.monitor.stats.conftest import Way
from tests.unit.monitor.stats.reference import (
    DTYPES,
    agree,
    far_mean,
    float_cases,
    layout_cases,
    reference,
    std_of,
)
from torchtap.monitor import stats

FLOATS = float_cases()
LAYOUTS = layout_cases()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", FLOATS)
def test_every_value_in_every_dtype(way: Way, case: str, dtype: torch.dtype) -> None:
    tensor = FLOATS[case].to(dtype)
    agree(way(tensor), tensor)


@pytest.mark.parametrize("case", LAYOUTS)
def test_every_layout(way: Way, case: str) -> None:
    agree(way(LAYOUTS[case]), LAYOUTS[case])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_std_is_right_where_the_mean_is_a_thousand_times_larger(way: Way, dtype: torch.dtype) -> None:
    tensor = far_mean(dtype)
    std = stats.derive(way(tensor)[None])["std"][0]
    assert std == pytest.approx(std_of(tensor), rel=1e-3)


def test_zeros_are_nan_where_not_asked_for(way: Way) -> None:
    for tensor in (
        torch.zeros(9),
        torch.tensor([0.0, float("nan")]),
        torch.empty(0),
        torch.zeros(2).expand(3, 2),
    ):
        row = way(tensor, zeros=False)
        assert np.isnan(row[4])
        np.testing.assert_array_equal(row[[0, 1, 5, 6]], reference(tensor)[[0, 1, 5, 6]])


def test_squares_beyond_float64_are_infinite_and_hide_nothing_else(way: Way) -> None:
    tensor = torch.tensor([1e200, -3e200], dtype=torch.float64)
    row = way(tensor)
    assert row[:4].tolist() == [-3e200, 1e200, -2e200, float("inf")]
    derived = stats.derive(row[None])
    assert derived["rms"][0] == derived["std"][0] == float("inf")
    assert derived["nonfinite"][0] == 0


_KINDS = {torch.float32: "<f4", torch.float64: "<f8", torch.float16: "<f2", torch.bfloat16: "<f4"}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    # Squares that float64 cannot hold are tested above.
    floats = {
        torch.float64: st.floats(-1e150, 1e150),
        torch.float16: st.floats(width=16),
    }.get(dtype, st.floats(width=32))
    elements = st.one_of(
        floats,
        st.sampled_from((0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"))),
    )
    shape = draw(st.one_of(st.tuples(st.integers(0, 300)), st.tuples(st.integers(0, 9), st.integers(0, 9))))
    values = torch.from_numpy(draw(arrays(_KINDS[dtype], shape, elements=elements))).to(dtype)
    return values.t() if values.ndim == 2 and draw(st.booleans()) else values


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors())
def test_any_values(way: Way, tensor: Tensor) -> None:
    agree(way(tensor), tensor)
