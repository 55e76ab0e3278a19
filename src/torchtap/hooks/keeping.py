"""How the value of a tensor is kept: detached, in memory of its own, on the device that was asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtap.hooks.gradient import is_transformed


class OverwrittenError(RuntimeError):
    """A value that was kept without a copy has been written to in place since: it is no longer what the layer gave."""


class Kept:
    """The value of a tensor as it was, without its graph."""

    __slots__ = ("_event", "_value", "_version", "shared")

    def __init__(self, tensor: Tensor, device: torch.device | None, copy: bool) -> None:
        if torch.is_inference_mode_enabled():  # what is made there can be used in no graph later
            with torch.inference_mode(False):
                self._keep(tensor.detach(), device, copy)
        else:
            self._keep(tensor.detach(), device, copy)

    def _keep(self, value: Tensor, device: torch.device | None, copy: bool) -> None:
        self._event: Any = None
        self.shared = False
        """Whether it is the model's own memory."""
        if device is not None and device != value.device:
            value, self._event = _moved(value, device)
        elif copy:
            value = value.clone()
        else:
            self.shared = True
        self._value = value
        self._version = _version(value)

    def read(self, where: str) -> Tensor:
        """The value. Waits for a copy that is under way; raises OverwrittenError where it is no longer the same."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        if self.shared and _version(self._value) != self._version:
            raise OverwrittenError(
                f"{where} was written to in place after it was taken, and no copy was made (clone=False). "
                'Leave out clone=False, or take clone="auto"'
            )
        return self._value

    @property
    def nbytes(self) -> int:
        """What its values take, or in the model's memory would."""
        return self._value.numel() * self._value.element_size() if self._value.layout is torch.strided else 0

    @property
    def device(self) -> torch.device:
        return self._value.device


def refusal(tensor: Tensor) -> str | None:
    """Why the value of this tensor cannot be kept, in words; None where it can."""
    if is_transformed(tensor):
        return "it is inside a transform of torch.func (vmap, grad, ...): its values may not leave it"
    if _in_cuda_graph(tensor):
        return (
            "a CUDA graph was being recorded: hooks do not run at its replays, which write to the same memory"
        )
    return None


def _in_cuda_graph(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else int(value._version)


def _moved(value: Tensor, device: torch.device) -> tuple[Tensor, Any]:
    """The value on another device, and the event that tells that it has arrived; None where it has."""
    if value.device.type != "cuda" or device.type != "cpu" or value.layout is not torch.strided:
        return value.to(device), None
    # To pinned memory the GPU copies by itself, behind the kernels that are still to run; nobody waits for it here.
    there = torch.empty_like(value, device=device, pin_memory=True).copy_(value, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(value.device))
    return there, event
