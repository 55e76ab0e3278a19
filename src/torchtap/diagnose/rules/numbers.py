"""NaN, infinity, precision, the size of steps, and the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import edges, follows_depth, initialisation, matrices, noise, trend
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import Run

_HEALTHY = "measured on the healthy trainings of docs/cases.md: none comes near"
_ALWAYS_FINITE = 65504.0


def _bad(run: Run) -> bool:
    """Whether what is not finite does harm: it is in the loss or in the parameters, or nothing is known of the loss."""
    return trend(run) == "nonfinite" or run.loss is None or any(each.nonfinite for each in run.parameters)


def _input(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    first = run.first_nonfinite
    if first is not None and first.key.direction == "input":
        yield Seen("", {"step": first.step, "number": first.nonfinite, "count": first.count})


def _first(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    first = run.first_nonfinite
    if first is None or first.key.direction == "input" or not _bad(run) or _overflows(run) or _of_loss(run):
        return
    before = max((each.values.get("absmax", 0.0) for each in first.before), default=0.0)
    forward = first.key.direction == "output"
    weights = f", or its weights were made so by step {first.step - 1}" if first.step else ""
    why = (
        "inside this layer's forward, or in an operation between the layer before and this one (a division, log or "
        f"sqrt; a softmax of a row that is masked throughout){weights}; the largest value before it in this step was "
        f"{before:.2g}"
        if forward
        else "a derivative after this layer has no finite value: sqrt or norm at 0, log or division by 0, or a masked "
        "value times infinity; the forward was finite"
    )
    yield Seen(
        first.layer,
        {
            "step": first.step,
            "what": "output" if forward else "gradient of the output",
            "number": first.nonfinite,
            "count": first.count,
            "why": why,
        },
    )


def _of_loss(run: Run) -> bool:
    """Whether the first value that is not finite is the gradient of the last layer's output: it comes from the loss."""
    first = run.first_nonfinite
    if first is None or first.key.direction != "gradient" or trend(run) != "nonfinite":
        return False
    ran = [layer for layer in run.layers if layer.order >= 0]
    return bool(ran) and first.layer in ran[-1].names


