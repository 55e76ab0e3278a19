"""What the hooks of one watch share: whether this step is measured, and where its rows go."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.amp.grad_scaler import GradScaler
from torch.utils.hooks import RemovableHandle

from torchtap.monitor._keys import Key, KeyTable
from torchtap.monitor._rows import DeviceRows, HostRows, Rows
from torchtap.monitor._scale import PASSES, Scale
from torchtap.monitor.stats import device_row, host_row, kernel, refusal
from torchtap.monitor.stats.host import SHORT
from torchtap.monitor.stats.kernel import TYPES, Kernel
from torchtap.monitor.stats.refusing import PLAIN
from torchtap.monitor.stats.rows import NONFINITE

_STRIDED = torch.strided
_is_functional = torch._is_functional_tensor
ZEROS_EVERY = 10
"""Where there is no C kernel, zeros of CPU tensors are counted in each so manieth measured step."""
MOST_GRADIENTS = 4096
"""Gradients of one step that are measured: see `hooks.on_gradient` for what a graph of many more does in torch 2.14."""


class InThread(threading.local):
    """What each thread has of its own: DataParallel runs each replica in a thread that it makes for one forward."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}
        """By the number of a layer's hook."""


class State:
    """Of one watch. Holds no module and no tensor of the model."""

    def __init__(
        self, *, every: int = 1, scaler: GradScaler | None = None, device_path: bool = False
    ) -> None:
        self.me = weakref.ref(self)
        """For what may outlive the watch."""
        self.every = every
        self.sampling = True
        """Whether this step is measured."""
        self.training_pass = False
        """Whether the model's last forward recorded gradients: what runs without them inside is a checkpoint then."""
        self.passes = 0
        """Grows with each forward and each step: a layer counts its calls anew then."""
        self.training_passes = 0
        self.forwards = 0
        """Of the model itself, until now."""
        self.step = 0
        self.in_thread = InThread()
        self.counts_zeros = True
        """Whether zeros are counted in this step: they cost PyTorch's operators as much as all the rest."""
        self.compiled: set[int] = set()
        """Layers that run as compiled code: hooks that come and go would have it compiled anew."""
        self.gradients = 0
        """Hooked in this step; those beyond `MOST_GRADIENTS` are counted only."""
        self.whole_inputs: set[int] = set()
        """Numbers of the model's inputs that are indices or the like."""
        self.of_leaves: list[RemovableHandle] = []
        """Hooks on gradients of parameters that a layer gave as its output: they would stay."""
        self.keys = KeyTable()
        self.scale = Scale(scaler)
        self._device_path = device_path
        self._kernel: Kernel | None = None
        self._host = HostRows()
        self._devices: dict[torch.device, DeviceRows] = {}
        self._look_for_kernel()

    def begin_pass(self, *, training: bool) -> None:
        """The model's forward begins."""
        self.passes += 1
        self.forwards += 1
        self.training_pass = training
        if training:
            self.training_passes += 1
            self.scale.begin_pass()

    def measure(self, tensor: Tensor, number: int, *, zeros: bool) -> str | None:
        """Write this tensor's row; why not, in a few words, where it cannot be. On a device nothing waits.

        The usual tensor is asked and measured in this one function, without others in between: the caches hold the
        model's data, not ours, so that here each call of Python's costs some microseconds.
        """
        compiled = self._kernel
        if (
            compiled is not None
            and type(tensor) in PLAIN
            and tensor.is_cpu
            and (kind := TYPES.get(tensor.dtype)) is not None
            and tensor.layout is _STRIDED
            and tensor.is_contiguous()
            and not (tensor.is_nested or tensor.is_neg() or is_functorch_wrapped_tensor(tensor))
            and not _is_functional(tensor)
        ):
            count, address = tensor.numel(), tensor.data_ptr()
            row = self._host.claim(number + self.scale.tag)
            write = compiled.holding if count <= SHORT else compiled.releasing
            write(address, count if address else 0, kind, 1, zeros, row)
            return None
        if (why := refusal(tensor)) is not None:
            return why
        if tensor.is_cpu and not self._device_path:
            host_row(tensor, self._host.claim(number + self.scale.tag), zeros and self.counts_zeros)
        else:
            device_row(tensor, self._rows_on(tensor.device).claim(number + self.scale.tag), zeros)
        return None

    def _rows_on(self, device: torch.device) -> DeviceRows:
        rows = self._devices.get(device)
        return self._devices.setdefault(device, DeviceRows(device)) if rows is None else rows

    def now(self) -> Rows:
        """This step's rows until now, without scale and passes undone. Waits for devices."""
        rows = [self._host.now(), *(each.now() for each in self._devices.values())]
        numbers = np.concatenate([each for each, _ in rows]) % PASSES
        return numbers, np.concatenate([each for _, each in rows])

    def first_nonfinite_now(self, *, wait: bool) -> Key | None:
        """Which of this step's rows until now is the first that is not finite; `wait`: those on devices, too."""
        of = [self._host, *(self._devices.values() if wait else ())]
        for rows in of:
            numbers, raw = rows.now()
            bad = np.flatnonzero(raw[:, NONFINITE] > 0)
            if len(bad):
                return self.keys[int(numbers[bad[0]]) % PASSES]
        return None

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
        self.drop_leaves()
        self.sampling = self.step % self.every == 0
        self._look_for_kernel()
        self.counts_zeros = self._kernel is not None or self.step % (ZEROS_EVERY * self.every) == 0

    def drop_leaves(self) -> None:
        """Take the hooks off parameters."""
        while self.of_leaves:
            self.of_leaves.pop().remove()

    def _look_for_kernel(self) -> None:
        self._kernel = None if self._device_path else kernel.found().kernel

    @property
    def reads_late(self) -> bool:
        """Whether a step's rows are read when the next one ends: where a device is involved."""
        return bool(self._devices)
