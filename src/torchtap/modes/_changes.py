"""What a guard keeps of mode changes, and how it tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from torchtap._findings import printable
from torchtap.modes._observer import code

_NAMED = 4  # modules of one call that are named in its line


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """One mode change of one module of a guarded model."""

    where: str
    """The module's path, as in `Finding.where`."""
    training: bool
    """The mode since then; until then it was the other one."""
    by: str
    """ "train" or "eval" for a call of that method, "write" for a write to `training`."""
    place: str
    """`file:line` that did it; "" where no line of the user's led to it."""
    serial: int
    """The same for all modules that one call reached; grows with time."""

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON types."""
        return asdict(self)


def lines(changes: Iterable[RecordedChange]) -> Iterator[str]:
    """One line for each call or write, oldest first."""
    for _, group in groupby(changes, key=attrgetter("serial")):
        reached = list(group)
        first = reached[0]
        how = code(first.by, first.training)
        names = ", ".join(each.where or "the model itself" for each in reached[:_NAMED])
        more = f" and {len(reached) - _NAMED} more" if len(reached) > _NAMED else ""
        mode = "train" if first.training else "eval"
        yield printable(f"{how} at {first.place or 'an unknown line'}: {names}{more} to {mode}")
