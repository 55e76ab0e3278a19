"""The row of a tensor in the CPU's memory, written where the caller keeps its rows."""

from __future__ import annotations

import ctypes

from torch import Tensor

from torchtap.monitor.stats import by_torch
from torchtap.monitor.stats.layout import flat
from torchtap.monitor.stats.rows import ROW

_Row = ctypes.c_double * ROW


def host_row(tensor: Tensor, row: int, zeros: bool) -> None:
    """Write the row of `tensor` (on the CPU, `refusal` None) to the eight float64 at the address `row`.

    `zeros` False leaves them NaN: by PyTorch's operators they cost as much as all the rest. See `rows` for the columns.

    >>> import numpy as np, torch
    >>> rows = np.empty((1, ROW))
    >>> host_row(torch.tensor([1.0, 0.0, float("nan")]), rows.ctypes.data, True)
    >>> rows[0, :7].tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    """
    values, times = flat(tensor)
    low, high, total, square, zero, bad = by_torch.measure(values, zeros)
    if times != 1:
        total, square, zero, bad = total * times, square * times, zero * times, bad * times
    _Row.from_address(row)[:] = [low, high, total, square, zero, bad, float(values.numel() * times), 0.0]
