"""train() and eval() on a traced module: only the flag changes."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._walk import mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._rule import Rule

_TRACED: type[Any] = torch.jit.TopLevelTracedModule  # type: ignore[attr-defined]
_OPERATORS = ("dropout", "batch_norm", "lstm", "gru", "rnn_tanh", "rnn_relu", "rrelu", "instance_norm")


class NoEffect(Rule):
    """`mode.no_effect`: a module made by torch.jit.trace has had its mode changed inside the guard.

    What it does was fixed when it was traced. Scripted modules read their mode,
    exported ones refuse train() and eval().
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._modes: list[tuple[weakref.ref[nn.Module], bool | None]] = []

    def entered(self) -> None:
        self._modes = [
            (weakref.ref(module), mode_of(module))
            for model in self.watched.models
            for module in _traced(model)
        ]

    def stepped(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        if self._modes:
            self._judge()

    def left(self) -> None:
        self._judge()
        self._modes = []

    def _judge(self) -> None:
        for reference, was in self._modes:
            module = reference()
            if module is None or module.training == was:
                continue
            now, before = ("train", "eval") if mode_of(module) else ("eval", "train")
            self.watched.report(
                Finding(
                    id="mode.no_effect",
                    severity=Severity.WARN,
                    where=self.watched.path(module) or "",
                    seen=f"a traced module whose flag was changed from {before} to {now} mode",
                    cause="torch.jit.trace keeps what dropout, batch norm and RNNs did when it was traced",
                    remedy=f"trace it in {now} mode too, or use the model itself or torch.jit.script",
                )
            )


def _traced(model: nn.Module) -> list[nn.Module]:
    """The outermost traced modules in which something depends on the mode."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in modules(model):
        if isinstance(module, _TRACED) and id(module) not in inside:
            inside |= {id(each) for each in modules(module)}
            text = str(module.inlined_graph)
            if any(f"aten::{name}" in text or f"aten::_{name}" in text for name in _OPERATORS):
                found.append(module)
    return found
