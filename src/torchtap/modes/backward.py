"""`check_backward(loss)`: which RNN calls would make backward raise on cuDNN, told before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchtap.modes._blame import blame, calls_of
from torchtap.modes._findings import CallFinding


@dataclass(frozen=True, slots=True, repr=False)
class BackwardReport:
    """What `check_backward` found. False when all is well; prints one line a call."""

    findings: tuple[CallFinding, ...]
    calls: int
    """RNN calls in the graph that follow, or were seen to follow, cuDNN's rule."""

    def __bool__(self) -> bool:
        return bool(self.findings)

    def __str__(self) -> str:
        return "\n".join(finding.line for finding in self.findings) or f"well: {self.calls} RNN calls"

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {"schema": 1, "calls": self.calls, "findings": [each.to_dict() for each in self.findings]}


def check_backward(loss: Tensor, model: nn.Module | None = None) -> BackwardReport:
    """Tell, without running backward, which RNN calls would make it raise on cuDNN."""
    models = () if model is None else (model,)
    reached = list(nodes([loss]))
    calls = sum(suspect.follows_rule for suspect in calls_of(reached))
    return BackwardReport(tuple(blame(reached, models)), calls)


def nodes(tensors: Sequence[Tensor]) -> Iterator[Any]:
    """Every autograd node that backward from these tensors reaches, each once."""
    todo = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo.extend(before for before, _ in node.next_functions)
