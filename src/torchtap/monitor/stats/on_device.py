"""The row of a tensor by its own device: nothing is read by the host, and nothing waits.

On CUDA by Triton, each element read once. By PyTorch's operators, where there is no Triton, each statistic is a pass of
its own, with masks as temporaries.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from torch import Tensor

from torchtap.monitor.stats import by_triton
from torchtap.monitor.stats.layout import flat
from torchtap.monitor.stats.rows import COUNT, MAX, MIN, NONFINITE, SUM, SUMSQ, ZEROS

_LOADED_BY_TRITON = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
# Why Triton is not used though it is there; empty while it is.
_trouble = ""


class TritonWarning(RuntimeWarning):
    """Triton is there and does not work: PyTorch's operators make the statistics, in several passes."""


def device_row(tensor: Tensor, row: Tensor, zeros: bool) -> None:
    """Write the row of `tensor` (`refusal` None) into `row`: eight float64 on the same device, dense.

    Waits for nothing and can be captured in a CUDA graph, but for the first call for a dtype, where Triton compiles.
    Raises ValueError for a row on another device.

    >>> row = torch.empty(8, dtype=torch.float64)
    >>> device_row(torch.tensor([1.0, 0.0, float("nan")]), row, True)
    >>> row.tolist()[:7]
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    """
    values, times = flat(tensor)
    if row.device != values.device:
        raise ValueError(f"the row is on {row.device}, the tensor on {values.device}: one device is needed")
    if values.is_cuda and uses_triton():
        if values.dtype not in _LOADED_BY_TRITON:
            values = values.float()
        if values.numel() and _by_triton(values, times, row, zeros):
            return
    by_operators(values, times, row, zeros)


def uses_triton() -> bool:
    """Whether a CUDA tensor is measured by Triton here."""
    return by_triton.AVAILABLE and not _trouble


def why() -> str:
    """The reason for `uses_triton`, in a few words."""
    return _trouble or ("each element is read once" if by_triton.AVAILABLE else "triton is not installed")


def _by_triton(values: Tensor, times: int, row: Tensor, zeros: bool) -> bool:
    """Whether Triton did it. It needs a C compiler at its first launch, which may not be there: said once."""
    global _trouble  # it is the same for the whole process
    other = values.get_device() != torch.cuda.current_device()
    try:
        with torch.cuda.device(values.get_device()) if other else nullcontext():
            by_triton.measure(values, times, row, zeros)
    except Exception as error:  # whatever a compiler raises: a broken one must not end a training
        _trouble = f"Triton cannot be used: {type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(_trouble, TritonWarning, stacklevel=2)
        return False
    return True


def by_operators(values: Tensor, times: int, row: Tensor, zeros: bool) -> None:
    """The row of dense `values`, each of which stands for `times` equal ones, by PyTorch's operators."""
    count = values.numel()
    row.zero_()
    row[COUNT].fill_(count * times)
    if not zeros:
        row[ZEROS].fill_(torch.nan)
    if not count:
        row[MIN].fill_(torch.nan)
        row[MAX].fill_(torch.nan)
        return
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    finite = values.isfinite()
    some = finite.any()
    row[MIN].copy_(torch.where(some, torch.where(finite, values, torch.inf).amin(), torch.nan))
    row[MAX].copy_(torch.where(some, torch.where(finite, values, -torch.inf).amax(), torch.nan))
    values = torch.where(finite, values, 0.0)
    row[SUM].copy_(values.sum(dtype=torch.float64)).mul_(times)
    row[SUMSQ].copy_(torch.linalg.vector_norm(values, dtype=torch.float64)).square_().mul_(times)
    bad = finite.logical_not_()
    row[NONFINITE].copy_(bad.sum()).mul_(times)
    if zeros:
        # What is not finite is 0 by now.
        row[ZEROS].copy_((values == 0).sum() - bad.sum()).mul_(times)
