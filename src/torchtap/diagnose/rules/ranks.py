"""Several ranks of one training: what must be equal on all, and which of them began it.

| differs over ranks | is a fault |
|---|---|
| parameters, after the same number of steps | yes: the replicas are no longer one model |
| gradients of parameters when the optimizer steps | yes: they were not averaged |
| outputs, gradients of outputs, the loss | no: each has a batch of its own. One that is always far off is told |
| buffers, such as BatchNorm's running statistics | no: DistributedDataParallel sends rank 0's at the next forward |
| shards: parameters of FSDP2 | no: each rank holds its part |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.ranks import Rank, Ranks

_NAMED = 3


def _nonfinite(ranks: Ranks, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    made = ranks.first_nonfinite()
    if not made:
        return
    first = made[0].first
    assert first is not None
    others = [each for each in ranks if each not in made and each.first is not None]
    batch = f"the batch of {_listed(made)} in step {first.step}"
    cause = f"{batch}: the weights were the same on all ranks. The others get it with the averaged gradients"
    do = (
        f"keep {batch}; torch.isfinite(x).all() in its loader, or torchtap.find_nan(model, batch, loss) there"
    )
    if len(made) == len(ranks) > 1:
        cause = "all ranks at once: the weights, the loss or the learning rate, not one rank's data"
        do = "torchtap.find_nan(model, batch, loss) names the operation"
    elif first.where.key.direction == "input":
        cause = f"{batch} holds NaN or infinity"
    yield Seen(
        first.where.layer,
        {
            "who": _listed(made),
            "step": first.step,
            "number": first.nonfinite,
            "count": first.count,
            "what": first.where,
            "later": f"; {_listed(others)} later" if others else "",
            "why": cause,
            "do": do,
        },
    )


def _gradients(ranks: Ranks, limit: Mapping[str, float]) -> Iterator[Seen]:
    """Seen whether the weights have gone apart by now or not: with a learning rate of 0 they never do."""
    for name, held in ranks.whole():
        steps, places = _common([(each.first_step, each.last_step) for each in held.values()])
        if len(held) < 2 or not len(steps):
            continue
        gradients = np.array([p.gradient[at] for p, at in zip(held.values(), places, strict=True)])
        with np.errstate(invalid="ignore"):
            middle = np.median(gradients, axis=0)
            off = np.abs(gradients - middle) > limit["relative"] * np.abs(middle)
        if off.any():
            at = int(np.flatnonzero(off.any(axis=0))[0])
            told = ", ".join(
                f"{value:.4g} on rank {rank}"
                for rank, value in list(zip(held, gradients[:, at], strict=True))[:4]
            )
            yield Seen(name, {"step": int(steps[at]), "values": told})


def _out_of_sync(ranks: Ranks, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    if len({each.steps for each in ranks}) > 1:
        return
    for name in ranks.out_of_sync():
        held = {each.rank: each.parameters[name] for each in ranks if name in each.parameters}
        groups: dict[tuple[object, ...], list[int]] = {}
        for rank, parameter in held.items():
            groups.setdefault((parameter.shape, parameter.checksum), []).append(rank)
        parts = sorted(groups.values(), key=len)[:_NAMED]
        told = " and ".join(f"{_numbers(part)} (rms {held[part[0]].rms:.6g})" for part in parts)
        yield Seen(name, {"steps": ranks[0].steps, "values": told})


def _steps_differ(ranks: Ranks, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    steps = {each.rank: each.steps for each in ranks}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{count} on rank {rank}" for rank, count in list(steps.items())[:8])
        yield Seen("", {"steps": told})


def _far_off(ranks: Ranks, limit: Mapping[str, float]) -> Iterator[Seen]:
    """One rank whose gradients are far from the others' in most steps: of the layer where it is farthest."""
    worst: tuple[float, str, int] | None = None
    keys = dict.fromkeys(key for each in ranks for key in each.series if key[1] == "gradient")
    for key in keys:
        held = [(each.rank, each.series[key]) for each in ranks if key in each.series]
        steps, places = _common([(series.first_step, series.last_step) for _, series in held])
        if len(held) < limit["ranks"] or len(steps) < limit["points"]:
            continue
        rms = np.array([series["rms"][at] for (_, series), at in zip(held, places, strict=True)])
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.median(np.nan_to_num(rms / np.median(rms, axis=0), posinf=0.0), axis=1)
        rank = int(times.argmax())
        if times[rank] > limit["times"] and (worst is None or times[rank] > worst[0]):
            worst = float(times[rank]), key[0], held[rank][0]
    if worst is not None:
        yield Seen(worst[1], {"rank": worst[2], "times": worst[0]})


