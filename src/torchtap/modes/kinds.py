"""What train and eval mode change in a module: one table, most special class first.

Read from the forward methods of torch 2.14.1's `torch/nn/modules` and the ATen operators that they call.

>>> what_mode_changes(nn.Dropout(0.2)), what_mode_changes(nn.Dropout(0.0)), what_mode_changes(nn.Linear(2, 2))
('train: zeroes inputs (p=0.2)', '', '')
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm


@dataclass(frozen=True, slots=True)
class Kind:
    """Modules that read their mode in one way. `text` is filled from the module's attributes."""

    classes: tuple[type[nn.Module], ...]
    applies: Callable[[Any], bool]
    text: str


def _always(_: nn.Module) -> bool:
    return True


KINDS: tuple[Kind, ...] = (
    Kind((_DropoutNd,), lambda m: m.p > 0, "train: zeroes inputs (p={m.p:g})"),
    # Without running statistics both modes use those of the batch.
    Kind((_BatchNorm,), lambda m: m.running_mean is not None, "train: batch statistics, running ones move"),
    Kind((_InstanceNorm,), lambda m: m.track_running_stats, "train: own statistics, running ones move"),
    Kind((nn.RReLU,), lambda m: m.lower != m.upper, "train: random slope ({m.lower:g} to {m.upper:g})"),
    Kind(
        (nn.RNNBase,),
        lambda m: m.dropout > 0 and m.num_layers > 1,
        "train: dropout between layers (p={m.dropout:g}), cuDNN's reserve",
    ),
    Kind((nn.RNNBase,), _always, "train: cuDNN's reserve"),  # what its backward needs
    Kind(
        (nn.MultiheadAttention,),
        lambda m: m.dropout > 0,
        "train: attention dropout (p={m.dropout:g}); eval: fused path under no_grad",
    ),
    Kind(
        (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder),
        _always,
        "eval: fused path under no_grad",
    ),
)


def what_mode_changes(module: nn.Module) -> str:
    """What the mode changes in this module itself, children left out; "" for nothing that is known.

    Classes of other packages are known to read their mode if their own `forward` names `self.training`.
    """
    for kind in KINDS:
        if isinstance(module, kind.classes) and kind.applies(module):
            return kind.text.format(m=module)
    return "its forward reads self.training" if _reads_training(type(module)) else ""


def _reads_training(cls: type[nn.Module]) -> bool:
    if cls.__module__.partition(".")[0] == "torch":
        return False  # those that read it are in the table
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return code is not None and "training" in code.co_names
