"""Normalisation and attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import access, edges, trend
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import LayerRun, Run

_HEALTHY = "measured on the healthy trainings of docs/cases.md: none comes near"


def _batch_norms(run: Run) -> Iterator[LayerRun]:
    for layer in run.layers:
        if "BatchNorm" in layer.kind and layer.training and layer.look.number("samples"):
            yield layer


def _groups(channels: int) -> int:
    return next(
        groups
        for groups in (32, 16, 8, 4, 2, 1)
        if (channels % groups == 0 and channels >= 2 * groups) or groups == 1
    )


def _tiny(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in _batch_norms(run):
        rows = layer.look.number("rows")
        samples = float(np.median(layer.look.number("samples")))
        if len(rows) < limit["looks"]:
            continue
        typical = float(np.median(rows))
        flat = typical <= samples
        if samples > (limit["rows"] if flat else limit["samples"]) or typical > limit["values"]:
            continue
        channels = int(layer.facts.get("num_features", 1))
        norm = (
            f"{access(layer.name)} = nn.GroupNorm({_groups(channels)}, {channels})"
            if channels > 1
            else "nn.LayerNorm"
        )
        do = norm
        if run.world > 1:
            do = (
                "model = nn.SyncBatchNorm.convert_sync_batchnorm(model) before DistributedDataParallel: it normalises "
                f"over the batches of all {run.world} ranks; or {norm}"
            )
        yield Seen(
            layer.name,
            {"rows": typical, "samples": samples, "do": do, "of": " a rank" if run.world > 1 else ""},
        )


def _mismatch(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in _batch_norms(run):
        mean, variance, rows = (layer.look.number(name) for name in ("mean_off", "variance_off", "rows"))
        momentum = layer.facts.get("momentum")
        if len(mean) < limit["looks"] or not rows or np.median(rows) < limit["rows"]:
            continue
        off, factor = float(np.median(mean[-3:])), float(np.exp(np.median(variance[-3:])))
        if off > limit["mean"] or factor > limit["variance"]:
            slow = isinstance(momentum, float) and momentum < 0.02
            why = (
                f"momentum={momentum} is the weight of the new batch: so small, the running values stay near their "
                "start"
                if slow
                else "batches differ from each other (sorted data, other domains in turn), or the layer's inputs "
                "drift quickly"
            )
            do = (
                f"{access(layer.name)}.momentum = 0.1"
                if slow
                else "shuffle the data; a batch norm for each domain; or nn.GroupNorm, which keeps no running values"
            )
            yield Seen(layer.name, {"mean": off, "factor": factor, "why": why, "do": do})


def _momentum(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in _batch_norms(run):
        momentum = layer.facts.get("momentum")
        if (
            isinstance(momentum, float)
            and limit["momentum"] <= momentum < 1
            and layer.facts.get("track_running_stats")
        ):
            yield Seen(layer.name, {"momentum": momentum, "other": 1 - momentum, "at": access(layer.name)})


def _below_eps(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in run.layers:
        shares = layer.look.number("below_eps")
        if len(shares) >= limit["looks"] and min(shares[-3:]) >= limit["share"]:
            yield Seen(
                layer.name,
                {
                    "share": float(np.median(shares[-3:])),
                    "eps": layer.facts.get("eps", 0.0),
                    "before": layer.before or "the input",
                },
            )


def _learns(run: Run, share: float) -> bool:
    """Whether the loss has fallen below this share of what it was."""
    if run.loss is None or trend(run) != "falls":
        return False
    first, last = edges(run.loss["mean"].astype(np.float64))
    return last < share * first


def _collapse(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if _learns(run, limit["fall"]):
        return
    for layer in run.layers:
        if layer.kind != "MultiheadAttention":
            continue
        entropies = layer.look.number("entropy")
        choices = max(layer.look.number("choices") or [0])
        if (
            len(entropies) >= limit["looks"]
            and choices >= limit["choices"]
            and max(entropies[-3:]) < limit["entropy"]
        ):
            yield Seen(
                layer.name,
                {
                    "entropy": max(entropies[-3:]),
                    "start": entropies[0],
                    "choices": int(choices),
                    "at": access(layer.name),
                },
            )


RULES = (
    Rule(
        id="batchnorm.tiny_batch",
        severity=Severity.WARN,
        looks_at="rows and values a channel in every batch norm that runs in train mode",
        definition="The median batch has 4 rows or fewer (2 images or fewer, of at most 4096 values a channel).",
        limits=(
            Limit(
                "rows", 4, "rows", "the variance of 4 values is off by 80 % (relative deviation sqrt(2/3))"
            ),
            Limit("samples", 2, "images", "Wu & He 2018: error rises steeply below 4 images a GPU"),
            Limit("values", 4096, "values a channel", "large images bring enough values of their own"),
            Limit("looks", 2, "looks", "one may be the last batch of an epoch"),
        ),
        seen="normalises over {samples:.0f} rows{of} ({rows:.0f} values a channel)",
        cause="mean and variance of so few rows are noise; what the layer gives depends on the batch's other rows, and "
        "running values differ from what training saw",
        remedy="{do}",
        fine_when="the layer is in eval mode (frozen)",
        explains=(
            "batchnorm.mismatch",
            "loss.flat",
            "nonfinite.first",
            "loss.nonfinite",
        ),
        find=_tiny,
    ),
    Rule(
        id="batchnorm.momentum",
        severity=Severity.WARN,
        looks_at="momentum of every batch norm",
        definition="momentum is 0.9 or more, and below 1.",
        limits=(Limit("momentum", 0.9, "", "PyTorch's default is 0.1, Keras' 0.99 means 0.01 here"),),
        seen="momentum={momentum}: the running values are those of the last batch",
        cause="PyTorch's momentum is the weight of the new batch; other libraries mean that of the old value",
        remedy="{at}.momentum = {other:.2g}",
        fine_when="the statistics are set from one batch on purpose",
        explains=("batchnorm.mismatch",),
        find=_momentum,
    ),
    Rule(
        id="batchnorm.mismatch",
        severity=Severity.WARN,
        looks_at="batch mean and variance against the running ones, every tenth step",
        definition="After 4 looks the batch mean is off by more than 1.5 running deviations, or the variance by a "
        "factor of 5, averaged over channels.",
        limits=(
            Limit("mean", 1.5, "running standard deviations", _HEALTHY),
            Limit("variance", 5, "times", _HEALTHY),
            Limit("rows", 16, "values a channel", "fewer are noise"),
            Limit("looks", 5, "looks", "running values need some 20 steps"),
        ),
        seen="the batch's mean is {mean:.1f} running deviations off, its variance by a factor of {factor:.1f}: in eval "
        "mode the layer will do something else",
        cause="{why}",
        remedy="{do}",
        fine_when="the run has only begun",
        find=_mismatch,
    ),
    Rule(
        id="layernorm.below_eps",
        severity=Severity.WARN,
        looks_at="variance of the rows that enter every LayerNorm, against its eps, every tenth step",
        definition="In three looks in a row the variance of most rows is below eps.",
        limits=(
            Limit("share", 0.5, "of the rows", "at eps the output has 0.7 of its size"),
            Limit("looks", 3, "looks", ""),
        ),
        seen="{share:.0%} of the rows have a variance below eps={eps:g}",
        cause="its input has collapsed: all features of a row are nearly equal, and what is left is divided by eps",
        remedy="look at {before}: its output shrinks (weights or embeddings too small); scale it up, or a smaller eps",
        fine_when="the rows are padding",
        explains=("loss.flat", "gradient.vanishing"),
        find=_below_eps,
    ),
    Rule(
        id="attention.collapse",
        severity=Severity.WARN,
        looks_at="entropy of the attention weights of two rows of the batch, every tenth step",
        definition="In three looks in a row the entropy is below 5 % of the highest possible, over all heads, and the "
        "loss has not fallen by half.",
        limits=(
            Limit(
                "entropy", 0.05, "of the highest", "Zhai et al. 2023: entropy collapse goes with instability"
            ),
            Limit("looks", 3, "looks", "one batch may do it"),
            Limit("choices", 3, "keys", "two are a decision"),
            Limit("fall", 0.5, "of the first loss", "a loss below: it has learned where to look"),
        ),
        seen="each query looks at one of {choices} keys: entropy {entropy:.1%} of the highest ({start:.0%} in the "
        "first step)",
        cause="queries and keys have grown, so the softmax is saturated and passes no gradient",
        remedy="normalise queries and keys (nn.LayerNorm of each head), a lower learning rate with warm-up; at the "
        "start: nn.init.xavier_uniform_({at}.in_proj_weight)",
        fine_when="the task is to copy or to look up",
        explains=("loss.flat", "gradient.vanishing", "update.too_small"),
        find=_collapse,
    ),
)
