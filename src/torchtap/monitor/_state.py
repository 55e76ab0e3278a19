"""What the hooks of one watch share: whether this step is measured, and where its rows go."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from torchtap.monitor._keys import KeyTable
from torchtap.monitor._rows import DeviceRows, HostRows, Rows
from torchtap.monitor._scale import Scale
from torchtap.monitor.stats import device_row, host_row
from torchtap.monitor.stats.kernel import has_kernel

ZEROS_EVERY = 10
"""Where there is no C kernel, zeros of CPU tensors are counted in each so manieth measured step."""
MOST_GRADIENTS = 4096
"""Gradients of one step that are measured: see `hooks.on_gradient` for what a graph of many more does in torch 2.14."""


class State:
    """Of one watch. Holds no module and no tensor of the model."""

    def __init__(
        self, *, every: int = 1, scaler: GradScaler | None = None, device_path: bool = False
    ) -> None:
        self.every = every
        self.sampling = True
        """Whether this step is measured."""
        self.training_pass = False
        """Whether the model's last forward recorded gradients: what runs without them inside is a checkpoint then."""
        self.passes = 0
        """Grows with each forward and each step: a layer counts its calls anew then."""
        self.forwards = 0
        """Of the model itself, until now."""
        self.step = 0
        self.counts_zeros = True
        """Whether zeros are counted in this step: they cost PyTorch's operators as much as all the rest."""
        self.gradients = 0
        """Hooked in this step; those beyond `MOST_GRADIENTS` are counted only."""
        self.keys = KeyTable()
        self.scale = Scale(scaler)
        self._device_path = device_path
        self._host = HostRows()
        self._devices: dict[torch.device, DeviceRows] = {}

    def begin_pass(self, *, training: bool) -> None:
        """The model's forward begins."""
        self.passes += 1
        self.forwards += 1
        self.training_pass = training
        if training:
            self.scale.begin_pass()

    def measure(self, tensor: Tensor, number: int, *, zeros: bool) -> None:
        """Write this tensor's row. On a device nothing waits."""
        if tensor.is_cpu and not self._device_path:
            host_row(tensor, self._host.claim(number + self.scale.tag), zeros and self.counts_zeros)
        else:
            device_row(tensor, self._rows_on(tensor.device).claim(number + self.scale.tag), zeros)

    def _rows_on(self, device: torch.device) -> DeviceRows:
        rows = self._devices.get(device)
        return self._devices.setdefault(device, DeviceRows(device)) if rows is None else rows

    def take(self) -> list[Callable[[], Rows]]:
        """End the step: what gives its rows, one for each device."""
        return [self._host.take(), *(each.take() for each in self._devices.values())]

    def next_step(self) -> None:
        """The step has ended, its rows are taken."""
        self.step += 1
        # Where parts run and the model itself never does, layers count their calls anew here.
        self.passes += 1
        self.training_pass = False
        self.gradients = 0
        self.sampling = self.step % self.every == 0
        self.counts_zeros = has_kernel() or self.step % (ZEROS_EVERY * self.every) == 0

    @property
    def reads_late(self) -> bool:
        """Whether a step's rows are read when the next one ends: where a device is involved."""
        return bool(self._devices)
