"""Where the statistics of a step are written until it ends: one row a tensor, no read in between."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torchtap.monitor.stats import ROW

_CHUNK = 256
_MOST = 4096  # rows of one step; a loop of more calls is merged meanwhile
_BYTES = 8 * ROW

Rows = tuple[np.ndarray, np.ndarray]
"""Numbers of keys [n] int64, and their raw rows [n, 8] float64, in the order in which they were measured."""


class HostRows:
    """Rows in the host's memory, for tensors on the CPU."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray] = []
        self._addresses: list[int] = []
        self._keys: list[int] = []
        self._lock = threading.Lock()

    def claim(self, key: int) -> int:
        """The address of a new row. Any thread."""
        with self._lock:
            index = len(self._keys)
            if index == _CHUNK * len(self._chunks):
                index = self._grow()
            self._keys.append(key)
        chunk, place = divmod(index, _CHUNK)
        return self._addresses[chunk] + place * _BYTES

    def _grow(self) -> int:
        if len(self._keys) >= _MOST:
            keys, rows = merged(np.array(self._keys), self._filled())
            if len(keys) < _MOST // 2:
                self._keys = keys.tolist()
                for place in range(0, len(keys), _CHUNK):
                    part = rows[place : place + _CHUNK]
                    self._chunks[place // _CHUNK][: len(part)] = part
                return len(keys)
        chunk = np.empty((_CHUNK, ROW))
        self._chunks.append(chunk)
        self._addresses.append(chunk.ctypes.data)
        return len(self._keys)

    def _filled(self) -> np.ndarray:
        return np.concatenate(self._chunks)[: len(self._keys)] if self._chunks else np.empty((0, ROW))

    def take(self) -> Callable[[], Rows]:
        """End the step: what gives its rows, now or later."""
        with self._lock:
            taken = np.array(self._keys, dtype=np.int64), self._filled()
            self._keys = []
        return lambda: taken


class DeviceRows:
    """Rows in the memory of a device. Copied once a step, without waiting; read when the next step ends.

    Hooks and `take` use whatever stream is current: what runs in a stream of its own must be joined before the step ends.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chunks: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._keys: list[int] = []
        self._lock = threading.Lock()

    def claim(self, key: int) -> Tensor:
        """A new row, [8] float64 on the device. Any thread."""
        with self._lock:
            index = len(self._keys)
            if index == len(self._rows):
                with torch.no_grad(), torch.device(self._device):
                    chunk = torch.empty(_CHUNK, ROW, dtype=torch.float64)
                self._chunks.append(chunk)
                self._rows += chunk.unbind(0)
            self._keys.append(key)
            return self._rows[index]

    def take(self) -> Callable[[], Rows]:
        """End the step: what gives its rows; it waits where the copy has not ended."""
        with self._lock:
            keys, self._keys = np.array(self._keys, dtype=np.int64), []
        rows = read_later(torch.cat(self._chunks)[: len(keys)]) if len(keys) else lambda: np.empty((0, ROW))
        return lambda: (keys, rows())


def read_later(tensor: Tensor) -> Callable[[], np.ndarray]:
    """Start to copy a tensor to the host without waiting; what gives its values, when the copy has ended.

    The tensor must not be written to from another stream meanwhile.
    """
    tensor = tensor.detach()
    if tensor.device.type != "cuda":
        host = tensor.to("cpu", copy=True)
        return host.numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))

    def values() -> np.ndarray:
        event.synchronize()
        return host.numpy()

    return values


def merged(keys: np.ndarray, rows: np.ndarray) -> Rows:
    """One row a key, in the order of first measurement: what several calls gave, as if it were one tensor."""
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if len(unique) == len(keys):
        return keys, rows
    into = np.zeros((len(unique), ROW))
    into[:, :2] = np.nan
    np.fmin.at(into[:, 0], inverse, rows[:, 0])
    np.fmax.at(into[:, 1], inverse, rows[:, 1])
    np.add.at(into[:, 2:], inverse, rows[:, 2:])
    order = np.argsort(first)
    return unique[order], into[order]