def _common(spans: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, list[list[int]]]:
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


def _listed(ranks: Sequence[Rank]) -> str:
    return _numbers([each.rank for each in ranks])


def _numbers(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (" …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


RULES = (
    Rule(
        id="ranks.nonfinite",
        severity=Severity.ERROR,
        looks_at="the first value of each rank that is not finite",
        definition="The rank that has it in the earliest step, and within that at the earliest place in the model; the "
        "others get it with the next averaging.",
        seen="{who} first, in step {step}: {number} of {count} values of the {what} are NaN or infinite{later}",
        cause="{why}",
        remedy="{do}",
        fine_when="never",
        explains=(
            "ranks.gradients_differ",
            "ranks.out_of_sync",
            "ranks.steps_differ",
            "ranks.gradient_far_off",
        ),
        over_ranks=_nonfinite,
    ),
    Rule(
        id="ranks.gradients_differ",
        severity=Severity.ERROR,
        looks_at="root mean square of every parameter's gradient on each rank, right before every tenth step",
        definition="It differs over ranks by more than a thousandth when the optimizer steps.",
        limits=(Limit("relative", 1e-3, "of the median", "gradients that were averaged agree to the bit"),),
        seen="when the optimizer stepped in step {step}, its gradient's rms was {values}",
        cause="gradients are not averaged over ranks: the module inside DistributedDataParallel is called instead of "
        "what wraps it, or the last micro-batch ran under no_sync(). Before averaging it would be normal",
        remedy="call the wrapped model: ddp(x), not ddp.module(x); leave no_sync() for the last micro-batch",
        fine_when="ranks are meant to go their own ways for some steps (local SGD)",
        # With gradients of their own, replicas go apart; when they have gone apart, averaged gradients are still equal.
        explains=("ranks.out_of_sync",),
        over_ranks=_gradients,
    ),
    Rule(
        id="ranks.out_of_sync",
        severity=Severity.ERROR,
        looks_at="a checksum of the bits of every parameter on each rank, when they are gathered",
        definition="After the same number of steps it differs over the ranks that hold that parameter whole.",
        seen="after {steps} steps its values differ between {values}",
        cause="the replicas are no longer one model: another seed or checkpoint on one rank after wrapping, a layer "
        "outside of DistributedDataParallel, or a step that one rank left out",
        remedy="wrap the whole model in DistributedDataParallel, which sends rank 0's weights to all, load checkpoints "
        "before that, and call what it returns, not its .module",
        fine_when="ranks differ on purpose (experts, local SGD)",
        over_ranks=_out_of_sync,
    ),
    Rule(
        id="ranks.steps_differ",
        severity=Severity.INFO,
        looks_at="training steps of each rank, when they are gathered",
        definition="They are not the same number.",
        seen="training steps: {steps}",
        cause="ranks have got different numbers of batches",
        remedy="DistributedSampler gives each rank as many, and drop_last=True leaves out the rest",
        fine_when="it is meant so, under model.join()",
        over_ranks=_steps_differ,
    ),
    Rule(
        id="ranks.gradient_far_off",
        severity=Severity.WARN,
        looks_at="root mean square of the gradient of every layer's output on each rank, before averaging",
        definition="In most steps one rank's is above 10 times the median of all.",
        limits=(
            Limit("times", 10, "the median of all ranks", "some difference from batch to batch is normal"),
            Limit("ranks", 3, "ranks", "of two, neither is the odd one"),
            Limit("points", 5, "points", "fewer say nothing about most steps"),
        ),
        seen="on rank {rank} the gradient of the output is {times:.3g} times the median of all ranks, in most steps, "
        "before averaging",
        cause="other data on rank {rank}: not scaled like the others', or its part of the set is of another kind",
        remedy="look at a batch of rank {rank}; shuffle before the set is divided (DistributedSampler(shuffle=True), "
        "sampler.set_epoch(epoch))",
        fine_when="the ranks are meant to have data of different kinds",
        over_ranks=_far_off,
    ),
)
