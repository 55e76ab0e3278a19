"""What a rule is: data, with one function that looks at a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchtap._findings import Severity
from torchtap.monitor.ranks import Ranks
from torchtap.monitor.run import Run


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold."""

    name: str
    """As the rule's function knows it."""
    value: float
    unit: str
    source: str
    """Where it comes from: a publication, PyTorch's own definition, or measured on the trainings of the tests."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A rule is true of something."""

    where: str
    """The layer's or parameter's name; "" is the model itself."""
    slots: Mapping[str, Any] = field(default_factory=dict)
    """What the rule's texts have between braces."""
    severity: Severity | None = None
    """Instead of the rule's own."""


Find = Callable[[Run, Mapping[str, float]], Iterator[Seen]]
FindOverRanks = Callable[[Ranks, Mapping[str, float]], Iterator[Seen]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong with a training, and what to do then."""

    id: str
    severity: Severity
    looks_at: str
    """What is measured for it, in words."""
    definition: str
    limits: tuple[Limit, ...] = ()
    seen: str
    """These three with slots in braces: filled by what `find` gives."""
    cause: str
    remedy: str
    fine_when: str
    """When it is no problem."""
    explains: tuple[str, ...] = ()
    """Rules that are true as a consequence: where both are found, those are symptoms of this one."""
    only_with: tuple[str, ...] = ()
    """Harmless by itself: told only where one of these is found, too."""
    find: Find | None = None
    over_ranks: FindOverRanks | None = None
    """Instead of `find`: looks at all ranks of one training."""

    def limit(self) -> dict[str, float]:
        """The thresholds by name."""
        return {limit.name: limit.value for limit in self.limits}
