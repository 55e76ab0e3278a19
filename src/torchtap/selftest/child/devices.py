"""torch's own start of CUDA, and the GPUs that later steps go through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchtap.selftest.child.running import LeaveOutError, Reporter, Values

if TYPE_CHECKING:
    import torch


def torch_cuda(reporter: Reporter) -> Values:
    """torch's own start of CUDA, and the GPUs it sees."""
    import torch

    _need_cuda(reporter)
    torch.cuda.init()  # type: ignore[no-untyped-call]  # raises with a reason; is_available() only says False
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_mib": properties.total_memory >> 20,
            }
        )
    reporter.gpus = len(gpus)
    return {"gpus": gpus}


def _need_cuda(reporter: Reporter) -> None:
    if reporter.simulated:
        raise LeaveOutError("libcuda is simulated")
    if reporter.cuda_code != 0:
        raise LeaveOutError("CUDA did not start")


def each_gpu(reporter: Reporter) -> Iterator[torch.device]:
    """Every GPU that torch sees; which one is at work is reported. Raises `LeaveOutError` where there is none."""
    import torch

    _need_cuda(reporter)
    if not reporter.gpus:
        raise LeaveOutError("torch sees no GPU")
    for index in range(reporter.gpus):
        reporter.say_where(f"GPU {index}")
        yield torch.device("cuda", index)
