"""What is derived from rows."""

from __future__ import annotations

import numpy as np
import pytest

from torchtap.monitor import stats


def test_every_column_of_several_rows() -> None:
    nan = float("nan")
    rows = np.array(
        [
            [-3.0, 2.0, -1.0, 13.0, 1.0, 0.0, 3.0, 0.0],  # -3, 0, 2
            [4.0, 4.0, 8.0, 32.0, nan, 2.0, 4.0, 0.0],  # 4, 4, NaN, inf
            [nan, nan, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0],  # nothing finite
            [nan, nan, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # empty
        ]
    )
    derived = stats.derive(rows)
    assert tuple(derived) == stats.COLUMNS
    wanted = {
        "min": [-3, 4, nan, nan],
        "max": [2, 4, nan, nan],
        "mean": [-1 / 3, 4, nan, nan],
        "rms": [np.sqrt(13 / 3), 4, nan, nan],
        "std": [np.std([-3, 0, 2]), 0, nan, nan],
        "absmax": [3, 4, nan, nan],
        "zeros": [1 / 3, nan, 0, nan],
        "nonfinite": [0, 2, 2, 0],
    }
    for name, values in wanted.items():
        np.testing.assert_allclose(derived[name], values, rtol=1e-15, err_msg=name)


def test_what_is_derived_is_not_a_view_of_the_rows() -> None:
    rows = np.array([[1.0, 2.0, 3.0, 5.0, 0.0, 0.0, 2.0, 0.0]])
    derived = stats.derive(rows)
    rows[:] = 0
    assert derived["min"][0] == 1


@pytest.mark.parametrize("shape", [(8,), (3, 7), (1, 1, 8)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"rows must have the shape \(n, 8\), not "):
        stats.derive(np.zeros(shape))
