"""What train and eval mode change in a module: one table, most special class first.

Read from the forward methods of torch 2.14.1's `torch/nn/modules` and the ATen operators that they call.

>>> what_mode_changes(nn.Dropout(0.2)), what_mode_changes(nn.Dropout(0.0)), what_mode_changes(nn.Linear(2, 2))
('train: zeroes inputs (p=0.2)', '', '')
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from torch import nn
from torch.nn.modules import activation, batchnorm, dropout, instancenorm, rnn, transformer
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

    Classes that are not in the table are known to read their mode if their own `forward`, or a method of theirs that
    it calls, names `self.training`. Never raises: what cannot be read is said to be so.
    """
    if type(module).__module__.startswith(_INFERENCE_ONLY):
        return ""
    for kind in KINDS:
        if isinstance(module, kind.classes):
            try:
                if kind.applies(module):
                    return kind.text.format(m=module)
            except (AttributeError, TypeError, ValueError):  # an attribute that is gone, or not a number
                return f"cannot be read: {_odd(module)}"
    if any(_is_spectral_norm(hook) for hook in (vars(module).get("_forward_pre_hooks") or {}).values()):
        return SPECTRAL_NORM
    reads = _reads_training(type(module))  # type: ignore[arg-type]  # mypy takes nn.Module for not hashable
    return "its forward reads self.training" if reads else ""


_INFERENCE_ONLY = tuple(
    f"torch.ao.nn.{name}"
    for name in (
        "quantized.modules.batchnorm",
        "quantized.modules.dropout",
        "quantized.modules.normalization",
        "intrinsic.quantized.",
    )
)
"""Quantised ones that descend from those of the table, and do in both modes what eval does."""
SPECTRAL_NORM = "train: a power iteration moves its vectors"


def _odd(module: nn.Module) -> str:
    """The attributes that the table asks for, as far as they are no numbers."""
    asked = {
        name: getattr(module, name, "missing") for name in _ASKED if hasattr(type(module), "__constants__")
    }
    odd = [
        f"{name}={value!r:.20}" for name, value in asked.items() if value is None or isinstance(value, str)
    ]
    return (
        ", ".join(each for each in odd if "'missing'" not in each) or "an attribute of its class is missing"
    )


_ASKED = ("p", "dropout", "lower", "upper", "num_layers")


def _is_spectral_norm(hook: object) -> bool:
    # The older nn.utils.spectral_norm is no module but a hook. Its module's name is hidden by the function's.
    return type(hook).__module__ == "torch.nn.utils.spectral_norm"


@cache
def _reads_training(cls: type[nn.Module]) -> bool:
    forward = inspect.getattr_static(cls, "forward", None)
    if forward in _FORWARDS:
        return False  # the table said that here it changes nothing
    seen: set[CodeType] = set()
    todo = [_code(forward)]
    for code in todo:  # grows by what it calls of its own class, one level deep
        if code is None or code in seen:
            continue
        seen.add(code)
        if "training" in code.co_names:
            return True
        if len(todo) == 1:
            todo += [_code(inspect.getattr_static(cls, name)) for name in code.co_names if _is_own(cls, name)]
    return False


def _is_own(cls: type[nn.Module], name: str) -> bool:
    return not hasattr(nn.Module, name) and callable(inspect.getattr_static(cls, name, None))


def _code(method: object) -> CodeType | None:
    method = getattr(method, "__func__", method)
    code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
    return code if isinstance(code, CodeType) else None


_IN_TABLE = tuple(cls for kind in KINDS for cls in kind.classes)
_FORWARDS = frozenset(
    value.forward
    for module in (activation, batchnorm, dropout, instancenorm, rnn, transformer)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, _IN_TABLE)
)
