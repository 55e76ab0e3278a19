"""Several ranks of one training: what must be equal on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import ParameterRun, Run


def _apart(
    runs: tuple[Run, ...], of: Callable[[ParameterRun], np.ndarray], relative: float
) -> Iterator[tuple[str, int, int, float, float]]:
    """Parameters whose numbers differ over ranks: name, rank, step, its number, the median of all."""
    by_name: dict[str, list[tuple[Run, ParameterRun]]] = {}
    for run in runs:
        for each in run.parameters:
            by_name.setdefault(each.name, []).append((run, each))
    for name, some in by_name.items():
        length = min(len(each.steps) for _, each in some)
        if (
            len(some) != len(runs)
            or not length
            or any(not np.array_equal(each.steps[:length], some[0][1].steps[:length]) for _, each in some)
        ):
            continue
        values = np.array([of(each)[:length] for _, each in some], dtype=np.float64)
        middle = np.median(values, axis=0)
        with np.errstate(invalid="ignore"):
            off = np.abs(values - middle) > relative * np.abs(middle)
        off |= np.isnan(values) != np.isnan(middle)
        if off.any():
            at = int(np.flatnonzero(off.any(axis=0))[0])
            rank = int(np.nan_to_num(np.abs(values[:, at] - middle[at]), nan=np.inf).argmax())
            yield (
                name,
                some[rank][0].rank,
                int(some[0][1].steps[at]),
                float(values[rank, at]),
                float(middle[at]),
            )


def _replicas(runs: tuple[Run, ...], limit: Mapping[str, float]) -> Iterator[Seen]:
    for name, rank, step, value, other in _apart(runs, lambda each: each.value, limit["relative"]):
        yield Seen(name, {"rank": rank, "step": step, "value": value, "other": other})


def _gradients(runs: tuple[Run, ...], limit: Mapping[str, float]) -> Iterator[Seen]:
    for name, rank, step, value, other in _apart(runs, lambda each: each.gradient, limit["relative"]):
        yield Seen(name, {"rank": rank, "step": step, "value": value, "other": other})


def _nonfinite(runs: tuple[Run, ...], limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    bad = [(run, run.first_nonfinite) for run in runs if run.first_nonfinite is not None]
    if not bad:
        return
    run, first = min(bad, key=lambda each: (each[1].step, each[1].key.direction != "output"))
    earlier = [other for _, other in bad if other.step == first.step]
    yield Seen(
        first.layer,
        {
            "rank": run.rank,
            "step": first.step,
            "what": first.key.direction,
            "also": len(earlier),
            "of": len(runs),
        },
    )


RULES = (
    Rule(
        id="ranks.nonfinite",
        severity=Severity.ERROR,
        looks_at="the first value of each rank that is not finite",
        definition="The rank and layer in which it appears first; the others get it with the next all-reduce.",
        seen="rank {rank} has the first NaN or infinity, in step {step}, in the {what}; in that step {also} of {of} "
        "ranks",
        cause="the data or the random numbers of that rank: the model is the same on all",
        remedy="look at the batch of rank {rank} in step {step}; torch.isfinite(x).all() in its loader",
        fine_when="never",
        explains=("nonfinite.first", "loss.nonfinite", "ranks.gradients_differ", "ranks.out_of_sync"),
        over_ranks=_nonfinite,
    ),
    Rule(
        id="ranks.out_of_sync",
        severity=Severity.ERROR,
        looks_at="root mean square of every parameter on each rank, every tenth step",
        definition="It differs over ranks by more than 1e-4.",
        limits=(
            Limit("relative", 1e-4, "of the median", "equal replicas agree to the bit; float32 has 1e-7"),
        ),
        seen="rank {rank} has rms {value:.6g} in step {step}, the median of all is {other:.6g}",
        cause="the replicas are no longer one model: another seed or checkpoint on one rank, a layer outside of "
        "DistributedDataParallel, or a step that one rank skips",
        remedy="wrap the whole model: DistributedDataParallel(model) sends rank 0's weights to all when it is made; "
        "call what it wraps, not model.module; take the same steps on each rank",
        fine_when="the parameter is sharded or belongs to one rank (experts, tensor parallelism)",
        explains=("ranks.gradients_differ",),
        over_ranks=_replicas,
    ),
    Rule(
        id="ranks.gradients_differ",
        severity=Severity.WARN,
        looks_at="root mean square of every parameter's gradient on each rank, before every tenth step",
        definition="It differs over ranks by more than 1 % when the optimizer steps.",
        limits=(Limit("relative", 0.01, "of the median", "after an all-reduce it is equal to the bit"),),
        seen="rank {rank} has rms {value:.4g} in step {step}, the median of all is {other:.4g}",
        cause="the gradients are not averaged: forward() of the module inside DistributedDataParallel is called, or "
        "the step is taken under no_sync()",
        remedy="call the wrapped model (ddp(x), not ddp.module(x)); leave no_sync() for the last micro-batch",
        fine_when="the parameter is sharded",
        over_ranks=_gradients,
    ),
)
