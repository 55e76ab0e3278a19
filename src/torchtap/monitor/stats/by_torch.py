"""The row of a CPU tensor by PyTorch's own operators: where there is no compiled kernel, and for rare dtypes.

The cheap reductions are `aminmax`, `sum` and `dot`: each about one pass, while `var`, `isfinite` or the maximum norm
cost tens of passes on a CPU. A NaN, an infinity or an overflow shows in the sums, so only then the values are looked at
one by one. All in pieces that stay in the cache: the second and third reduction of a piece cost no memory
traffic, sums of pieces are added in float64, and half types are widened without a large temporary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PIECE = 1 << 17
_WIDE = frozenset((torch.float32, torch.float64))
# dot in float32 is good to some 1e-7 of the sum of squares. What is left of that for the variance, where the
# mean is far from zero, is divided by (std / mean)²: above this ratio the sums are made in float64 instead.
_FAR_MEAN = 100.0
# Squares below this are denormal in float32, or lost.
_TINY = 1e-30


def measure(values: Tensor, zeros: bool) -> tuple[float, float, float, float, float, float]:
    """(min, max, sum, sum of squares, zeros, nonfinite) of a dense one-dimensional CPU tensor without autograd."""
    if values.numel() <= PIECE:
        return _piece(values, zeros)
    pieces = [_piece(piece, zeros) for piece in torch.split(values, PIECE)]
    lows, highs, totals, squares, zero, bad = zip(*pieces, strict=True)
    finite = [low for low in lows if low == low]
    low, high = (min(finite), max(high for high in highs if high == high)) if finite else (math.nan, math.nan)
    return low, high, math.fsum(totals), math.fsum(squares), sum(zero), sum(bad)


def _piece(values: Tensor, zeros: bool) -> tuple[float, float, float, float, float, float]:
    if values.dtype not in _WIDE:
        values = values.float()
    count = values.numel()
    if not count:
        return math.nan, math.nan, 0.0, 0.0, 0.0 if zeros else math.nan, 0.0
    zero = float(count - int(torch.count_nonzero(values))) if zeros else math.nan
    lowest, highest = torch.aminmax(values)
    low, high = lowest.item(), highest.item()
    if low == high and math.isfinite(low):
        return low, high, low * count, low * low * count, zero, 0.0
    total = values.sum().item()
    square = torch.dot(values, values).item()
    mean = total / count
    variance = square / count - mean * mean
    if math.isfinite(total + square) and _TINY * count < square and mean * mean < _FAR_MEAN * variance:
        return low, high, total, square, zero, 0.0
    return *_exactly(values), zero, float(count - int(torch.isfinite(values).sum()))


def _exactly(values: Tensor) -> tuple[float, float, float, float]:
    """min, max, sum and sum of squares of the finite values, in float64."""
    values = values.double()
    values = values[torch.isfinite(values)]
    if not values.numel():
        return math.nan, math.nan, 0.0, 0.0
    lowest, highest = torch.aminmax(values)
    return lowest.item(), highest.item(), values.sum().item(), torch.dot(values, values).item()
