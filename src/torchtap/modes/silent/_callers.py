"""Which module called what the observer saw run, and who lets it run without gradients as a part of training."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from types import FrameType

import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from torchtap.modes._frames import first_argument, outside_functional
from torchtap.modes._observer import Ran
from torchtap.modes._walk import modules
from torchtap.modes._watched import Watched

_TORCH = os.path.dirname(torch.__file__)  # noqa: PTH120  compared with co_filename, letter by letter
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep  # noqa: PTH118
_UPDATE_BN = inspect.unwrap(update_bn).__code__
# Forwards without gradients that are no evaluation: recomputed with them later, or made to look at the model.
_TRAINING = tuple(
    os.path.join(_TORCH, *path)  # noqa: PTH118
    for path in (
        ("utils", "checkpoint.py"),
        ("autograd", "function.py"),  # a custom function's forward: reversible layers, other checkpoints
        ("jit", "_trace.py"),
        ("onnx", ""),
        ("export", ""),
        ("fx", ""),
    )
)
_DEEPEST = 200


def callers(what: Ran, watched: Watched) -> Sequence[nn.Module]:
    """The guarded modules that may have made this call; more than one where they share the code of it.

    For a call of a function by the user's own code, only where that code reads `training`: a constant there is meant.
    Never reads the variables of the user's frames: see `_frames.stack_from`.
    """
    frame = outside_functional(what.frame)
    if frame is None:
        return ()
    code = frame.f_code
    if code.co_filename.startswith(_MODULES):
        module = first_argument(frame)
        return (module,) if isinstance(module, nn.Module) else ()
    if "training" not in code.co_names:
        return ()
    return [
        module
        for model in watched.models
        for module in modules(model)
        if getattr(inspect.unwrap(getattr(type(module), code.co_name, len)), "__code__", None) is code
    ]


def in_update_bn(frame: FrameType | None) -> bool:
    """Whether torch.optim.swa_utils.update_bn set the mode: it calls train(), which calls what is below."""
    looked_at = 0
    while frame is not None and looked_at < _DEEPEST:
        looked_at += 1
        if frame.f_code is _UPDATE_BN:
            return True
        frame = frame.f_back
    return False


def part_of_training(frame: FrameType | None) -> bool:
    """Whether a call without gradients is a part of training, or of torch.optim.swa_utils.update_bn."""
    looked_at = 0
    while frame is not None and looked_at < _DEEPEST:
        looked_at += 1
        code = frame.f_code
        if code is _UPDATE_BN or code.co_filename.startswith(_TRAINING):
            return True
        frame = frame.f_back
    return False
