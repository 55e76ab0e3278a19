"""The row of a CUDA tensor by two small Triton kernels: each element is read once, and nothing waits.

`_partials` goes over the values in as many programs as the GPU can run at once, each with a row of its own; `_combine`
makes one row of theirs. Sums are float32, of at most `TILES` numbers a lane, of the values less a shift (the mean of
the program's first tile), and are added in float64: as in kernel.c, and for the same reasons. Where squares overflow or
vanish in float32, the program goes over its values again in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a torch for CPUs brings none
    triton = None

AVAILABLE = triton is not None

# Eight values a thread: six accumulators for each fit into its registers.
TILE = 2048
WARPS = 8
TILES = 256
PROGRAMS = 1024
PARTS = 6


def _jit(function: Any) -> Any:
    # Triton makes a constant of an argument that is 1, and a constant has no `.to()`; and it would compile anew for it.
    sizes = ["count", "programs", "times"]
    return triton.jit(function, do_not_specialize=sizes) if AVAILABLE else function


@_jit
def _partials(values, parts, count, programs, real: tl.constexpr, tile: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, tile)
    inside = program * tile + lanes < count
    first = tl.load(values + program * tile + lanes, mask=inside, other=0.0).to(real)
    good = inside & (tl.abs(first) < float("inf"))
    # Divided before they are added: the sum of large values may overflow.
    share = tl.maximum(tl.sum(good.to(tl.int32)), 1).to(real)
    shift = tl.sum(tl.where(good, first / share, 0.0))
    low = tl.full((tile,), float("inf"), real)
    high = tl.full((tile,), float("-inf"), real)
    total = tl.zeros((tile,), real)
    square = tl.zeros((tile,), real)
    zero = tl.zeros((tile,), tl.int32)
    bad = tl.zeros((tile,), tl.int32)
    for start in range(program * tile, count, programs * tile):
        inside = start + lanes < count
        x = tl.load(values + start + lanes, mask=inside, other=1.0).to(real)
        finite = tl.abs(x) < float("inf")  # false for NaN
        good = inside & finite
        low = tl.minimum(low, tl.where(good, x, float("inf")))
        high = tl.maximum(high, tl.where(good, x, float("-inf")))
        zero += (x == 0).to(tl.int32)
        bad += (finite == 0).to(tl.int32)
        x = tl.where(good, x - shift, 0.0)
        total += x
        square += x * x
    lowest = tl.min(low).to(tl.float64)
    highest = tl.max(high).to(tl.float64)
    bads = tl.sum(bad.to(tl.int64))
    offset = shift.to(tl.float64)
    sums = tl.sum(total.to(tl.float64))
    squares = tl.sum(square.to(tl.float64))
    # How many values this program had, and how many of them count.
    tiles = (count - program * tile + programs * tile - 1) // (programs * tile)
    last = program * tile + (tiles - 1) * programs * tile
    here = (tiles * tile - tl.maximum(last + tile - count, 0) - bads).to(tl.float64)
    exact = (squares < float("inf")) & (tl.abs(sums) < float("inf"))
    lost = (squares < 1e-30 * here) & (lowest < highest)
    if (exact == 0) | lost:
        wide = tl.zeros((tile,), tl.float64)
        wider = tl.zeros((tile,), tl.float64)
        for start in range(program * tile, count, programs * tile):
            inside = start + lanes < count
            y = tl.load(values + start + lanes, mask=inside, other=0.0).to(tl.float64)
            y = tl.where(inside & (tl.abs(y) < float("inf")), y - offset, 0.0)
            wide += y
            wider += y * y
        sums = tl.sum(wide)
        squares = tl.sum(wider)
    tl.store(parts + program, lowest)
    tl.store(parts + programs + program, highest)
    tl.store(parts + 2 * programs + program, sums + offset * here)
    tl.store(parts + 3 * programs + program, squares + offset * (2 * sums + offset * here))
    tl.store(parts + 4 * programs + program, tl.sum(zero.to(tl.int64)).to(tl.float64))
    tl.store(parts + 5 * programs + program, bads.to(tl.float64))


@_jit
def _combine(parts, row, count, programs, times, zeros: tl.constexpr, width: tl.constexpr):
    lanes = tl.arange(0, width)
    low = tl.full((width,), float("inf"), tl.float64)
    high = tl.full((width,), float("-inf"), tl.float64)
    total = tl.zeros((width,), tl.float64)
    square = tl.zeros((width,), tl.float64)
    zero = tl.zeros((width,), tl.float64)
    bad = tl.zeros((width,), tl.float64)
    for start in range(0, programs, width):
        at = start + lanes
        inside = at < programs
        low = tl.minimum(low, tl.load(parts + at, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(parts + programs + at, mask=inside, other=float("-inf")))
        total += tl.load(parts + 2 * programs + at, mask=inside, other=0.0)
        square += tl.load(parts + 3 * programs + at, mask=inside, other=0.0)
        zero += tl.load(parts + 4 * programs + at, mask=inside, other=0.0)
        bad += tl.load(parts + 5 * programs + at, mask=inside, other=0.0)
    many = times.to(tl.float64)
    n = count.to(tl.float64)
    bads = tl.sum(bad)
    none = bads == n
    tl.store(row, tl.where(none, float("nan"), tl.min(low)))
    tl.store(row + 1, tl.where(none, float("nan"), tl.max(high)))
    tl.store(row + 2, tl.sum(total) * many)
    tl.store(row + 3, tl.sum(square) * many)
    if zeros:
        tl.store(row + 4, tl.sum(zero) * many)
    else:
        tl.store(row + 4, float("nan"))
    tl.store(row + 5, bads * many)
    tl.store(row + 6, n * many)
    tl.store(row + 7, 0.0)


def measure(values: Tensor, times: int, row: Tensor, zeros: bool) -> None:
    """Write the row of `values` (not empty, dense, one-dimensional, of a dtype that Triton loads) into `row`."""
    count = values.numel()
    tiles = triton.cdiv(count, TILE)
    programs = max(min(tiles, PROGRAMS), triton.cdiv(tiles, TILES))
    parts = values.new_empty(PARTS * programs, dtype=torch.float64)
    real = tl.float64 if values.dtype is torch.float64 else tl.float32
    _partials[(programs,)](values, parts, count, programs, real, TILE, num_warps=WARPS)
    _combine[(1,)](parts, row, count, programs, times, zeros, PROGRAMS)
