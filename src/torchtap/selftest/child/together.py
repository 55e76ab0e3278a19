"""Steps of level full for several GPUs: copies between each pair, and NCCL."""

from __future__ import annotations

import json
import math
import tempfile
from datetime import timedelta
from itertools import permutations
from pathlib import Path

import torch
from torch.multiprocessing.spawn import ProcessException, spawn

from torchtap.selftest.child.devices import each_gpu
from torchtap.selftest.child.patterns import count_wrong, write
from torchtap.selftest.child.running import LeaveOutError, Reporter, Values
from torchtap.selftest.child.timing import median_seconds
from torchtap.selftest.limits import NCCL_BYTES, NCCL_SILENCE_S, PEER_BYTES

ONE_GPU = "there is one GPU"


def gpu_peers(reporter: Reporter) -> Values:
    """A copy from each GPU to each other one, compared there."""
    devices = _several(reporter)
    pairs = []
    for source, target in permutations(devices, 2):
        reporter.say_where(f"GPU {source.index} to GPU {target.index}")
        access = torch.cuda.can_device_access_peer(source, target)
        pairs.append(
            {
                "from": source.index,
                "to": target.index,
                "access": access,
                **pair_copy(source, target, PEER_BYTES),
            }
        )
    return {"gpus": pairs}


def pair_copy(source: torch.device, target: torch.device, size_bytes: int) -> Values:
    """Numbers that are all different, copied: how many arrive wrong, and GB/s."""
    sent = torch.empty(size_bytes // 8, dtype=torch.int64, device=source)
    arrived = torch.zeros(size_bytes // 8, dtype=torch.int64, device=target)
    write([sent], "address")
    seconds = median_seconds(target, lambda: arrived.copy_(sent, non_blocking=True), repeats=5)
    return {
        "checked": arrived.numel(),
        "wrong": count_wrong([arrived], "address"),
        "gb_s": round(size_bytes / seconds / 1e9, 2),
    }


def gpu_nccl(reporter: Reporter) -> Values:
    """All GPUs add up what each holds; the sum is known."""
    return all_reduce("nccl", [f"cuda:{device.index}" for device in _several(reporter)], NCCL_BYTES)


def all_reduce(backend: str, devices: list[str], size_bytes: int) -> Values:
    """One process a device. Wrong values of all processes together, and the bus bandwidth as NCCL's tests count it."""
    with tempfile.TemporaryDirectory(prefix="torchtap-nccl-") as folder:
        try:
            spawn(_one_of_all, (backend, devices, size_bytes, folder), len(devices))  # type: ignore[no-untyped-call]
        except ProcessException as error:
            # A whole traceback; what NCCL says last is what went wrong.
            raise RuntimeError(str(error).strip().splitlines()[-1]) from error
        said = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(len(devices))]
    count = len(devices)
    slowest = max(each["seconds"] for each in said)
    return {
        "count": count,
        "checked": sum(each["checked"] for each in said),
        "wrong": sum(each["wrong"] for each in said),
        "bus_gb_s": round(2 * (count - 1) / count * size_bytes / slowest / 1e9, 2),
    }


def _one_of_all(rank: int, backend: str, devices: list[str], size_bytes: int, folder: str) -> None:
    from torch import distributed

    device = torch.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=len(devices),
        timeout=timedelta(seconds=NCCL_SILENCE_S),
    )
    numbers = torch.full((size_bytes // 4,), float(rank + 1), device=device)
    distributed.all_reduce(numbers)
    wrong = int((numbers != len(devices) * (len(devices) + 1) // 2).sum().item())
    numbers.zero_()  # further sums stay what they are
    # Without a limit of time: every process must call it as often as the others.
    seconds = median_seconds(device, lambda: distributed.all_reduce(numbers), repeats=10, limit_s=math.inf)
    values = {"checked": numbers.numel(), "wrong": wrong, "seconds": seconds}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(values))
    distributed.destroy_process_group()


def _several(reporter: Reporter) -> list[torch.device]:
    devices = list(each_gpu(reporter))
    if len(devices) < 2:
        raise LeaveOutError(ONE_GPU)
    reporter.say_where("")
    return devices
