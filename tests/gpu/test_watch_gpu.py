"""What only a GPU can show of `torchtap.watch`. Not run yet on any GPU.

Run with `pytest -m gpu tests/gpu/test_watch_gpu.py`; what a watched step costs there: `python -m benchmarks.monitor`.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtap.monitor import watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    seen = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*seen, nn.Linear(8 * 36, 16), nn.LayerNorm(16), nn.Tanh())


def batch(step: int) -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))


def trained(model: nn.Module, device: str, *, sync: str = "default", steps: int = 12):
    """A closed watch of plain SGD; with sync="error" whatever makes the host wait raises."""
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = [batch(step).to(device) for step in range(steps)]
    with watch(model, optimizer) as w:
        try:
            for x in batches:
                torch.cuda.set_sync_debug_mode(sync)
                optimizer.zero_grad()
                loss = model(x).square().mean()
                w.log(loss=loss)
                loss.backward()
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return w


def test_a_watched_training_never_waits_for_the_gpu() -> None:
    """Closer looks, norms of parameters and the loss included."""
    trained(net(), "cuda", steps=2)  # kernels are compiled
    w = trained(net(), "cuda", sync="error")
    assert w.steps == 12
    assert w.looks()


def test_rows_are_copied_once_a_step() -> None:
    """By the profiler: copies to the host do not grow with the number of layers."""
    counts = []
    for depth in (2, 20):
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(depth)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 8, device="cuda")
        with watch(model, optimizer, look_closer=False, parameters_every=1000) as w:
            for _ in range(3):
                model(x).sum().backward()
                optimizer.step()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(5):
                    model(x).sum().backward()
                    optimizer.step()
                torch.cuda.synchronize()
            w.close()
        counts.append(sum(each.count for each in profile.key_averages() if "DtoH" in each.key))
    assert counts[0] == counts[1] <= 5


def test_statistics_are_those_of_the_cpu() -> None:
    on_cpu, on_gpu = (trained(net(), device) for device in ("cpu", "cuda"))
    for layer in on_cpu.layers:
        for direction in ("output", "gradient"):
            one, other = (w.series(layer.name, direction) for w in (on_cpu, on_gpu))
            for name in ("min", "max", "mean", "rms", "std"):
                np.testing.assert_allclose(
                    one[name], other[name], rtol=2e-2, atol=2e-4, err_msg=f"{layer.name} {name}"
                )


def test_a_step_with_nan_is_run_again_on_the_gpu() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = (self.inner(x) * 0).sum(1).sqrt()
            return out

    model = Root().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(), watch(model, optimizer, keep_batch=True) as w:
        warnings.simplefilter("ignore")
        model(torch.randn(3, 4, device="cuda")).sum().backward()
        optimizer.step()
    first = w.first_nonfinite()
    assert first is not None
    assert first.rerun is not None
    assert first.rerun.report is not None
    assert first.rerun.report.origin is not None
    assert first.rerun.report.origin.node == "SqrtBackward0"
    assert all(values.nans == 0 for _, values in first.weights)


def test_nothing_of_a_recorded_graph_is_measured() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
    x = torch.randn(4, 8, device="cuda")
    with watch(model) as w:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        w.step()
        before = len(w.series("0"))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
        graph.replay()
        w.step()
        assert len(w.series("0")) == before
    assert "a CUDA graph was being recorded" in str(w.summary())
