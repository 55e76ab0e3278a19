"""Where the statistics of a step are written until it ends: one row a tensor, no read in between."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torchtap.monitor.stats import ROW

_CHUNK = 256
_MOST = 4096  # rows of one step on the host; a loop of more calls is merged meanwhile
_BYTES = 8 * ROW

Rows = tuple[np.ndarray, np.ndarray]
"""Numbers [n] int64, and their raw rows [n, 8] float64, in the order in which they were measured."""


class HostRows:
    """Rows in the host's memory, for tensors on the CPU.

    A row is claimed by taking the last place of `free` and writing what it is of to `numbers`: each is one operation of
    Python's, so any thread may, without a lock.
    """

    def __init__(self) -> None:
        self._chunks: list[np.ndarray] = []
        self._addresses = array("q")
        self._all: list[int] = []
        """Every row's place, the first one last."""
        self.free: list[int] = []
        self.numbers: list[int] = []
        self._lock = threading.Lock()

    def claim(self, number: int) -> int:
        """The address of a new row. Any thread."""
        while True:
            try:
                place = self.free.pop()
            except IndexError:
                self._make_room()
            else:
                self.numbers[place] = number
                return self._addresses[place]

    def _make_room(self) -> None:
        with self._lock:
            if self.free:  # another thread was first
                return
            if len(self.numbers) >= _MOST:
                numbers, rows = merged(np.array(self.numbers), np.concatenate(self._chunks))
                if len(numbers) <= _MOST // 2:  # else there are as many tensors, and each keeps its row
                    self.numbers[: len(numbers)] = numbers.tolist()
                    for place in range(0, len(numbers), _CHUNK):
                        part = rows[place : place + _CHUNK]
                        self._chunks[place // _CHUNK][: len(part)] = part
                    self.free = self._all[: len(self._all) - len(numbers)]
                    return
            chunk = np.empty((_CHUNK, ROW))
            first, at = len(self.numbers), chunk.ctypes.data
            self._chunks.append(chunk)
            self.numbers += [0] * _CHUNK
            self._addresses.extend(range(at, at + _CHUNK * _BYTES, _BYTES))
            new = list(range(first + _CHUNK - 1, first - 1, -1))
            self._all = new + self._all
            self.free = new

    def now(self) -> Rows:
        """The rows until now."""
        used = len(self._all) - len(self.free)
        rows = np.concatenate(self._chunks)[:used] if used else np.empty((0, ROW))
        return np.array(self.numbers[:used], dtype=np.int64), rows

    def take(self) -> Callable[[], Rows]:
        """End the step: what gives its rows, now or later."""
        with self._lock:
            taken = self.now()
            self.free = self._all.copy()
        return lambda: taken


class DeviceRows:
    """Rows in the memory of a device. Copied once a step, without waiting; read when the next step ends.

    Hooks and `take` use whatever stream is current: join streams of your own before the step ends.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chunks: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._numbers: list[int] = []
        self._lock = threading.Lock()

    def claim(self, number: int) -> Tensor:
        """A new row, [8] float64 on the device. Any thread."""
        with self._lock:
            index = len(self._numbers)
            if index == len(self._rows):
                with torch.no_grad():
                    self._chunks.append(torch.empty(_CHUNK, ROW, dtype=torch.float64, device=self._device))
                self._rows += self._chunks[-1].unbind(0)
            self._numbers.append(number)
            return self._rows[index]

    def now(self) -> Rows:
        """The rows until now. Waits for the device."""
        with self._lock:
            numbers = np.array(self._numbers, dtype=np.int64)
            rows = (
                torch.cat(self._chunks)[: len(numbers)].cpu().numpy() if len(numbers) else np.empty((0, ROW))
            )
        return numbers, rows

    def take(self) -> Callable[[], Rows]:
        """End the step: what gives its rows; it waits where the copy has not ended."""
        with self._lock:
            numbers, self._numbers = np.array(self._numbers, dtype=np.int64), []
        if not len(numbers):
            return lambda: (numbers, np.empty((0, ROW)))
        rows = read_later(torch.cat(self._chunks)[: len(numbers)])
        return lambda: (numbers, rows())


def read_later(tensor: Tensor) -> Callable[[], np.ndarray]:
    """Start to copy a tensor to the host without waiting; what gives its values, when the copy has ended."""
    tensor = tensor.detach()
    if tensor.device.type != "cuda":
        return (tensor.clone() if tensor.is_cpu else tensor.cpu()).numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.device))

    def values() -> np.ndarray:
        copied.synchronize()
        return host.numpy()

    return values


def merged(numbers: np.ndarray, rows: np.ndarray) -> Rows:
    """One row a number, in the order of first measurement: what several calls gave, as if it were one tensor."""
    unique, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    if len(unique) == len(numbers):
        return numbers, rows
    into = np.zeros((len(unique), ROW))
    into[:, :2] = np.nan
    np.fmin.at(into[:, 0], inverse, rows[:, 0])
    np.fmax.at(into[:, 1], inverse, rows[:, 1])
    np.add.at(into[:, 2:], inverse, rows[:, 2:])
    order = np.argsort(first)
    return unique[order], into[order]
