"""Where the mode matters, and how a finding tells of such modules."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from types import CodeType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from torchtap.modes._observer import Setter, code
from torchtap.modes._walk import children, modules
from torchtap.modes.kinds import what_mode_changes

SEEN_TO_RUN = (_DropoutNd, _BatchNorm, nn.RNNBase, nn.MultiheadAttention)
"""Classes whose calls the observer sees."""
_SWITCHES = frozenset({"train", "eval", "__init__"})
_readers: weakref.WeakKeyDictionary[type[nn.Module], bool] = weakref.WeakKeyDictionary()


def mode_matters(module: nn.Module) -> bool:
    """Whether train and eval mode differ here, children left out, while gradients are recorded.

    Of a user's class it is enough that any of its methods reads `training`.
    """
    changes = what_mode_changes(module)
    if changes:
        return not changes.startswith("eval:")  # a faster path without gradients, same values
    cls = type(module)
    known = _readers.get(cls)
    if known is None:
        known = _readers[cls] = _reads_training(cls)
    return known


def _reads_training(cls: type[nn.Module]) -> bool:
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "torch":
            return False
        for name, value in vars(base).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if name not in _SWITCHES and inspect.isroutine(function) and _names_training(function):
                return True
    return False


def _names_training(function: object) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)  # type: ignore[arg-type]
    return isinstance(code, CodeType) and "training" in code.co_names


def counted(parts: Iterable[nn.Module]) -> str:
    """Such as "2 Dropout, 1 BatchNorm2d"."""
    classes = Counter(type(module).__name__ for module in parts)
    return ", ".join(f"{number} {name}" for name, number in classes.most_common())


def _ids(parts: Iterable[nn.Module]) -> set[int]:
    """Users define `__eq__`, and then there may be no hash."""
    return {id(each) for each in parts}


def together(model: nn.Module, parts: Collection[nn.Module]) -> nn.Module:
    """The smallest part of the model that holds them all; the model itself where its own modules are all there."""
    best = model
    wanted = _ids(parts)
    while True:
        inner = next((child for _, child in children(best) if wanted <= _ids(modules(child))), None)
        if inner is None or wanted == _ids(each for each in modules(model) if mode_matters(each)):
            return best
        best = inner


def topmost(parts: Collection[nn.Module]) -> Iterator[nn.Module]:
    """Those of them that none of the others holds."""
    held = _ids(below for each in parts for below in modules(each) if below is not each)
    return (each for each in parts if id(each) not in held)


def told(setter: Setter) -> str:
    """Such as "`model.eval()` at train.py:31"."""
    place = setter.stack.here
    if place is None:
        return f"{code(setter.by, setter.training)} in code that cannot be named"
    return f"{code(setter.by, setter.training)} at {place}"
