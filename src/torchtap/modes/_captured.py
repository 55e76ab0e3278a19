"""RNN calls inside programs: what torch.export, torch.fx, torch.jit.trace and torch.jit.script made of a model.

They run without Python, or past the functions where the observer stands, so nobody watches them. The program itself
tells that it holds such a call, and its mode, unless that is read from the module at each forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchtap.modes import _rnn
from torchtap.modes._torch import script_graphs
from torchtap.modes._walk import parameters

_CLASSES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_TRAIN, _PACKED_TRAIN = 6, 7
"""Where the mode stands among the arguments of `aten::lstm` and its like."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One RNN call that a program holds."""

    module: nn.Module
    """Whose weights it uses, as far as the program tells; else the program itself."""
    class_name: str
    """Of what it was made of: "LSTM", "GRU" or "RNN"."""
    how: str
    """By what: "exported", "captured" (torch.fx), "traced", "scripted" or "frozen": each is a situation."""
    training: bool | None
    """The mode that it always runs in; None: the module's own at each forward."""


def captured_rnns(modules: Iterable[nn.Module]) -> list[Captured]:
    """The RNN calls of the programs among these modules, each module's once for each mode."""
    found: dict[Any, Captured] = {}
    for each in (call for module in modules for call in _of(module)):
        # By its weights: torch.export.unflatten keeps a second program of each module beside it.
        weights = tuple(map(id, parameters(each.module))) or id(each.module)
        found.setdefault((weights, each.training), each)
    return list(found.values())


def _of(module: nn.Module) -> Iterator[Captured]:
    if isinstance(module, torch.jit.ScriptModule):
        yield from _of_script(module)
    elif isinstance(graph := vars(module).get("_graph", vars(module).get("graph")), torch.fx.Graph):
        yield from _of_graph(module, graph)


def _of_graph(module: nn.Module, graph: torch.fx.Graph) -> Iterator[Captured]:
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "").partition(".")[
            0
        ]  # gru; of an operator's overload: gru.input
        if node.op != "call_function" or name not in _rnn.FUNCTIONS or hasattr(node.target, "__code__"):
            continue
        arguments = _rnn.by_name(node.args, node.kwargs)
        mode = arguments.get("train")
        yield Captured(
            _owner(module, arguments.get("params")),
            _CLASSES[name],
            "exported" if _is_exported(module) else "captured",
            mode if isinstance(mode, bool) else None,
        )


def _is_exported(module: nn.Module) -> bool:
    return "train" in vars(module) or type(module).__module__.startswith("torch.export")  # it refuses train()


def _owner(program: nn.Module, weights: Any) -> nn.Module:
    """The module in `program` that the first of these weights belongs to."""
    first = weights[0] if isinstance(weights, (list, tuple)) and weights else None
    if not isinstance(first, torch.fx.Node) or first.op != "get_attr":
        return program
    try:
        return program.get_submodule(str(first.target).rpartition(".")[0])
    except AttributeError:
        return program


def _of_script(module: torch.jit.ScriptModule) -> Iterator[Captured]:
    for graph in script_graphs(module):
        for name, class_name in _CLASSES.items():
            for node in graph.findAllNodes(f"aten::{name}"):
                inputs = list(node.inputs())
                packed = inputs[3].type().kind() != "BoolType"
                mode = inputs[_PACKED_TRAIN if packed else _TRAIN]
                fixed = bool(mode.toIValue()) if mode.node().kind() == "prim::Constant" else None
                yield Captured(module, class_name, _how(module, fixed), fixed)


def _how(module: torch.jit.ScriptModule, fixed: bool | None) -> str:
    if type(module).__name__ in ("TracedModule", "TopLevelTracedModule"):
        return "traced"
    return "scripted" if fixed is None else "frozen"
