"""`check_backward(loss)`: which RNN calls would make backward raise on cuDNN, told before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchtap.modes._findings import CallFinding, Severity
from torchtap.modes._observer import KEY, RnnCall


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
    findings = []
    calls = 0
    seen: set[int] = set()
    for node in nodes([loss]):
        call: RnnCall | None = node.metadata.get(KEY)
        train = getattr(node, "_saved_train", None) if "CudnnRnn" in node.name() else None
        if call is not None and call.serial in seen:
            continue
        if call is not None:
            seen.add(call.serial)
            train = call.training if call.cudnn else None
        if train is None:
            continue
        calls += 1
        if not train:
            findings.append(_finding(call, model))
    return BackwardReport(tuple(findings), calls)


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


def _finding(call: RnnCall | None, model: nn.Module | None) -> CallFinding:
    names = {id(module): name for name, module in model.named_modules()} if model is not None else {}
    module = call.module() if call and call.module else None
    return CallFinding(
        id="rnn.eval_backward",
        severity=Severity.ERROR,
        where=names.get(id(module), "?"),
        seen="its forward ran in eval mode",
        cause="cuDNN keeps what backward needs only when the forward runs in train mode",
        remedy="train() before the forward",
        call=call.number if call else None,
        forward=str(call.stack.here) if call else None,
        set_by=str(call.change.setter.stack.here) if call and call.change else None,
    )
