"""What `torchtap.modes` finds about calls of RNNs."""

from __future__ import annotations

from dataclasses import dataclass

from torchtap._findings import Finding, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinding(Finding):
    """One thing found about one call of an RNN.

    `where` is its class where no path is known: no model was given, or the module is not part of it.
    """

    situation: str
    """Which of `_situations.SITUATIONS` it is."""
    class_name: str
    """Of the module: "LSTM"; what autograd's node tells where no module is known."""
    raises: bool
    """Whether backward raises here; False: only on cuDNN, this graph is one of a plain CPU."""
    call: int | None = None
    """1 for the first call of this module that was watched; None where the forward was not watched."""
    forward: str | None = None
    """`file:line` of the call in the model's code; None where the forward was not watched."""
    called_from: str | None = None
    """`file:line` that called the outermost module: the training loop's line."""
    set_by: str | None = None
    """`file:line` that put the module in eval mode; None where that was before anybody watched."""
    set_how: str | None = None
    """What stood there: `model.eval()`, `decoder.train(False)`, `rnn.training = False`."""

    @property
    def line(self) -> str:
        """The finding in one line."""
        name = self.where or "the model itself"
        label = name if self.class_name in name else f"{name} ({self.class_name})"
        return printable(f"{label}, {self.seen}")

    def lines(self) -> tuple[tuple[str, str], ...]:
        """The finding in words: what, why and what to do, each with a label that goes before it."""
        told = (self.severity.value, self.line), ("cause", self.cause), ("do", self.remedy)
        return tuple((label, printable(text)) for label, text in told)
