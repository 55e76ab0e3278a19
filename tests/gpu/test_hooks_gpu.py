"""What only a GPU can show of `torchtap.hooks`, and of claim B9 (docs/claims.md). Not run yet on any GPU.

Run with `pytest -m gpu tests/gpu/test_hooks_gpu.py`.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from torchtap.hooks import capture, on_forward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
]


@pytest.fixture
def _no_sync() -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def net(width: int = 256, layers: int = 8) -> nn.Sequential:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU(inplace=True))]
    return nn.Sequential(*parts).cuda()


def test_pitfall_27_capturing_to_the_host_waits_for_nothing_until_it_is_read() -> None:
    model, x = net(), torch.randn(64, 256, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with capture(model, gradients=True, inputs=True, device="cpu") as taken:
            out = model(x)
            out.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(taken["15"], out.detach().cpu())
    assert taken["0"].is_pinned()
    assert torch.equal(taken["0"], model[0](x).detach().cpu()), "as it was before the ReLU in place"


@pytest.mark.usefixtures("_no_sync")
def test_pitfall_26_capturing_on_the_gpu_waits_for_nothing() -> None:
    model = net()
    with capture(model, gradients=True, inputs=True) as taken:
        model(torch.ones(64, 256, device="cuda")).sum().backward()
    assert taken["0"].is_cuda


def test_pitfall_28_nothing_is_kept_while_a_cuda_graph_is_recorded() -> None:
    model, x, graph = net(), torch.randn(64, 256, device="cuda"), torch.cuda.CUDAGraph()
    with torch.no_grad():
        model(x)
        with capture(model) as taken, torch.cuda.graph(graph):
            model(x)
    assert "a CUDA graph was being recorded" in repr(taken["0"])


def seconds(model: nn.Module, x: Tensor, function: Callable[[str, Tensor], object]) -> float:
    with on_forward(model, None, function):
        model(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            model(x)
        torch.cuda.synchronize()
        return time.perf_counter() - start


def test_b09_copies_to_the_host_in_each_hook_cost_time_that_a_buffer_on_the_gpu_does_not() -> None:
    model, x = net(2048, 16), torch.randn(4096, 2048, device="cuda")
    buffer = torch.zeros(32, device="cuda")
    to_host = seconds(model, x, lambda _, output: output.detach().cpu())
    in_place = seconds(model, x, lambda name, output: buffer[int(name)].copy_(output.detach().sum()))
    assert to_host > 2 * in_place
