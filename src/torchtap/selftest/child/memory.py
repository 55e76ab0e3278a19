"""Step of level full: every GPU's memory, written and read back."""

from __future__ import annotations

import torch

from torchtap.selftest.child.devices import each_gpu
from torchtap.selftest.child.patterns import CHUNK_BYTES, PATTERNS, chunks_of, count_wrong, write
from torchtap.selftest.child.running import Reporter, Values
from torchtap.selftest.limits import MEMORY_LEFT_BYTES, MEMORY_SHARE, SHARED_MEMORY_SHARE


def gpu_memory(reporter: Reporter) -> Values:
    """Patterns over nearly all free memory of every GPU."""
    gpus = []
    for device in each_gpu(reporter):
        free, total = torch.cuda.mem_get_info(device)
        # A GPU that shares the host's memory must leave the other programs theirs.
        integrated = bool(torch.cuda.get_device_properties(device).is_integrated)
        share = SHARED_MEMORY_SHARE if integrated else MEMORY_SHARE
        wanted = min(int(free * share), free - MEMORY_LEFT_BYTES)
        record = {"index": device.index, "total_mib": total >> 20, "integrated": integrated}
        gpus.append({**record, **wrong_in_memory(device, wanted)})
        torch.cuda.empty_cache()
    return {"gpus": gpus}


def wrong_in_memory(device: torch.device, size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> Values:
    """Every pattern over as much of `size_bytes` as the device gives: MiB tested, numbers compared, wrong ones.

    `worst` is the pattern with the most wrong numbers, None where all are right.
    """
    chunks = chunks_of(device, size_bytes, chunk_bytes)
    wrong = {}
    for pattern in PATTERNS:
        write(chunks, pattern)
        wrong[pattern] = count_wrong(chunks, pattern)
    numbers = sum(chunk.numel() for chunk in chunks)
    worst = max(wrong, key=lambda pattern: wrong[pattern])
    return {
        "tested_mib": numbers * 8 >> 20,
        "checked": numbers * len(PATTERNS),
        "wrong": sum(wrong.values()),
        "worst": worst if wrong[worst] else None,
    }
