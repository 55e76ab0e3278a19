"""Autograd's graph, looked at: nothing is run, unpacked or kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

_ALWAYS_SAVED = {
    "CudnnRnnBackward": "_raw_saved_weight",
    "MiopenRnnBackward": "_raw_saved_weight",
    "MkldnnRnnLayerBackward": "_raw_saved_input",
    **dict.fromkeys(
        (
            "TanhBackward",
            "SigmoidBackward",
            "ExpBackward",
            "ReluBackward",
            "LogSoftmaxBackward",
            "SoftmaxBackward",
        ),
        "_raw_saved_result",
    ),
}
"""What a node holds until a backward has run through it, for some that are common; others save this or that."""


AT_MOST = 20_000
"""Nodes looked at. Freeing a chain of more than some 40,000 that Python has looked at overflows the stack in torch 2.14
(not in 2.9), as it frees one node within the other."""


def nodes(
    tensors: Sequence[Tensor | GradientEdge], inputs: Sequence[Tensor | GradientEdge] = ()
) -> list[Any]:
    """The nodes that backward from these tensors runs, each once, and `AT_MOST` so many.

    With `inputs`, as autograd has it: the nodes on a way to them; that which made an input only passes its gradient on.
    """
    start = [node for each in tensors if (node := node_of(each)) is not None]
    seen = dict.fromkeys(
        start
    )  # a set that keeps its order; holds the nodes, or their Python objects would change
    todo = list(seen)
    if not inputs:
        while todo and len(seen) < AT_MOST:
            for before, _ in todo.pop().next_functions:
                if before is not None and before not in seen:
                    seen[before] = None
                    todo.append(before)
        return list(seen)
    after: dict[Any, list[Any]] = {}
    while todo and len(seen) < AT_MOST:
        node = todo.pop()
        for before, _ in node.next_functions:
            if before is None:
                continue
            after.setdefault(before, []).append(node)
            if before not in seen:
                seen[before] = None
                todo.append(before)
    todo = [node for each in inputs if (node := _edge(each).node) in after]
    needed = set()
    while todo:
        for node in after.get(todo.pop(), ()):
            if node not in needed:
                needed.add(node)
                todo.append(node)
    return [node for node in seen if node in needed]


_ASIDE = 4
"""Nodes between a weight and what uses it: a cast, a transpose, a view."""


def leaves(reached: Sequence[Any]) -> Iterator[Tensor]:
    """The leaves whose values went into these nodes, also where backward does not run on to them."""
    known = set(reached)
    todo = [(node, 0) for node in reached]
    while todo:
        node, aside = todo.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        for before, _ in node.next_functions if aside < _ASIDE else ():
            if before is not None and before not in known:
                known.add(before)
                todo.append((before, aside + 1))


def node_of(tensor: Tensor | GradientEdge) -> Any:
    """The node that made it; None for a leaf."""
    return tensor.node if isinstance(tensor, GradientEdge) else tensor.grad_fn


def _edge(each: Tensor | GradientEdge) -> GradientEdge:
    return each if isinstance(each, GradientEdge) else get_gradient_edge(each)


def is_freed(node: Any) -> bool:
    """Whether a backward has run through this node and freed it; False also where that cannot be told.

    Looks only where the answer costs nothing: unpacking what a node has saved could run a user's hooks. In torch 2.9
    only cuDNN's own nodes answer so.
    """
    kept = _ALWAYS_SAVED.get(node.name().rstrip("0123456789"))
    if kept is None:
        return False
    try:
        saved = getattr(node, kept, ())
    except RuntimeError:  # a list of tensors, freed
        return True
    return getattr(saved, "data", saved) is None
