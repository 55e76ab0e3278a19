"""What a row must be, by numpy in float64; the tensors that every way of measuring is tried on; the ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.monitor import stats

Row = NDArray[np.float64]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NAN, INF = float("nan"), float("inf")


def reference(tensor: Tensor) -> Row:
    """The row by numpy, from all elements one by one."""
    values = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    x = values.double().resolve_neg().numpy().ravel()
    finite = x[np.isfinite(x)]
    low, high = (finite.min(), finite.max()) if finite.size else (NAN, NAN)
    with np.errstate(over="ignore", under="ignore"):
        squares = float(np.sum(finite * finite))
    zeros, bad = float(np.sum(x == 0)), float(x.size - finite.size)
    return np.array([low, high, finite.sum(), squares, zeros, bad, x.size, 0.0])


def agree(row: Row, tensor: Tensor) -> None:
    """Fails unless `row` is that of `tensor`: counts, min and max exactly; sums to 1e-5; std to 1e-3."""
    wanted = reference(tensor)
    exact = [0, 1, 4, 5, 6, 7]
    np.testing.assert_array_equal(row[exact], wanted[exact])
    size = float(tensor.detach().abs().double().nan_to_num(0, 0, 0).sum())
    np.testing.assert_allclose(row[2], wanted[2], rtol=1e-12, atol=1e-5 * size)
    np.testing.assert_allclose(row[3], wanted[3], rtol=1e-5)
    std = std_of(tensor)
    if std == std and wanted[3] < 1e300:
        scale = max(abs(wanted[0]), abs(wanted[1]))
        found = stats.derive(row[None])["std"][0]
        np.testing.assert_allclose(found, std, rtol=1e-3, atol=3e-7 * scale)


def std_of(tensor: Tensor) -> float:
    values = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    x = values.double().resolve_neg().numpy().ravel()
    x = x[np.isfinite(x)]
    if not x.size or np.abs(x).max() > 1e150:
        return NAN
    return float(x.std())


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _with(values: Tensor, **at: float) -> Tensor:
    for index, value in at.items():
        values[int(index[1:])] = value
    return values


def float_cases() -> dict[str, Tensor]:
    """float32 tensors; each is tried in every dtype, so some overflow there."""
    long = 3 * 4096 + 65  # more than a block of every path, with a rest
    return {
        "one": torch.tensor([2.5]),
        "scalar": torch.tensor(-3.0),
        "empty": torch.empty(0),
        "empty of two dimensions": torch.empty(0, 3),
        "63": _random(63),
        "64": _random(64),
        "65": _random(65),
        "long": _random(long),
        "relu": _random(long).relu(),
        "all zero": torch.zeros(300),
        "negative zero": torch.tensor([-0.0, 0.0, 1.0]),
        "constant": torch.full((5000,), 0.1),
        "all NaN": torch.full((70,), NAN),
        "NaN first": _with(_random(long), i0=NAN),
        "NaN last": _with(_random(long), **{f"i{long - 1}": NAN}),
        "infinity": _with(_random(long), i77=INF),
        "both infinities": _with(_random(long), i77=INF, i5000=-INF),
        "minus infinity alone": torch.tensor([-INF]),
        "all sorts": torch.tensor([NAN, INF, -INF, 0.0, -1.0, 2.0]),
        "3e38": torch.tensor([3e38, -3e38, 1.0] * 50),
        "many 3e38": torch.full((5000,), 3e38),
        "largest half": torch.tensor([65504.0, -65504.0, 1.0]),
        "half overflows in sums": torch.full((100_000,), 300.0) + _random(100_000),
        "denormals": torch.tensor([1e-40, -1e-45, 0.0, 3e-39]),
        "half denormals": torch.tensor([6e-8, -3e-7, 0.0, 5e-5]),
        "tiny": _random(5000) * 1e-25,
        "small": _random(5000) * 1e-12,
        "one huge among small": _with(_random(long), i0=1e6),
        "a huge block, then small": torch.cat([_random(4096) + 1e5, _random(long)]),
        "two levels": torch.cat([_random(4096) + 100, _random(4096) - 100]),
    }


def far_mean(dtype: torch.dtype) -> Tensor:
    """The mean is 1000 times the standard deviation (bfloat16 cannot hold that: 100 times)."""
    values = _random(200_000, seed=1).double()
    if dtype is torch.bfloat16:
        return (values.float() + 100).bfloat16()
    return (values * 2 + 2000).to(dtype)


def layout_cases() -> dict[str, Tensor]:
    """One dtype, many ways of lying in memory."""
    base = _random(4, 6, 5, 7)
    return {
        "transposed": _random(30, 70).t(),
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "permuted": base.permute(3, 1, 0, 2),
        "columns": base[..., 1:4],
        "every second row": base[::2],
        "part with an offset": base[1:3],
        "a diagonal": _random(20, 20).diagonal(),
        "overlapping": _random(50).unfold(0, 7, 3),
        "expanded": _random(5, 1).expand(5, 9),
        "expanded scalar": torch.tensor(2.0).expand(3, 4),
        "expanded columns": _random(5, 1, 8)[..., 2:5].expand(5, 6, 3),
        "expanded with NaN": torch.tensor([NAN, 0.0, 3.0]).expand(4, 3),
        "size 1 with odd strides": _random(12).as_strided((1, 12, 1), (5, 1, 99)),
        "complex": torch.complex(_random(40), _random(40, seed=1)),
        "conjugate": torch.complex(_random(40), _random(40, seed=1)).conj(),
        "imaginary part of a conjugate": torch.complex(_random(40), _random(40, seed=1)).conj().imag,
        "transposed conjugate": torch.complex(_random(4, 9), _random(4, 9, seed=1)).mH,
        "float8": _random(100).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(_random(33)),
        "not a leaf": torch.nn.Parameter(_random(33)) * 2,
    }


def measured(function: Callable[[Tensor, int, bool], None], tensor: Tensor, zeros: bool = True) -> Row:
    """The row that a function such as `host_row` writes at an address."""
    row = np.full(stats.ROW, -7.0)
    function(tensor, row.ctypes.data, zeros)
    return row


def measured_there(
    function: Callable[[Tensor, Tensor, bool], None], tensor: Tensor, zeros: bool = True
) -> Row:
    """The row that a function such as `device_row` writes into a tensor."""
    row = torch.full((stats.ROW,), -7.0, dtype=torch.float64)
    function(tensor, row, zeros)
    return row.numpy()
