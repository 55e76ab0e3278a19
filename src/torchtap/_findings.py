"""What Torchtap finds: one shape for every finding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Severity(str, Enum):
    """How much a finding matters."""

    INFO = "info"  # worth knowing; often on purpose
    WARN = "warn"  # training or evaluation goes wrong without any error
    ERROR = "error"  # something will raise


def printable(text: str) -> str:
    """`text` with control characters escaped: a module may have any name, and a terminal obeys them.

    >>> printable("encoder.\\x1b[31m")
    'encoder.\\\\x1b[31m'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found.

    >>> print(Finding(id="a.b", severity=Severity.INFO, where="rnn", seen="odd", cause="why", remedy="mend"))
    info   a.b at rnn: odd
    cause  why
    do     mend
    """

    id: str
    """Subject first; the same for every finding of this kind."""
    severity: Severity
    where: str
    """The module's path, as in `model.named_modules()`; "" is the model itself."""
    seen: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return "\n".join(f"{label:<6} {text}" for label, text in self.lines())

    def lines(self) -> tuple[tuple[str, str], ...]:
        """The finding in words: what, why and what to do, each with a label that goes before it."""
        what = f"{self.id} at {self.where or 'the model itself'}: {self.seen}"
        told = (self.severity.value, what), ("cause", self.cause), ("do", self.remedy)
        return tuple((label, printable(text)) for label, text in told)

    def to_dict(self) -> dict[str, str]:
        """The finding as JSON types."""
        return {**asdict(self), "severity": self.severity.value}
