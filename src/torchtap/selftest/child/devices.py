"""torch's own start of CUDA, and the GPUs that later steps go through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchtap.selftest.child.nvml import Nvml
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
                "uuid": _uuid(properties),
                "bus_id": _bus_id(properties),
            }
        )
    reporter.gpus = len(gpus)
    return {"gpus": gpus}


def _uuid(properties: object) -> str | None:
    """As nvidia-smi writes it; None where this torch does not tell it."""
    uuid = str(getattr(properties, "uuid", "") or "")
    return None if not uuid else uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _bus_id(properties: object) -> str | None:
    """Domain, bus and device as nvidia-smi writes them; None where this torch does not tell them."""
    parts = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    numbers = [part for part in parts if isinstance(part, int)]
    return "{:08X}:{:02X}:{:02X}.0".format(*numbers) if len(numbers) == len(parts) else None


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


def nvml_of(device: torch.device) -> Nvml:
    """What NVML says of the GPU that torch calls `device`."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    return Nvml(bus_id=_bus_id(properties), uuid=_uuid(properties))
