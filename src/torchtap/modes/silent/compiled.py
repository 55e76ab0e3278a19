"""Models that torch.compile has compiled: what is not seen of them."""

from __future__ import annotations

from torch import nn

from torchtap._findings import Finding, Severity
from torchtap.modes._walk import modules
from torchtap.modes.silent._rule import Rule


class Compiled(Rule):
    """`module.compiled`: an INFO, so that silence about such a model is not taken for its being well.

    Seen when the guard is entered, and when it is left. Not seen: `torch.compile(model)` kept beside a `model` that is
    guarded itself, for nothing leads from the model to it.
    """

    def entered(self) -> None:
        self._look()

    def left(self) -> None:
        self._look()

    def _look(self) -> None:
        for model in self.watched.models:
            compiled = next((each for each in modules(model) if _is_compiled(each)), None)
            if compiled is not None:
                self.watched.report(_finding(self.watched.path(compiled) or ""))


def _is_compiled(module: nn.Module) -> bool:
    """By `module.compile()`, or made by `torch.compile(module)`; nothing of the compiler is imported for that."""
    by_itself = module.__dict__.get("_compiled_call_impl") is not None
    return by_itself or any(each.__name__ == "OptimizedModule" for each in type(module).__mro__)


def _finding(where: str) -> Finding:
    return Finding(
        id="module.compiled",
        severity=Severity.INFO,
        where=where,
        seen="compiled by torch.compile: forwards of dropout, BatchNorm and attention inside are not seen",
        cause="compiled code does not pass where the guard looks; what it finds by forwards is unknown there, not good",
        remedy='a few steps with torch.compiler.set_stance("force_eager") show it; modes that an evaluation leaves '
        "behind, and RNN calls, are seen all the same",
    )
