"""Steps of level full: torch.compile, on the CPU (a C++ compiler) and on every GPU (Triton and a C compiler)."""

from __future__ import annotations

import os
import tempfile

import torch

from torchtap.selftest.child.devices import each_gpu
from torchtap.selftest.child.running import Reporter, Values


def cpu_compile(_: Reporter) -> Values:
    """A small function, compiled for the CPU."""
    return {"gpus": [{"index": -1, **compiled(torch.device("cpu"))}]}


def gpu_compile(reporter: Reporter) -> Values:
    """The same for every GPU."""
    return {"gpus": [{"index": device.index, **compiled(device)} for device in each_gpu(reporter)]}


def compiled(device: torch.device) -> Values:
    """Compile in an empty cache that is removed again, and compare with what is computed without compiling: exactly."""
    # Compiled in this process: helper processes would outlive a time-out. Read when Inductor is imported.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="torchtap-compile-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")  # noqa: PTH118
        torch.manual_seed(0)
        inputs = torch.randint(-8, 9, (256, 128)).float().to(device)
        got = torch.compile(_function, fullgraph=True)(inputs)
        torch._dynamo.reset()
    expected = _function(inputs)
    return {"checked": expected.numel(), "wrong": int((got != expected).sum().item())}


def _function(inputs: torch.Tensor) -> torch.Tensor:
    """Whole numbers below 2^24: every order of adding gives the same."""
    return (inputs * 2 + 1).relu().sum(1)
