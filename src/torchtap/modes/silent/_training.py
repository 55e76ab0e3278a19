"""Which of a guard's models an optimizer trains, and which of their parts."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.modes._graph import nodes
from torchtap.modes._observer import Backward
from torchtap.modes._walk import all_parameters, children
from torchtap.modes._watched import Watched

_trained: weakref.WeakKeyDictionary[
    Watched, weakref.WeakKeyDictionary[Optimizer, tuple[int, list[weakref.ref[nn.Module]]]]
] = weakref.WeakKeyDictionary()


def parameter_ids(optimizer: Optimizer) -> frozenset[int]:
    """By id, the parameters that it changes."""
    return frozenset(id(each) for group in optimizer.param_groups for each in group["params"])


def trained_by(watched: Watched, optimizer: Optimizer) -> list[nn.Module]:
    """The guarded models of which it holds a parameter. Looked up anew when it has got more of them."""
    known = _trained.setdefault(watched, weakref.WeakKeyDictionary())
    size = sum(len(group["params"]) for group in optimizer.param_groups)
    kept = known.get(optimizer)
    if kept is None or kept[0] != size:
        ids = parameter_ids(optimizer)
        models = [weakref.ref(each) for each in watched.models if holds_any(all_parameters(each), ids)]
        kept = known[optimizer] = size, models
    return [model for each in kept[1] if (model := each()) is not None]


def holds_any(parameters: Iterable[Tensor], ids: Collection[int]) -> bool:
    """Whether one of these is trained, and asks for a gradient."""
    return any(each.requires_grad and id(each) in ids for each in parameters)


def trainable_ids(model: nn.Module) -> frozenset[int]:
    """By id, the parameters that ask for a gradient."""
    return frozenset(id(each) for each in all_parameters(model) if each.requires_grad)


def gradients(model: nn.Module) -> list[tuple[int, int] | None]:
    """Of each parameter, which gradient it has, and how often that was written to: equal means that none came."""
    # Not by the graph: see _graph.AT_MOST.
    return [
        None if (grad := each.grad) is None else (id(grad), grad._version) for each in all_parameters(model)
    ]


def asks_for_more(run: Backward, *, trained: Collection[int] = ()) -> bool:
    """Whether it gives gradients to a tensor that is no parameter: to an input, a perturbation, outputs that were kept.

    `trained`: by id, tensors that an optimizer changes.
    """
    leaves = run.inputs or [getattr(node, "variable", None) for node in nodes(run.tensors)]
    return any(
        isinstance(each, Tensor) and not isinstance(each, nn.Parameter) and id(each) not in trained
        for each in leaves
    )


def frozen_parts(model: nn.Module, ids: Collection[int]) -> set[int]:
    """By id, the modules that do not train: none of their parameters is among `ids`.

    A module without parameters, such as a dropout, belongs to what holds it.
    """
    frozen: set[int] = set()
    seen: set[int] = set()
    todo = [(model, True)]  # and whether what holds it trains
    while todo:
        module, holder_trains = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        parameters = all_parameters(module)
        trains = holds_any(parameters, ids) if parameters else holder_trains
        if not trains:
            frozen.add(id(module))
        todo += [(child, trains) for _, child in reversed(list(children(module)))]
    return frozen
