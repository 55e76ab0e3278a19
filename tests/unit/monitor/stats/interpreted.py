"""Tries the Triton kernels in the interpreter (TRITON_INTERPRET=1) on all cases; prints how many. For test_triton."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.unit.monitor.stats.reference import (
    DTYPES,
    agree,
    far_mean,
    float_cases,
    layout_cases,
    measured_there,
)
from torchtap.monitor.stats import by_triton
from torchtap.monitor.stats.layout import flat

# The interpreter makes other numbers of denormals of bfloat16; a GPU does not.
WRONG = {("denormals", torch.bfloat16)}


def by_kernels(tensor: Tensor, row: Tensor, zeros: bool) -> None:
    """As device_row does it on CUDA."""
    values, times = flat(tensor)
    by_triton.measure(values, times, row, zeros)


def main() -> None:
    tried = 0
    # What has values, of dtypes that Triton loads.
    cases = {name: x for name, x in float_cases().items() if x.numel()}
    tensors = [x.to(dtype) for name, x in cases.items() for dtype in DTYPES if (name, dtype) not in WRONG]
    tensors += [x for x in layout_cases().values() if x.dtype != torch.float8_e4m3fn]
    # numpy, which interprets, warns of what overflows; so it does on a GPU, silently.
    with np.errstate(all="ignore"):
        for x in (*tensors, far_mean(torch.float32), far_mean(torch.float16)):
            agree(measured_there(by_kernels, x), x)
            tried += 1
        # More tiles than programs, more programs than the second kernel is wide, and zeros left out.
        long = torch.randn(23 * by_triton.TILE + 5)
        for programs, tiles in ((2, 256), (4, 2)):
            by_triton.PROGRAMS, by_triton.TILES = programs, tiles
            agree(measured_there(by_kernels, long), long)
            assert np.isnan(measured_there(by_kernels, long, zeros=False)[4])
            tried += 1
    print(tried)  # noqa: T201


if __name__ == "__main__":
    main()
