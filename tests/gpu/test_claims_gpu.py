"""What only a GPU can show of claims A1 to A18 (docs/claims.md); the rest is in tests/unit/modes/test_claims.py.

Run with `pytest -m gpu tests/gpu/test_claims_gpu.py`. Not run yet on any GPU. How much slower RNNs are without cuDNN
(A14) is measured and not tested: `python -m benchmarks.modes` on that GPU.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from torchtap import modes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch
with torch.device("cuda"):
    loss = torch.nn.LSTM(2, 2).eval()(torch.zeros(3, 1, 2))[0].sum()
try:
    loss.backward()
except RuntimeError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="gpu: two needed")
def test_a09_replicas_on_two_gpus_follow_the_module() -> None:
    seen: list[tuple[str, bool]] = []

    class Telling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(2, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((str(x.device), self.rnn.training))
            out: torch.Tensor = self.rnn(x)[0]
            return out

    wrapper = nn.DataParallel(Telling().cuda().eval())
    for train in (wrapper.module.train, wrapper.train):
        wrapper.eval()
        train()
        seen.clear()
        wrapper(torch.zeros(4, 3, 2, device="cuda")).sum().backward()
        assert sorted(seen)[:2] == [("cuda:0", True), ("cuda:1", True)]


def test_a12_launch_blocking_adds_nothing_to_the_error() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "CUDA_LAUNCH_BLOCKING": blocking},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for blocking in ("0", "1")
    ]
    assert said[0] == said[1] == "RuntimeError cudnn RNN backward can only be called in training mode\n"


def test_a14_without_cudnn_an_eval_forward_can_be_differentiated_twice() -> None:
    rnn, x = nn.LSTM(4, 3, device="cuda").eval(), torch.randn(5, 2, 4, device="cuda", requires_grad=True)
    with modes.without_cudnn():
        out, _ = rnn(x)
    assert "Cudnn" not in str(out.grad_fn)
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
