"""Which layers were hooked and never ran as modules, and why: `coverage(model, layers, calls)`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from torchtap.hooks.lifecycle import refusal
from torchtap.hooks.names import Place, never_runs, places
from torchtap.hooks.selection import Layer


class Unseen(NamedTuple):
    """A layer of which nothing, or not the usual, was seen."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Situation:
    """What is known of a layer that never ran."""

    layer: Layer
    parent: Place | None
    """What holds it: the nearest that has a forward; None for the model itself."""
    name: str
    """What it is called there."""
    parent_ran: bool
    model_ran: bool
    uses: frozenset[str]
    """What the parent's forward takes of it by name: "forward", "weight"; "()" where it calls it."""
    used: bool | None
    """Whether the parent's forward mentions it at all; None where that cannot be read."""

    @property
    def holder(self) -> str:
        if self.parent is None:
            return "the model"
        return self.parent.name or type(self.parent.module).__name__


def _refused(at: _Situation) -> bool:
    return refusal(at.layer) is not None


def _in_attention(at: _Situation) -> bool:
    return at.parent is not None and isinstance(at.parent.module, nn.MultiheadAttention)


def _weights(at: _Situation) -> frozenset[str]:
    return at.uses & set(dict(at.layer.module.named_parameters(recurse=False)))


# The first that holds is the reason.
REASONS: tuple[tuple[Callable[[_Situation], object], str], ...] = (
    (
        lambda at: never_runs(at.layer.module),
        "{kind} holds modules or parameters and is never called: watch what it holds",
    ),
    (_refused, "not hooked: {refusal}"),
    (
        _in_attention,
        "MultiheadAttention uses its weights in a fused function and does not call it: watch {holder} instead",
    ),
    (
        lambda at: not at.model_ran,
        "nothing of the model ran while it was watched: another object was called (a copy, an export, a model that "
        "was compiled before), or its forward directly",
    ),
    (
        lambda at: "forward" in at.uses,
        "{holder} calls self.{name}.forward(...), which runs no hooks: call self.{name}(...)",
    ),
    (
        _weights,
        "{holder} uses self.{name}.{weights} in a function of its own and does not call self.{name}",
    ),
    (
        lambda at: at.used is False and at.parent_ran,
        "{holder} does not mention self.{name} in its forward: it is not used, or used by something else",
    ),
    (
        lambda at: not at.parent_ran,
        "not reached: {holder}, which holds it, did not run either",
    ),
    (
        lambda _: True,
        "{holder} ran without it: it was skipped this time, its forward was called directly, or its weights were used "
        "by a fused or functional operation",
    ),
)
FUSED = (
    "while it or a part of it is hooked, PyTorch does not use its fused kernel (eval mode, no gradients): it runs "
    "layer by layer, and results may differ in the last bits. torch.backends.mha.set_fastpath_enabled(False) makes "
    "both runs equal"
)


def coverage(model: nn.Module, layers: Iterable[Layer], calls: Mapping[str, int]) -> list[Unseen]:
    """What watching did not see of `layers`, each with the reason as far as it is known.

    `calls` is how often each was seen to run, by name; a name that is missing was not. First come those that never ran,
    in the order of `layers`, then those that run with another kernel because they are hooked. Reads the source of
    forwards where there is any; runs and changes nothing.

    >>> from torchtap.hooks import select
    >>> net = nn.Sequential(nn.Linear(1, 1), nn.MultiheadAttention(2, 1))
    >>> for unseen in coverage(net, select(net, ["*", "**.out_proj"]), {"0": 3, "1": 3}):
    ...     print(unseen.name, "|", unseen.reason)
    1.out_proj | MultiheadAttention uses its weights in a fused function and does not call it: watch 1 instead
    """
    layers = list(layers)
    parents = _parents(model)
    ran = {name for name, count in calls.items() if count}
    above = {name[:end] for name in ran for end, letter in enumerate(name) if letter == "."} | (
        {""} if ran else set()
    )
    unseen = [
        Unseen(layer.name, layer.kind, _reason(layer, parents, ran | above))
        for layer in layers
        if layer.name not in ran
    ]
    return unseen + [
        Unseen(place.name, type(place.module).__name__, FUSED) for place in _slowed(model, layers, ran)
    ]


def _reason(layer: Layer, parents: Mapping[int, tuple[Place, str]], ran: set[str]) -> str:
    parent, name = parents.get(id(layer.module), (None, ""))
    used, uses = (
        (None, frozenset[str]()) if parent is None else _mentions(parent.module, name.partition(".")[0])
    )
    at = _Situation(layer, parent, name, parent is None or parent.name in ran, bool(ran), uses, used)
    text = next(text for holds, text in REASONS if holds(at))
    return text.format(
        kind=layer.kind,
        holder=at.holder,
        name=name,
        refusal=refusal(layer),
        weights=", ".join(sorted(_weights(at))),
    )


def _parents(model: nn.Module) -> dict[int, tuple[Place, str]]:
    """What holds each module and runs, and what the module is called there."""
    found: dict[int, tuple[Place, str]] = {}
    todo: list[tuple[Place, Place, str]] = []
    every = places(model)
    for place in every:
        if not never_runs(place.module) or place is every[0]:
            todo.extend((place, child, name) for name, child in place.children.items())
    while todo:
        holder, child, name = todo.pop()
        if id(child.module) in found:
            continue
        found[id(child.module)] = holder, name
        if never_runs(child.module):
            todo.extend((holder, below, f"{name}.{part}") for part, below in child.children.items())
    return found


def _mentions(module: nn.Module, name: str) -> tuple[bool | None, frozenset[str]]:
    """Whether the forward of a module mentions `self.<name>`, and what it takes of it."""
    if isinstance(module, torch.jit.ScriptModule):
        return None, frozenset()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return None, frozenset()
    mine = [node for node in ast.walk(tree) if _is_mine(node, name)]
    uses = {
        node.attr if isinstance(node, ast.Attribute) else "()"
        for node in ast.walk(tree)
        for inner in [node.value if isinstance(node, ast.Attribute) else getattr(node, "func", None)]
        if inner in mine
    }
    by_other_ways = any(
        isinstance(node, ast.Name) and node.id in ("getattr", "super") for node in ast.walk(tree)
    )
    calls_own = any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        and not isinstance(getattr(module, node.func.attr, None), nn.Module)
        for node in ast.walk(tree)
    )
    return (True if mine else None if by_other_ways or calls_own else False), frozenset(uses)


def _is_mine(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _slowed(model: nn.Module, layers: list[Layer], ran: set[str]) -> list[Place]:
    """The modules whose fused kernel is off because they, or a part of them, are hooked."""
    hooked = {id(layer.module) for layer in layers}
    return [
        place
        for place in places(model)
        if isinstance(place.module, nn.TransformerEncoderLayer)
        and not place.module.training
        and any(id(part) in hooked for part in place.module.modules())
        and (place.name in ran or any(name.startswith(f"{place.name}.") for name in ran))
    ]
