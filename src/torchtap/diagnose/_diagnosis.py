"""What `diagnose` returns: findings with their symptoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtap._findings import Finding, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Finding):
    """One thing that is wrong, and what follows from it."""

    fine_when: str
    """When it is no problem; "never"."""
    places: tuple[str, ...]
    """All layers or parameters that it was found at, `where` first."""
    symptoms: tuple[Diagnosis, ...] = ()
    """Other findings that this one explains."""

    def lines(self) -> tuple[tuple[str, str], ...]:
        """In words: what, why, what to do, when it is fine, and what follows from it; each with a label."""
        told = Finding.lines(self)
        if self.fine_when != "never":
            told = *told, ("fine", printable(f"when {self.fine_when}"))
        if not self.symptoms:
            return told
        also = "; ".join(f"{each.id} at {each.where or 'the model itself'}" for each in self.symptoms)
        return *told, ("hence", printable(also))

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            **{name: getattr(self, name) for name in ("id", "where", "seen", "cause", "remedy", "fine_when")},
            "severity": self.severity.value,
            "places": list(self.places),
            "symptoms": [each.to_dict() for each in self.symptoms],
        }


class Diagnoses(list[Diagnosis]):
    """All that was found, the likeliest root cause first; empty where all is well. Shown in words, also by Jupyter.

    >>> Diagnoses()
    nothing found
    """

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self)) or "nothing found"

    __str__ = __repr__
