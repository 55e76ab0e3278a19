"""What the hooks of one watch share: whether this step is measured, and where its rows go."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtap.monitor._keys import KeyTable
from torchtap.monitor._rows import DeviceRows, HostRows, Rows
from torchtap.monitor.stats import device_row, host_row

MOST_GRADIENTS = 4096
"""Gradients of one step that are measured: see `hooks.gradient` for what a graph of many more does in torch 2.14."""


class State:
    """Of one watch. Holds no module and no tensor of the model."""

    def __init__(self, *, device_path: bool = False) -> None:
        self.sampling = True
        """Whether this step is measured."""
        self.training_pass = False
        """Whether the model's last forward recorded gradients: what runs without them inside is a checkpoint then."""
        self.passes = 0
        """Forwards of the model until now: a layer counts its calls in each anew."""
        self.step = 0
        self.gradients = 0
        """Hooked in this step."""
        self.keys = KeyTable()
        self._device_path = device_path
        self._host = HostRows()
        self._devices: dict[torch.device, DeviceRows] = {}

    def measure(self, tensor: Tensor, key: int, *, zeros: bool) -> None:
        """Write this tensor's row. On a device nothing waits."""
        if tensor.device.type == "cpu" and not self._device_path:
            host_row(tensor, self._host.claim(key), zeros)
        else:
            device_row(tensor, self._rows_on(tensor.device).claim(key), zeros)

    def _rows_on(self, device: torch.device) -> DeviceRows:
        rows = self._devices.get(device)
        if rows is None:
            rows = self._devices[device] = DeviceRows(device)
        return rows

    def take(self) -> list[Callable[[], Rows]]:
        """End the step: what gives its rows, one for each device."""
        return [self._host.take(), *(each.take() for each in self._devices.values())]

    @property
    def reads_late(self) -> bool:
        """Whether a step's rows are read when the next one ends: where a device is involved."""
        return bool(self._devices)
