"""The row of a tensor by its own device: nothing is read by the host, and nothing waits.

By PyTorch's operators each statistic is a pass of its own, with the squares and masks as temporaries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.monitor.stats.layout import flat
from torchtap.monitor.stats.rows import COUNT, MAX, MIN, NONFINITE, SUM, SUMSQ, ZEROS


def device_row(tensor: Tensor, row: Tensor, zeros: bool) -> None:
    """Write the row of `tensor` (`refusal` None) into `row`: eight float64 on the same device, dense.

    >>> row = torch.empty(8, dtype=torch.float64)
    >>> device_row(torch.tensor([1.0, 0.0, float("nan")]), row, True)
    >>> row.tolist()[:7]
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    """
    with torch.no_grad():
        values, times = flat(tensor)
        _by_operators(values, times, row, zeros)


def _by_operators(values: Tensor, times: int, row: Tensor, zeros: bool) -> None:
    count = values.numel()
    row.zero_()
    row[COUNT].fill_(count * times)
    if not zeros:
        row[ZEROS].fill_(torch.nan)
    if not count:
        row[:2].fill_(torch.nan)
        return
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    finite = torch.isfinite(values)
    some = finite.any()
    low = torch.where(finite, values, torch.inf).amin()
    high = torch.where(finite, values, -torch.inf).amax()
    row[MIN].copy_(torch.where(some, low, torch.nan))
    row[MAX].copy_(torch.where(some, high, torch.nan))
    wide = torch.where(finite, values, 0.0).double()
    row[SUM].copy_(wide.sum() * times)
    row[SUMSQ].copy_(wide.square().sum() * times)
    row[NONFINITE].copy_((~finite).sum() * times)
    if zeros:
        row[ZEROS].copy_((values == 0).sum() * times)
