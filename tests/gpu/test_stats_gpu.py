"""The statistics of a CUDA tensor: Triton against numpy, no waiting, and inside a CUDA graph.

Run with `pytest -m gpu tests/gpu/test_stats_gpu.py`. Not run yet on any GPU: here the kernels are interpreted, and
compiled for several GPUs (tests/unit/monitor/stats/test_triton.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.unit.monitor.stats.reference import DTYPES, agree, far_mean, float_cases, layout_cases
from torchtap.monitor import stats
from torchtap.monitor.stats import on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
]


@pytest.fixture(params=["Triton", "operators"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(on_device, "_trouble", "" if request.param == "Triton" else "for a test")
    assert on_device.uses_triton() == (request.param == "Triton")
    with warnings.catch_warnings():
        warnings.simplefilter("error", on_device.TritonWarning)
        yield request.param


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    row = torch.zeros(stats.ROW, dtype=torch.float64, device="cuda")
    stats.device_row(tensor, row, True)
    return row


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", float_cases())
def test_every_value_in_every_dtype(way: str, case: str, dtype: torch.dtype) -> None:
    tensor = float_cases()[case].to(dtype)
    agree(row_of(tensor.cuda()).cpu().numpy(), tensor)


@pytest.mark.parametrize("case", layout_cases())
def test_every_layout(way: str, case: str) -> None:
    there = layout_cases()[case].cuda()
    agree(row_of(there).cpu().numpy(), there.cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mean_far_from_zero(way: str, dtype: torch.dtype) -> None:
    tensor = far_mean(dtype)
    agree(row_of(tensor.cuda()).cpu().numpy(), tensor)


def test_nothing_waits(way: str) -> None:
    tensor = torch.randn(1_000_003, device="cuda")
    row_of(tensor)  # Triton compiles
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        row = row_of(tensor)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    agree(row.cpu().numpy(), tensor.cpu())


def test_a_cuda_graph_measures_at_each_replay(way: str) -> None:
    tensor = torch.randn(5000, device="cuda")
    row = torch.zeros(stats.ROW, dtype=torch.float64, device="cuda")
    stats.device_row(tensor, row, True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stats.device_row(tensor, row, True)
    tensor.fill_(2.0)[7] = torch.nan
    graph.replay()
    agree(row.cpu().numpy(), tensor.cpu())
