"""Modules that a model holds but `train()` and `eval()` do not reach, as they are not registered in it.

Registered is what was set as an attribute of a module, or added to an `nn.ModuleList` and its like. A module in a plain
list, dict or other object is left out by `train()`, `eval()`, `parameters()`, `state_dict()` and `to()` alike.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from torchtap._findings import Finding, Severity
from torchtap.modes._overrides import trains_by_hand
from torchtap.modes._walk import named_modules, parameters
from torchtap.modes.kinds import what_mode_changes

_DEPTH = 3
"""Containers within containers that are looked into. More is not seen in models."""
_ITEMS = 1000
"""Items of one container that are looked at: no list of modules is longer, but a replay buffer is."""
_LOOKED_AT = 5000
"""Items of one attribute that are looked at, on all levels together."""
_OWN = frozenset(vars(nn.Module()))  # where nn.Module keeps what is registered, and hooks
_CONTAINERS = (list, tuple, set, frozenset, deque)


class Hidden(NamedTuple):
    """A module that is held by a module of the tree, and is not part of the tree."""

    holder: nn.Module
    path: str
    """The holder's, as in `named_modules()`."""
    name: str
    """How the holder gets at it, such as `blocks[0]`."""
    module: nn.Module


def hidden_modules(models: Sequence[nn.Module]) -> list[Hidden]:
    """What the modules of these models hold, registered in none of them; each once, without what lies below it.

    Left out is what holds one of the models itself: a way back to the parent is often hidden like this on purpose.
    """
    tree = {id(module) for model in models for _, module in named_modules(model)}
    roots = {id(model) for model in models}
    found: list[Hidden] = []
    known: set[int] = set()
    for model in models:
        for path, holder in named_modules(model):
            for name, module in _held(holder, tree):
                if id(module) in known:
                    continue
                below = {id(each) for _, each in named_modules(module)}
                known |= below
                if not below & roots:
                    found.append(Hidden(holder, path, name, module))
    return found


def _held(holder: nn.Module, tree: Set[int]) -> Iterator[tuple[str, nn.Module]]:
    """The modules in attributes of `holder` that are not in the tree. Its class's attributes too: one for all."""
    if isinstance(holder, torch.jit.ScriptModule):
        return  # what it holds besides is TorchScript's own
    attributes = [(name, value) for name, value in vars(holder).items() if name not in _OWN]
    for cls in type(holder).__mro__:
        if cls.__module__.partition(".")[0] == "torch" or cls is object:
            continue
        attributes += [(name, value) for name, value in vars(cls).items() if not name.startswith("__")]
    for name, value in attributes:
        if isinstance(value, (nn.Module, *_HOLDERS)) or _is_plain_object(value):
            for where, module in _inside(value, name, _DEPTH, iter(range(_LOOKED_AT))):
                if id(module) not in tree and not trains_by_hand(holder, name):
                    yield where, module


def _inside(value: object, name: str, depth: int, budget: Iterator[int]) -> Iterator[tuple[str, nn.Module]]:
    """The modules in `value`, each with the expression that gets at it."""
    if isinstance(value, nn.Module):
        yield name, value
    elif depth:
        for more, item in _items(value):
            if next(budget, None) is None:
                return
            yield from _inside(item, name + more, depth - 1, budget)


def _items(value: object) -> Iterable[tuple[str, object]]:
    """What a container, or another object that may hold a module, has in it."""
    if isinstance(value, Mapping):
        return [(f"[{key!r:.40}]", item) for key, item in islice(value.items(), _ITEMS)]
    if isinstance(value, _CONTAINERS):
        return [(f"[{index}]", item) for index, item in enumerate(islice(value, _ITEMS))]
    if isinstance(value, functools.partial):
        return [
            (".func", value.func),
            *((".args", each) for each in value.args),
            (".keywords", value.keywords),
        ]
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__)]
    if isinstance(value, FunctionType):  # a lambda over a module
        return [(".__closure__", content) for content in _cells(value)]
    if _is_plain_object(value):
        return [(f".{name}", item) for name, item in _fields(value)]
    return ()


