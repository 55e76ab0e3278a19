"""Step of level full: workers of a DataLoader, which hand their batches over through /dev/shm."""

from __future__ import annotations

import os

import torch
from torch.utils.data import DataLoader, Dataset

from torchtap.selftest.child.running import Reporter, Values
from torchtap.selftest.limits import WORKER_BATCH_BYTES, WORKERS, WORKERS_SILENCE_S

BATCHES = 12


class Batches(Dataset[torch.Tensor]):
    """Batches of whole numbers, each its own."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.full((self.size_bytes // 4,), float(at))


def host_workers(_: Reporter) -> Values:
    """Batches through workers; what is wrong, or the error. With the room of /dev/shm, and what was asked of it."""
    values: Values = {"workers": WORKERS, "needed_mib": 2 * WORKERS * WORKER_BATCH_BYTES >> 20, **_room()}
    # Without a time-out it would wait for ever: a worker that finds no room says so on its standard error only.
    loader = DataLoader(
        Batches(WORKER_BATCH_BYTES), batch_size=None, num_workers=WORKERS, timeout=WORKERS_SILENCE_S
    )
    checked = wrong = 0
    try:
        for at, batch in enumerate(loader):
            checked += batch.numel()
            wrong += int((batch != at).sum().item())
    except (RuntimeError, OSError) as error:  # one is killed (Bus error), is silent, or cannot be started
        return {**values, "checked": checked, "wrong": wrong, "error": str(error)}
    return {**values, "checked": checked, "wrong": wrong, "error": None}


def _room() -> Values:
    """Size of /dev/shm, and what is free before the workers begin, in MiB; None where there is none."""
    try:
        room = os.statvfs("/dev/shm")  # noqa: S108  # this very place is tested
    except OSError:
        return {"shm_mib": None, "shm_free_mib": None}
    return {
        "shm_mib": room.f_frsize * room.f_blocks >> 20,
        "shm_free_mib": room.f_frsize * room.f_bavail >> 20,
    }
