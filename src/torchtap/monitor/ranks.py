"""The watches of all ranks of a distributed training, as plain data.

`torchtap.monitor.gather` makes them. Nothing here holds a tensor or asks another rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchtap.monitor._first import FirstNonfinite
from torchtap.monitor.history import Series

if TYPE_CHECKING:
    from torchtap.diagnose import Diagnoses


@dataclass(frozen=True, slots=True)
class ParameterOfRank:
    """One parameter on one rank."""

    shape: tuple[int, ...]
    """Of what this rank holds."""
    sharded: bool
    """Whether it is a part only, as with FSDP2."""
    checksum: int | None
    """Of its bits when it was gathered: equal where all values are equal. None: it could not be read."""
    rms: float
    """Of its values when it was gathered; NaN where there is none."""
    first_step: np.ndarray
    """[n] with `last_step`: which steps the next three are of. Root mean squares, NaN where there is none."""
    last_step: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    """When the optimizer stepped: after DistributedDataParallel has averaged it."""
    update: np.ndarray


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank's watch has measured."""

    rank: int
    steps: int
    """Training steps that had ended."""
    skipped: int
    layers: tuple[tuple[str, str], ...]
    """Name and kind of each watched layer."""
    series: Mapping[tuple[str, str, int, str], Series]
    """By layer, direction, call and path, as `Watch.series` takes them. The model's inputs are of layer ""."""
    scalars: Mapping[str, Series]
    parameters: Mapping[str, ParameterOfRank]
    evaluating: tuple[str, ...]
    """Modules that are in eval mode."""
    first: FirstNonfinite | None
    """The first value that was NaN or infinite; of what was measured before it, the last three only."""
    place: int
    """How many tensors of that step had been measured before it."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks, in order.

    >>> print(Ranks(()))
    0 ranks
    """

    ranks: tuple[Rank, ...]

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.ranks)

    def __getitem__(self, place: int) -> Rank:
        return self.ranks[place]

    def series(
        self, layer: str, direction: str = "output", *, call: int = 0, path: str = ""
    ) -> dict[int, Series]:
        """What each rank measured of one tensor, by rank; ranks that measured nothing of it are left out."""
        key = layer, direction, call, path
        return {each.rank: each.series[key] for each in self.ranks if key in each.series}

    def gradient_norms(self, layer: str, *, call: int = 0, path: str = "") -> dict[int, np.ndarray]:
        """Norm of the gradient of a layer's output on each rank, before any averaging: [points] by rank."""
        found = self.series(layer, "gradient", call=call, path=path)
        return {rank: each["rms"] * np.sqrt(each["count"]) for rank, each in found.items()}

    def first_nonfinite(self) -> tuple[Rank, ...]:
        """The ranks with the first value that was NaN or infinite: the earliest step, and within it the earliest place
        in the model. Several where they had it alike; none where all was finite."""
        bad = [each for each in self.ranks if each.first is not None]
        order = {each.rank: _order(each) for each in bad}
        least = min(order.values(), default=None)
        return tuple(each for each in bad if order[each.rank] == least)

    def out_of_sync(self) -> tuple[str, ...]:
        """Parameters that ranks hold whole, and that are not equal on all of them, to the bit."""
        return tuple(
            name
            for name, held in self.whole()
            if len({(each.shape, each.checksum) for each in held.values()}) > 1
        )

    def diagnose(self) -> Diagnoses:
        """What is wrong over ranks, the likeliest root cause first: see `torchtap.diagnose`."""
        from torchtap.diagnose import diagnose  # which judges ranks, and so imports this

        return diagnose(self)

    def whole(self) -> Iterator[tuple[str, dict[int, ParameterOfRank]]]:
        """Parameters that ranks hold whole, each by rank."""
        names = dict.fromkeys(name for each in self.ranks for name in each.parameters)
        for name in names:
            held = {each.rank: each.parameters[name] for each in self.ranks if name in each.parameters}
            if not any(each.sharded or each.checksum is None for each in held.values()):
                yield name, held

    def __str__(self) -> str:
        lines = [f"{len(self)} ranks"]
        for each in self.ranks:
            first = f"; {str(each.first).splitlines()[0]}" if each.first is not None else ""
            lines.append(f"rank {each.rank}: {each.steps} steps, {len(each.layers)} layers{first}")
        return "\n".join(lines)


def _order(rank: Rank) -> tuple[int, int]:
    return (rank.first.step, rank.place) if rank.first is not None else (0, 0)