_HOLDERS = (*_CONTAINERS, Mapping, functools.partial, MethodType, SimpleNamespace)


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _fields(value: Any) -> list[tuple[str, object]]:
    if dataclasses.is_dataclass(value) and not hasattr(value, "__dict__"):  # with slots
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return list(islice(vars(value).items(), _ITEMS))


def _is_plain_object(value: object) -> bool:
    """Whether it is an object of the user's own, such as a dataclass, that may hold a module."""
    cls = type(value)
    if isinstance(value, (type, nn.Module, torch.Tensor)):
        return False
    if isinstance(value, (SimpleNamespace, FunctionType)):
        return True
    if cls.__module__.partition(".")[0] in _NOT_LOOKED_INTO:
        return False
    return hasattr(value, "__dict__") or dataclasses.is_dataclass(value)


_NOT_LOOKED_INTO = frozenset(
    {"builtins", "torch", "numpy", "weakref", "threading", "logging", "collections", "types"}
)


def unregistered(
    models: Sequence[nn.Module], *, only: nn.Module | None = None
) -> Iterator[tuple[nn.Module, Finding]]:
    """`module.unregistered`: for each module that holds others out of reach, itself and a finding.

    With `only`, nothing but the one that holds this module.
    """
    groups: dict[int, list[Hidden]] = {}
    for each in hidden_modules(models):
        groups.setdefault(id(each.holder), []).append(each)
    for group in groups.values():
        if only is not None and not any(
            only is below for each in group for _, below in named_modules(each.module)
        ):
            continue
        matter = [each for each in group if _matters(each.module)]
        meant = [each for each in matter if _is_meant(each.module)]
        if doubtful := [each for each in matter if each not in meant]:
            yield doubtful[0].holder, _unregistered(doubtful, Severity.WARN)
        if meant:
            yield meant[0].holder, _unregistered(meant, Severity.INFO)


def _moded(module: nn.Module) -> list[nn.Module]:
    return [each for _, each in named_modules(module) if what_mode_changes(each)]


def _weights(module: nn.Module) -> list[nn.Parameter]:
    return [weight for _, each in named_modules(module) for weight in parameters(each)]


def _matters(module: nn.Module) -> bool:
    """Whether any mode, optimizer or checkpoint misses it."""
    return bool(_moded(module) or _weights(module))


def _is_meant(module: nn.Module) -> bool:
    """Hidden on purpose, as a rule: a teacher in eval mode, kept out of the checkpoint; frozen weights."""
    moded = _moded(module)
    if any(getattr(each, "training", True) for each in moded):
        return False
    return bool(moded) or not any(weight.requires_grad for weight in _weights(module))


def _unregistered(group: list[Hidden], severity: Severity) -> Finding:
    moded = any(_moded(each.module) for each in group)
    weights = any(_weights(each.module) for each in group)
    first = group[0]
    names = ", ".join(f"{each.name} ({type(each.module).__name__})" for each in group[:3])
    more = f" and {len(group) - 3} more" * (len(group) > 3)
    is_, their = ("is", "its") if len(group) == 1 else ("are", "their")
    missed = ["train() and eval() pass by"] if moded else []
    missed += [f"{their} parameters are not in parameters() and state_dict()"] if weights else []
    return Finding(
        id="module.unregistered",
        severity=severity,
        where=first.path,
        seen=f"{names}{more} {is_} not registered",
        cause=f"only modules set as attributes or kept in an nn.ModuleList or nn.ModuleDict are registered: "
        f"{'; '.join(missed)}",
        remedy="nothing if hidden on purpose (a frozen teacher in eval mode), "
        "else nn.ModuleList, nn.ModuleDict or an attribute of its own",
    )
