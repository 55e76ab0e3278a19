"""The row of a tensor in the CPU's memory, written where the caller keeps its rows."""

from __future__ import annotations

import ctypes

from torch import Tensor

from torchtap.monitor.stats import by_torch, kernel
from torchtap.monitor.stats.layout import flat
from torchtap.monitor.stats.refusing import PLAIN
from torchtap.monitor.stats.rows import ROW

SHORT = 1 << 15
"""Elements up to which the kernel takes less than some ten microseconds, and other threads may wait for it."""

_Row = ctypes.c_double * ROW


def host_row(tensor: Tensor, row: int, zeros: bool) -> None:
    """Write the row of `tensor` (on the CPU, `refusal` None) to the eight float64 at the address `row`.

    By the compiled kernel where there is one, else by PyTorch's operators. `zeros` False leaves them NaN: by operators
    they cost as much as all the rest. See `rows` for the columns. A tensor whose memory has been freed (FSDP does that)
    has the row of an empty one. Raises ValueError for a tensor that is elsewhere.

    >>> import numpy as np, torch
    >>> rows = np.empty((1, ROW))
    >>> host_row(torch.tensor([1.0, 0.0, float("nan")]), rows.ctypes.data, True)
    >>> rows[0, :7].tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    """
    compiled = kernel.found().kernel
    if compiled is None:
        row_by_torch(tensor, row, zeros)
        return
    # The usual tensor needs no view: this is all the host's time of a hook's call.
    number = kernel.TYPES.get(tensor.dtype) if type(tensor) in PLAIN else None
    times = 1
    if number is None or not tensor.is_contiguous() or tensor.is_neg():
        tensor, times = flat(tensor)
        if (number := kernel.TYPES.get(tensor.dtype)) is None:
            tensor = tensor.float()  # float8
            number = kernel.TYPES[tensor.dtype]
    _must_be_here(tensor)
    count, address = tensor.numel(), tensor.data_ptr()
    measure = compiled.holding if count <= SHORT else compiled.releasing
    measure(address, count if address else 0, number, times, zeros, row)


def row_by_torch(tensor: Tensor, row: int, zeros: bool) -> None:
    """`host_row` by PyTorch's operators, kernel or not."""
    values, times = flat(tensor)
    _must_be_here(values)
    if not values.data_ptr():  # of an empty one, or freed
        values = values.new_empty(0)
    low, high, total, square, zero, bad = by_torch.measure(values, zeros)
    count = float(values.numel() * times)
    if times != 1:
        total, square, zero, bad = total * times, square * times, zero * times, bad * times
    _Row.from_address(row)[:] = [low, high, total, square, zero, bad, count, 0.0]


def _must_be_here(tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"host_row() reads the CPU's memory, not that of {tensor.device}: use device_row()")
