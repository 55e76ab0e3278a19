"""Whether somebody has written to a module's parameters: an optimizer, or a moving average."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from torchtap.modes._walk import all_parameters

_PARAMETERS = 8  # of a module, so many are looked at
_NUMBERS = 8  # of each, so many


class Weights:
    """A few numbers of a module's parameters, as they are now.

    Autograd's count of writes does not tell of `parameter.data.mul_()` and `parameter.data = ...`, as many moving
    averages have it. Comparing numbers waits for a GPU, so that is done last, and rarely.
    """

    def __init__(self, module: nn.Module) -> None:
        self._kept = [
            (weakref.ref(each), _writes(each), each.data_ptr(), _numbers(each))
            for each in [each for each in all_parameters(module) if _is_plain(each)][:_PARAMETERS]
        ]

    def moved(self) -> bool:
        """Whether one of them has been written to since."""
        there = [
            (parameter, writes, place, numbers)
            for each, writes, place, numbers in self._kept
            if (parameter := each()) is not None
        ]
        if any(_writes(each) != writes or each.data_ptr() != place for each, writes, place, _ in there):
            return True
        return not _captures() and any(
            not torch.equal(_numbers(each), was) for each, _, _, was in there if _is_plain(each)
        )


def _is_plain(parameter: Tensor) -> bool:
    """Not sharded over ranks, not fake, not without a shape or memory: those would do more than be read."""
    if type(parameter) is not nn.Parameter or parameter.device.type == "meta":
        return False
    return parameter.numel() > 0 and parameter.untyped_storage().nbytes() > 0


def _writes(parameter: Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


def _numbers(parameter: Tensor) -> Tensor:
    with torch.no_grad():
        row = parameter.detach()
        while row.dim() > 1:
            row = row[0]
        return row[:_NUMBERS].clone() if row.dim() else row.clone()


def _captures() -> bool:
    """Whether a CUDA graph is being captured: nothing may be read meanwhile."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
