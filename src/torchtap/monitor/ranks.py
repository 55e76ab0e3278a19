"""The watches of all ranks of a distributed training, as plain data, and what must be equal on all of them.

`torchtap.monitor.gather` makes them. Nothing here holds a tensor or asks another rank.

| differs over ranks | is a fault |
|---|---|
| parameters, after the same number of steps | yes: the replicas are no longer one model |
| gradients of parameters when the optimizer steps | yes: they were not averaged |
| outputs, gradients of outputs, the loss | no: each has a batch of its own. One that is always far off is told |
| buffers, such as BatchNorm's running statistics | no: DistributedDataParallel sends rank 0's at the next forward |
| shards: parameters of FSDP2 | no: each rank holds its part |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from torchtap._findings import Finding, Severity
from torchtap.monitor._first import FirstNonfinite
from torchtap.monitor.history import Series

AVERAGED = 1e-3
"""Gradients that were averaged agree to the bit; by this much of the median they are others."""
FAR_OFF = 10.0
"""Times the median of all ranks: a rank's own gradients are told from here on, if they are so in most steps."""
FEWEST = 5
"""Points of a series, below which nothing is said about most of them."""
_NAMED = 3


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
            for name, held in self._whole()
            if len({(each.shape, each.checksum) for each in held.values()}) > 1
        )

    def _whole(self) -> Iterator[tuple[str, dict[int, ParameterOfRank]]]:
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


def rank_findings(ranks: Ranks) -> list[Finding]:
    """What is wrong over ranks, the likeliest cause first; empty where nothing is.

    A NaN spreads to all parameters with the next averaging, so what follows from one is not told beside it.
    """
    nonfinite = list(_nonfinite(ranks))
    if nonfinite:
        return nonfinite
    own_gradients = list(_not_averaged(ranks))
    # With gradients of their own, replicas go apart; when they have gone apart, averaged gradients are still equal.
    return [*(own_gradients or _out_of_sync(ranks)), *_steps_differ(ranks), *_far_off(ranks)]


def _nonfinite(ranks: Ranks) -> Iterator[Finding]:
    made = ranks.first_nonfinite()
    if not made:
        return
    first = made[0].first
    assert first is not None
    others = [each for each in ranks if each not in made and each.first is not None]
    later = f"; {_listed(others)} later" if others else ""
    everywhere = len(made) == len(ranks) > 1
    inputs = first.where.key.direction == "input"
    batch = f"the batch of {_listed(made)} in step {first.step}"
    yield Finding(
        id="ranks.nonfinite",
        severity=Severity.ERROR,
        where=first.where.layer,
        seen=f"{_listed(made)} first, in step {first.step}: {first.nonfinite} of {first.count} values of the "
        f"{first.where} are NaN or infinite{later}",
        cause="all ranks at once: the weights, the loss or the learning rate, not one rank's data"
        if everywhere
        else f"{batch} holds NaN or infinity"
        if inputs
        else f"{batch}: the weights were the same on all ranks. The others get it with the averaged gradients",
        remedy="torchtap.find_nan(model, batch, loss) names the operation"
        if everywhere
        else f"keep {batch}; torch.isfinite(x).all() in its loader, or torchtap.find_nan(model, batch, loss) there",
    )


def _out_of_sync(ranks: Ranks) -> Iterator[Finding]:
    names = ranks.out_of_sync()
    if not names or len({each.steps for each in ranks}) > 1:
        return
    held = {each.rank: each.parameters[names[0]] for each in ranks if names[0] in each.parameters}
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, parameter in held.items():
        groups.setdefault((parameter.shape, parameter.checksum), []).append(rank)
    parts = sorted(groups.values(), key=len)
    told = " and ".join(f"{_numbers(part)} (rms {held[part[0]].rms:.6g})" for part in parts[:_NAMED])
    more = f"; so {len(names) - 1} more parameters" if len(names) > 1 else ""
    yield Finding(
        id="ranks.out_of_sync",
        severity=Severity.ERROR,
        where=names[0],
        seen=f"after {ranks[0].steps} steps its values differ between {told}{more}",
        cause="the replicas are no longer one model: another seed or checkpoint on one rank after wrapping, a layer "
        "outside of DistributedDataParallel, or a step that one rank left out",
        remedy="wrap the whole model in DistributedDataParallel, which sends rank 0's weights to all, load checkpoints "
        "before that, and call what it returns, not its .module. On purpose (experts, local SGD): no fault",
    )


