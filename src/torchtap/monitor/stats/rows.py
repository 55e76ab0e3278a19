"""The row of one tensor as it is measured, and the statistics that follow from it.

A row is eight float64: min, max, sum, sum of squares, zeros, nonfinite, count, and one that is not used. The first
four are over the finite values only, so one NaN hides nothing else. min and max are NaN where nothing is finite; zeros
is NaN where it was not asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROW = 8
MIN, MAX, SUM, SUMSQ, ZEROS, NONFINITE, COUNT = range(7)

COLUMNS = ("min", "max", "mean", "rms", "std", "absmax", "zeros", "nonfinite")


def derive(rows: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The statistics of `rows` (n, 8) by name, `COLUMNS` in order, each (n,) float64.

    mean, rms, std (over n, not n - 1) and absmax are those of the finite values and NaN where there are none; zeros is
    a fraction of all values, NaN where not measured; nonfinite is how many. A sum of squares beyond float64 (float64
    tensors of 1e154 and more) gives an infinite rms and std. Raises ValueError for another shape.

    >>> rows = np.array([[-1.0, 3.0, 4.0, 14.0, 1.0, 0.0, 4.0, 0.0]])  # of -1, 0, 3 and 2
    >>> {name: float(values[0]) for name, values in derive(rows).items() if name in ("mean", "zeros", "absmax")}
    {'mean': 1.0, 'absmax': 3.0, 'zeros': 0.25}
    """
    if rows.ndim != 2 or rows.shape[1] != ROW:
        raise ValueError(f"rows must have the shape (n, {ROW}), not {rows.shape}")
    low, high, total, squares, zeros, nonfinite, count = rows.T[:7]
    with np.errstate(all="ignore"):
        finite = count - nonfinite
        mean = np.where(finite > 0, total / finite, np.nan)
        square = np.where(finite > 0, squares / finite, np.nan)
        # Rounding may leave a trace of a variance, or a negative one, where all values are equal.
        variance = np.where(low == high, 0.0, np.maximum(square - mean * mean, 0.0))
        std = np.where(np.isposinf(square), np.inf, np.sqrt(variance))
        return {
            "min": low.copy(),
            "max": high.copy(),
            "mean": mean,
            "rms": np.sqrt(square),
            "std": np.where(finite > 0, std, np.nan),
            "absmax": np.maximum(np.abs(low), np.abs(high)),
            "zeros": zeros / count,
            "nonfinite": nonfinite.copy(),
        }