def _loss(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    if run.loss is None or not run.loss["nonfinite"].any():
        return
    at = int(np.flatnonzero(run.loss["nonfinite"])[0])
    step = int(run.loss.first_step[at])
    first = run.first_nonfinite
    alone = first is None or first.step > int(run.loss.last_step[at]) or _of_loss(run)
    why = (
        "every layer's output was finite: it arises in the loss itself or in its derivative (log of 0, sqrt at 0, "
        "division by 0)"
        if alone
        else "see the first value that was not finite"
    )
    yield Seen("", {"step": step, "why": why})


def _diverged(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.loss is None or trend(run) != "rises" or len(run.loss) < limit["points"]:
        return
    values = run.loss["mean"].astype(np.float64)
    first, last = edges(values)
    if first > 0 and last > limit["factor"] * first:
        yield Seen("", {"first": first, "last": last})


def _flat(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    loss = run.loss
    if loss is None or run.steps < limit["steps"] or trend(run) != "flat":
        return
    if not 0.9 < run.passes / run.steps < 1.1:  # a game, or episodes: such a loss need not fall
        return
    values = loss["mean"].astype(np.float64)
    first, last = edges(values)
    if first <= 0 or np.ptp(values) > limit["spread"] * abs(first) or abs(follows_depth(values)) > 0.35:
        return
    yield Seen("", {"first": first, "last": last, "noise": noise(values) / abs(first), "steps": run.steps})


def _peaks(run: Run) -> list[tuple[str, float]]:
    """The largest of the first ratios of update to weight, for weights that were not 0."""
    found = []
    for each in matrices(run):
        there = each.ratio[:3][(each.sampled[:3] > 0) & np.isfinite(each.ratio[:3])]
        if len(there) and np.isfinite(each.sampled[0]) and each.sampled[0] > 1e-4:
            found.append((each.name, float(there.max())))
    return found


def _too_large(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    peaks = _peaks(run)
    if not peaks or trend(run) == "falls":
        return
    if run.optimizer is not None and run.optimizer.closure and trend(run) in ("flat", "unknown"):
        return  # a step of LBFGS may solve the problem: then there is nothing left to fall
    typical = float(np.median([peak for _, peak in peaks]))
    if typical < limit["ratio"] * (1 if run.loss is not None else 5):
        return
    name, worst = max(peaks, key=lambda each: each[1])
    lr = max(run.optimizer.rates) if run.optimizer is not None and run.optimizer.rates else None
    do = f"lr={lr * 0.01 / typical:.1g} to begin with" if lr else "a hundredth of the learning rate"
    yield Seen(
        name, {"typical": typical, "worst": worst, "lr": f"{lr:.3g}" if lr else "the learning rate", "do": do}
    )


def _too_small(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.steps < limit["steps"] or trend(run) in ("falls", "nonfinite") or not run.optimizer:
        return
    typical = []
    for each in matrices(run):
        early = each.ratio[: max(2, len(each.ratio) // 2)]
        early = early[np.isfinite(early)]
        if len(early):
            typical.append((each.name, float(np.median(early))))
    if not typical or not max(run.optimizer.rates, default=0):
        return
    ratio = float(np.median([one for _, one in typical]))
    if 0 < ratio < limit["ratio"]:
        lr = max(run.optimizer.rates)
        name = min(typical, key=lambda each: each[1])[0]
        yield Seen(name, {"ratio": ratio, "lr": lr, "do": min(1.0, lr * 1e-3 / ratio)})


def _overflows(run: Run) -> bool:
    first = run.first_nonfinite
    if first is None or first.key.layer < 0:
        return False
    layer = run.layer(first.layer)
    return layer is not None and layer.look.dtype == "float16"


def _overflow(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    first = run.first_nonfinite
    if first is None or not _overflows(run) or not _bad(run):
        return
    layer = run.layer(first.layer)
    high = max((each.values.get("absmax", 0.0) for each in first.before), default=0.0)
    yield Seen(
        first.layer,
        {
            "step": first.step,
            "what": first.key.direction,
            "high": high,
            "most": _ALWAYS_FINITE,
            "do": initialisation(layer),
        },
    )


def _underflow(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in run.layers:
        zeros = layer.look.number("gradient_zeros")
        if (
            layer.look.dtype != "float16"
            or len(zeros) < limit["looks"]
            or layer.kind in ("ReLU", "ReLU6", "Dropout")
        ):
            continue
        high = float(np.nanmedian(layer.gradient["absmax"])) if layer.gradient is not None else 1.0
        if np.median(zeros) >= limit["share"] and high < limit["largest"]:
            yield Seen(layer.name, {"share": float(np.median(zeros)), "high": high})


def _evaluation(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    depends = [
        layer
        for layer in run.layers
        if layer.order >= 0 and ("Dropout" in layer.kind or "BatchNorm" in layer.kind) and not layer.training
    ]
    every = [
        layer
        for layer in run.layers
        if layer.order >= 0 and ("Dropout" in layer.kind or "BatchNorm" in layer.kind)
    ]
    if (
        every
        and len(depends) == len(every)
        and run.steps >= limit["steps"]
        and all(not layer.training for layer in run.layers)
    ):
        yield Seen("", {"names": ", ".join(sorted({layer.kind for layer in depends}))})


RULES = (
    Rule(
        id="nonfinite.input",
        severity=Severity.ERROR,
        looks_at="every input of the model, every step",
        definition="The first value of the run that is NaN or infinite is in an input of the model.",
        seen="{number} of {count} input values are NaN or infinite in step {step}: the first of the run",
        cause="the data has them: missing values, division by a deviation of 0, a broken file",
        remedy="torch.nan_to_num or drop such rows in the dataset; assert torch.isfinite(x).all() there finds them",
        fine_when="the model masks them itself before any arithmetic",
        explains=(
            "nonfinite.first",
            "loss.nonfinite",
            "gradient.grows",
            "activation.grows",
            "relu.dead",
            "fp16.overflow",
            "parameter.never_updated",
            "update.too_large",
            "output.constant",
        ),
        find=_input,
    ),
    Rule(
        id="update.too_large",
        severity=Severity.WARN,
        looks_at="update over weight (root mean squares of 1024 elements) of every weight, in the first looks",
        definition="The median over the weights is above 0.3 in one step, and the loss does not fall; 1.5 where no "
        "loss is logged. With a closure, as LBFGS has one, only where the loss rises.",
        limits=(
            Limit(
                "ratio",
                0.3,
                "of the weight in one step",
                "a thousandth is usual; healthy trainings stay below",
            ),
        ),
        seen="one step changes the weights by {typical:.2g} of their size (this one by {worst:.2g}); 0.001 is usual",
        cause="the learning rate {lr} is too high for these gradients: each step overwrites what was there",
        remedy="{do}; warm-up; torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        fine_when="the loss falls none the less",
        explains=(
            "loss.diverged",
            "loss.flat",
            "loss.nonfinite",
            "nonfinite.first",
            "gradient.grows",
            "activation.grows",
            "relu.dead",
            "activation.saturated",
            "softmax.one_choice",
            "attention.collapse",
            "output.constant",
            "parameter.never_updated",
            "batchnorm.mismatch",
            "gradient.vanishing",
            "gradient.exploding",
            "fp16.overflow",
            "layernorm.below_eps",
        ),
        find=_too_large,
    ),
    Rule(
        id="mode.evaluation",
        severity=Severity.WARN,
        looks_at="the mode of every layer that ran",
        definition="All layers run in eval mode while the model trains, dropout or batch norm among them.",
        limits=(Limit("steps", 10, "steps", "as many must have been seen"),),
        seen="the whole model trains in eval mode: {names} do not do what they do in training",
        cause="model.eval() was called and not undone, before or inside the training loop",
        remedy="model.train() at the head of each epoch; torchtap.modes.guard(model) names the line that called eval()",
        fine_when="a pretrained model is fitted without its dropout on purpose",
        find=_evaluation,
    ),
    Rule(
        id="fp16.overflow",
        severity=Severity.ERROR,
        looks_at="the first value that is not finite, and the dtype of its layer",
        definition="It is in a float16 layer, and the loss or the parameters are not finite either.",
        seen="{what} is infinite or NaN in step {step}, in float16, whose largest number is {most:.0f}; the largest "
        "value before it was {high:.3g}",
        cause="a value is beyond the range of float16",
        remedy="torch.autocast(dtype=torch.bfloat16), which has the range of float32; or with float16 "
        "torch.amp.GradScaler, and this layer in float32: with torch.autocast(device_type, enabled=False)",
        fine_when="a GradScaler tries its scale: it skips such a step and goes on",
        explains=("loss.nonfinite", "nonfinite.first", "gradient.grows", "activation.grows", "relu.dead"),
        find=_overflow,
    ),
    Rule(
        id="fp16.underflow",
        severity=Severity.WARN,
        looks_at="share of zeros in gradients that are float16, every tenth step; their largest value",
        definition="Half of the gradient is exactly 0 and the rest is below 1e-5.",
        limits=(
            Limit("share", 0.5, "of the values", "a rectifier makes as many, but not small ones"),
            Limit("largest", 1e-5, "", "float16 is subnormal below 6.1e-5 and 0 below 6e-8"),
            Limit("looks", 2, "looks", "one batch may do it"),
        ),
        seen="{share:.0%} of its float16 gradient is exactly 0; the largest is {high:.1g}",
        cause="gradients are below the smallest numbers of float16 and become 0",
        remedy="scaler = torch.amp.GradScaler(); scaler.scale(loss).backward(); scaler.step(optimizer); "
        "scaler.update(); or torch.autocast(dtype=torch.bfloat16)",
        fine_when="never",
        explains=(
            "loss.flat",
            "parameter.never_updated",
            "gradient.vanishing",
            "update.too_small",
            "gradients.cleared_before_step",
        ),
        find=_underflow,
    ),
    Rule(
        id="nonfinite.first",
        severity=Severity.ERROR,
        looks_at="every output and gradient of every layer, every step",
        definition="The first value that is NaN or infinite, where the loss or the parameters have become so, too.",
        seen="in step {step} {number} of {count} values of its {what} are NaN or infinite: the first of the run",
        cause="{why}",
        remedy="torch.autograd.set_detect_anomaly(True) names the operation for a gradient; add an eps under sqrt, log "
        "and division; clip the gradient's norm; lower the learning rate if values grew before",
        fine_when="masks give -inf on purpose and the loss stays finite (then nothing is told)",
        explains=("loss.nonfinite", "parameter.never_updated", "output.constant"),
        find=_first,
    ),
    Rule(
        id="loss.nonfinite",
        severity=Severity.ERROR,
        looks_at="the loss that was logged",
        definition="It is NaN or infinite in some step.",
        seen="the loss is NaN or infinite from step {step} on",
        cause="{why}",
        remedy="use the fused forms, which are stable: cross_entropy for log_softmax and nll, "
        "binary_cross_entropy_with_logits for sigmoid and log; clamp what goes into log, sqrt and division",
        fine_when="never",
        explains=("output.constant", "parameter.never_updated"),
        find=_loss,
    ),
    Rule(
        id="loss.diverged",
        severity=Severity.WARN,
        looks_at="the loss that was logged",
        definition="At the end it is ten times that of the start.",
        limits=(Limit("factor", 10, "times", _HEALTHY), Limit("points", 6, "points", "fewer are no trend")),
        seen="the loss rose from {first:.3g} to {last:.3g}",
        cause="the steps lead uphill: the learning rate is too high, or the loss has the wrong sign",
        remedy="a tenth of the learning rate; torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); check the sign",
        fine_when="the loss is one side of a game (GAN) or its targets move (reinforcement learning)",
        find=_diverged,
    ),
    Rule(
        id="update.too_small",
        severity=Severity.WARN,
        looks_at="update over weight (root mean squares of 1024 elements) of every weight",
        definition="The median over the weights is below 1e-6 in the first half of the run, and the loss does not "
        "fall.",
        limits=(
            Limit(
                "ratio",
                2e-6,
                "of the weight in one step",
                "a thousandth is usual; 1e-6 changes 0.1 % in 1,000 steps",
            ),
            Limit("steps", 20, "steps", "as many must have been seen"),
        ),
        seen="one step changes the weights by {ratio:.1g} of their size; 0.001 is usual",
        cause="the learning rate {lr:.3g} is too low for these gradients",
        remedy="lr={do:.1g}, or an adaptive optimizer (torch.optim.AdamW(model.parameters(), lr=1e-3))",
        fine_when="a converged model is refined",
        explains=("loss.flat",),
        find=_too_small,
    ),
    Rule(
        id="loss.flat",
        severity=Severity.INFO,
        looks_at="the loss that was logged",
        definition="After 100 steps and more, of one forward each, it is where it began, within 2 %, and it never left "
        "that by 15 %.",
        limits=(
            Limit("steps", 100, "steps", "slow learners need as many"),
            Limit("spread", 0.15, "of the loss", _HEALTHY),
        ),
        seen="the loss is {last:.4g} after {steps} steps; it began at {first:.4g}",
        cause="nothing that is measured tells why: labels that do not belong to the inputs, a model that cannot tell "
        "them apart, a loss of the wrong thing, or a learning rate far too low or high",
        remedy="overfit one batch: if its loss does not fall, the model or the loss is wrong, else the data; then "
        "try 10 and a tenth of the learning rate",
        fine_when="the loss is one side of a game, or the model has converged",
        find=_flat,
    ),
)