def _not_averaged(ranks: Ranks) -> Iterator[Finding]:
    """Seen whether the weights have gone apart by now or not: with a learning rate of 0 they never do."""
    found = []
    for name, held in ranks._whole():
        steps, places = _common([(each.first_step, each.last_step) for each in held.values()])
        if len(held) < 2 or not len(steps):
            continue
        gradients = np.array([p.gradient[at] for p, at in zip(held.values(), places, strict=True)])
        with np.errstate(invalid="ignore"):
            middle = np.median(gradients, axis=0)
            off = np.abs(gradients - middle) > AVERAGED * np.abs(middle)
        if off.any():
            at = int(np.flatnonzero(off.any(axis=0))[0])
            found.append((name, int(steps[at]), list(held), gradients[:, at]))
    if not found:
        return
    name, step, numbers, values = found[0]
    told = ", ".join(f"{value:.4g} on rank {rank}" for rank, value in zip(numbers[:4], values, strict=False))
    more = f"; so {len(found) - 1} more parameters" if len(found) > 1 else ""
    yield Finding(
        id="ranks.gradients_differ",
        severity=Severity.ERROR,
        where=name,
        seen=f"when the optimizer stepped in step {step}, its gradient's rms was {told}{more}",
        cause="gradients are not averaged over ranks: the module inside DistributedDataParallel is called instead of "
        "what wraps it, or the last micro-batch ran under no_sync(). Before averaging it would be normal",
        remedy="call the wrapped model: ddp(x), not ddp.module(x); leave no_sync() for the last micro-batch",
    )


def _steps_differ(ranks: Ranks) -> Iterator[Finding]:
    steps = {each.rank: each.steps for each in ranks}
    if len(set(steps.values())) < 2:
        return
    told = ", ".join(f"{count} on rank {rank}" for rank, count in list(steps.items())[:8])
    yield Finding(
        id="ranks.steps_differ",
        severity=Severity.INFO,
        where="",
        seen=f"training steps: {told}",
        cause="ranks have got different numbers of batches",
        remedy="on purpose under model.join(); otherwise DistributedSampler gives each rank as many, and "
        "drop_last=True leaves out the rest",
    )


def _far_off(ranks: Ranks) -> Iterator[Finding]:
    """One rank whose gradients are far from the others' in most steps: of the layer where it is farthest."""
    worst: tuple[float, str, int] | None = None
    keys = dict.fromkeys(key for each in ranks for key in each.series if key[1] == "gradient")
    for key in keys:
        held = [(each.rank, each.series[key]) for each in ranks if key in each.series]
        steps, places = _common([(series.first_step, series.last_step) for _, series in held])
        if len(held) < 3 or len(steps) < FEWEST:
            continue
        rms = np.array([series["rms"][at] for (_, series), at in zip(held, places, strict=True)])
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.median(np.nan_to_num(rms / np.median(rms, axis=0), posinf=0.0), axis=1)
        rank = int(times.argmax())
        if times[rank] > FAR_OFF and (worst is None or times[rank] > worst[0]):
            worst = float(times[rank]), key[0], held[rank][0]
    if worst is not None:
        times_as_large, layer, number = worst
        yield Finding(
            id="ranks.gradient_far_off",
            severity=Severity.WARN,
            where=layer,
            seen=f"on rank {number} the gradient of the output is {times_as_large:.3g} times the median of all ranks, "
            "in most steps, before averaging",
            cause=f"other data on rank {number}: not scaled like the others', or its part of the set is of another "
            "kind. Some difference from batch to batch is normal",
            remedy=f"look at a batch of rank {number}; shuffle before the set is divided "
            "(DistributedSampler(shuffle=True), sampler.set_epoch(epoch))",
        )


def _order(rank: Rank) -> tuple[int, int]:
    return (rank.first.step, rank.place) if rank.first is not None else (0, 0)


def _common(spans: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, list[list[int]]]:
    """Steps of which all have a point of their own, and where each has them.

    Ranks with more steps have coarser points: such a one and a finer one are not of the same steps.
    """
    tables = [
        {(first, last): place for place, (first, last) in enumerate(zip(*each, strict=True))}
        for each in ((firsts.tolist(), lasts.tolist()) for firsts, lasts in spans)
    ]
    common = sorted(set.intersection(*(set(each) for each in tables)))
    steps = np.array([first for first, _ in common], dtype=np.int64)
    return steps, [[table[span] for span in common] for table in tables]


def _listed(ranks: tuple[Rank, ...] | list[Rank]) -> str:
    return _numbers([each.rank for each in ranks])


def _numbers(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (" …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
