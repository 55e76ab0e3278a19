"""The optimizer and what it holds: the silent classics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import listed, matrices, trend
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import ParameterRun, Run

_MEASURED = "measured: docs/cases.md, none of the healthy trainings reaches it"


def _missing(run: Run) -> list[ParameterRun]:
    """Trainable, not in the optimizer, and nobody else moves them."""
    return [
        each
        for each in run.parameters
        if each.requires_grad and each.in_optimizer is False and not each.moved
    ]


def _others(run: Run) -> bool:
    """Whether the optimizer holds what has the shapes of those that are missing."""
    if run.optimizer is None:
        return False
    shapes = Counter(run.optimizer.stranger_shapes)
    missing = Counter(each.shape for each in _missing(run)[:64])
    return bool(missing) and sum((missing & shapes).values()) * 2 >= sum(missing.values())


def _other_parameters(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.optimizer is not None and run.steps >= limit["steps"] and _others(run):
        missing = _missing(run)
        yield Seen(
            missing[0].name,
            {
                "strangers": run.optimizer.strangers,
                "held": run.optimizer.held,
                "missing": len(missing),
                "kind": run.optimizer.kind,
            },
        )


def _misses(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    missing = _missing(run)
    if run.optimizer is None or run.steps < limit["steps"] or not missing or _others(run):
        return
    held = [each for each in run.parameters if each.in_optimizer]
    order = {layer.name: layer.order for layer in run.layers}
    places = [order.get(each.layer, -1) for each in held]
    before = bool(held) and all(order.get(each.layer, 1 << 30) < min(places) for each in missing)
    yield Seen(
        missing[0].name,
        {
            "missing": len(missing),
            "names": listed([each.name for each in missing]),
            "kind": run.optimizer.kind,
        },
        Severity.INFO if before else None,
    )


def _rate_zero(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.optimizer is None or run.steps < limit["steps"]:
        return
    rates = np.array(run.optimizer.rates)
    if len(rates) and (rates == 0).mean() >= limit["share"]:
        yield Seen("", {"what": "the learning rate of every group is 0", "kind": run.optimizer.kind})
        return
    still = [each for each in run.parameters if each.lr == 0 and each.requires_grad and not each.moved]
    if still and len(rates) and rates[-1] > 0:
        yield Seen(
            still[0].name,
            {
                "what": f"the learning rate of its group is 0 ({len(still)} parameters)",
                "kind": run.optimizer.kind,
            },
        )


def _rate_collapsed(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.optimizer is None or len(run.optimizer.rates) < limit["steps"]:
        return
    rates = np.array(run.optimizer.rates)
    small = rates < limit["factor"] * rates.max()
    peak = int(rates.argmax())
    if rates.max() > 0 and small[peak:].mean() > limit["share"] and small[-1] and (rates == 0).mean() < 0.9:
        since = int(np.flatnonzero(small[peak:])[0]) + peak
        yield Seen(
            "",
            {
                "first": rates.max(),
                "last": rates[-1],
                "since": since,
                "of": run.steps,
                "share": small[peak:].mean(),
            },
        )


def _rate_bounces(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    """Down to nothing and smoothly up again: a cosine beyond its T_max."""
    if run.optimizer is None or len(run.optimizer.rates) < limit["steps"]:
        return
    rates = np.array(run.optimizer.rates)
    top = rates.max()
    if top <= 0 or rates[0] < 0.9 * top:
        return
    low = int(rates.argmin())
    after = rates[low:]
    smooth = float(np.diff(rates).max(initial=0)) < limit["jump"] * top
    if rates[low] < limit["factor"] * top and after.max() > 0.5 * top and smooth:
        yield Seen("", {"low": low, "first": top, "again": after.max()})


def _no_effect(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.optimizer is None or run.steps < limit["steps"] or not max(run.optimizer.rates, default=0):
        return
    with_gradient = [
        each
        for each in matrices(run)
        if each.in_optimizer and (each.gradient[np.isfinite(each.gradient)] > 0).any()
    ]
    still = [each for each in with_gradient if not each.moved_in_step and not each.moved]
    if with_gradient and len(still) == len(with_gradient):
        rounded = all(each.dtype in ("bfloat16", "float16") for each in still)
        if not rounded:
            yield Seen(still[0].name, {"number": len(still), "kind": run.optimizer.kind})


def _rounded(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.optimizer is None or run.steps < limit["steps"]:
        return
    for each in matrices(run):
        has = (each.gradient[np.isfinite(each.gradient)] > 0).any()
        half = each.dtype in ("bfloat16", "float16")
        if has and half and each.lr and each.in_optimizer and not each.moved:
            yield Seen(each.name, {"dtype": each.dtype, "lr": each.lr})


def _never_steps(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if not run.steps and run.training_passes >= limit["passes"]:
        yield Seen("", {"passes": run.training_passes})


def _undone(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if run.undone >= limit["looks"]:
        yield Seen("", {"looks": run.undone})


def _frozen_moves(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    for each in run.parameters:
        if not each.requires_grad and each.moved_in_step:
            yield Seen(
                each.name, {"kind": run.optimizer.kind if run.optimizer is not None else "the optimizer"}
            )


def _shared(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    held = {each.name for each in run.parameters if each.in_optimizer and each.requires_grad}
    for one, other in run.shared_storage:
        if one in held and other in held:
            yield Seen(other, {"other": one})


def _copied(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:  # noqa: ARG001
    moved = {each.name for each in run.parameters if each.moved}
    for one, other in run.copies:
        if one in moved or other in moved:
            yield Seen(other, {"other": one})


def _decayed(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    shrunk = [
        each
        for each in matrices(run)
        if each.weight_decay
        and len(each.value) > 1
        and each.value[0] > 0
        and each.value[-1] < limit["factor"] * each.value[0]
    ]
    if shrunk and len(shrunk) * 2 > len(matrices(run)) and trend(run) != "falls":
        worst = min(shrunk, key=lambda each: each.value[-1] / each.value[0])
        yield Seen(
            worst.name,
            {"number": len(shrunk), "factor": worst.value[-1] / worst.value[0], "decay": worst.weight_decay},
        )


_STEPS = Limit("steps", 5, "steps", "as many must have been seen")
_ALL_FLAT = ("loss.flat", "parameter.never_updated", "output.constant", "optimizer.misses_parameters")

RULES = (
    Rule(
        id="optimizer.other_parameters",
        severity=Severity.WARN,
        looks_at="the parameters that the optimizer holds, by identity",
        definition="Trainable parameters of the model are not in the optimizer and never change, and the optimizer "
        "holds parameters of the same shapes that are not the model's.",
        limits=(_STEPS,),
        seen="{strangers} of {held} parameters that the optimizer holds are not the model's; {missing} of the model's "
        "are in no optimizer and do not move",
        cause="the optimizer was built before the model was copied, loaded, moved or replaced: it trains parameters "
        "that nobody uses",
        remedy="build it last: optimizer = torch.optim.{kind}(model.parameters(), ...) after the model is in its final "
        "place",
        fine_when="another optimizer, that was not watched, will train them later",
        explains=(*_ALL_FLAT, "optimizer.no_effect", "gradients.never_cleared", "gradients.cleared_rarely"),
        find=_other_parameters,
    ),
    Rule(
        id="lr.zero",
        severity=Severity.WARN,
        looks_at="the learning rate at every step",
        definition="The learning rate is 0 in nearly all steps, or that of one group is and its parameters never move.",
        limits=(_STEPS, Limit("share", 0.9, "of the steps", "a warm-up begins at 0 and leaves it")),
        seen="{what}",
        cause="nothing can change: a scheduler has reached its end or multiplies by 0, or the rate was set so",
        remedy="{kind}(..., lr=...) above 0; with LambdaLR the function's value is multiplied with lr, so it must not "
        "be 0 (integer division such as epoch // warmup gives 0)",
        fine_when="these parameters are kept as they are on purpose; requires_grad_(False) says so and is cheaper",
        explains=(*_ALL_FLAT, "optimizer.no_effect", "lr.collapsed", "update.too_small", "parameter.rounded"),
        find=_rate_zero,
    ),
    Rule(
        id="optimizer.no_effect",
        severity=Severity.WARN,
        looks_at="64 elements of every parameter around every tenth step",
        definition="No parameter is changed by any step that was looked at, though there are gradients and lr is not "
        "0.",
        limits=(_STEPS,),
        seen="the step of {kind} changed none of {number} weights that have gradients",
        cause="the step is not carried out, or what it does is undone: a GradScaler that skips every step, a wrapper "
        "that does not call it, updates too small for the dtype, or the values are restored right away",
        remedy="check that optimizer.step() itself runs, and that lr * gradient is not below the weight's rounding",
        fine_when="never",
        explains=_ALL_FLAT,
        find=_no_effect,
    ),
    Rule(
        id="optimizer.never_steps",
        severity=Severity.WARN,
        looks_at="forwards that record gradients, and steps that ended",
        definition="No step ended, though the model ran forward in training many times.",
        limits=(Limit("passes", 8, "forwards", "more micro-batches than most accumulate"),),
        seen="{passes} forwards recorded gradients, and no step ended, so nothing else was measured",
        cause="optimizer.step() is not called, or of another optimizer than watch() was given; a GradScaler leaves out "
        "every step; without an optimizer, w.step() is not called",
        remedy="torchtap.watch(model, optimizer) with the optimizer whose step() the loop calls, or w.step() right "
        "after it",
        fine_when="gradients are accumulated over more forwards than ran until now",
        find=_never_steps,
    ),
    Rule(
        id="parameter.undone",
        severity=Severity.WARN,
        looks_at="64 elements of every parameter before every tenth step",
        definition="Steps change the parameters, and later looks find all of them as they were at the very start.",
        limits=(Limit("looks", 2, "looks", "one may be a restart"),),
        seen="before {looks} later steps all parameters were those of the start again, to the bit",
        cause="the loop loads or builds the model anew in every step, so no step adds to the one before",
        remedy="load the state once, before the loop: take model.load_state_dict(...) or the model's construction out "
        "of it",
        fine_when="the run restarts from one state on purpose, as meta-learning and learning-rate tests do",
        explains=(*_ALL_FLAT, "batch.same"),
        find=_undone,
    ),
    Rule(
        id="optimizer.frozen_moves",
        severity=Severity.WARN,
        looks_at="parameters that require no gradient, around every tenth step",
        definition="The optimizer's step changes a parameter with requires_grad=False.",
        seen="requires_grad is False, and the step of {kind} changes it",
        cause="it was frozen after training had begun: its .grad is still there, and momentum and weight decay go on",
        remedy="when freezing also do parameter.grad = None, and leave it out of the optimizer: "
        "torch.optim.{kind}([p for p in model.parameters() if p.requires_grad], ...)",
        fine_when="never; an average that is copied into the model between steps is not counted",
        find=_frozen_moves,
    ),
    Rule(
        id="parameter.shared_storage",
        severity=Severity.WARN,
        looks_at="where parameters lie in memory",
        definition="Two trainable parameters that the optimizer holds are different objects in the same memory.",
        seen="it lies in the memory of {other}, and both are in the optimizer",
        cause="tied through .data: each has a gradient of its own, and every step changes the memory twice",
        remedy="tie the parameter itself: module.weight = other.weight, before the optimizer is built",
        fine_when="the double update is wanted",
        find=_shared,
    ),
    Rule(
        id="parameter.copied_not_tied",
        severity=Severity.WARN,
        looks_at="weights of embeddings and linear layers of one shape, at the start and now",
        definition="They were equal before the first step, are two parameters, and go apart.",
        seen="at the start it was equal to {other}; it is another parameter and has gone its own way",
        cause="the tie was made by copying values (or undone by a copy or a load), so the weights are not shared",
        remedy="tie the parameter itself: head.weight = embedding.weight, after loading and before the optimizer is "
        "built",
        fine_when="the embedding only gives the start values",
        find=_copied,
    ),
    Rule(
        id="lr.collapsed",
        severity=Severity.WARN,
        looks_at="the learning rate at every step",
        definition="The learning rate is below a thousandth of its peak in more than a quarter of the steps after it.",
        limits=(
            Limit("steps", 20, "steps", "fewer show no schedule"),
            Limit("factor", 1e-3, "of the peak", "a cosine is below it in its last 2 % of steps"),
            Limit("share", 0.25, "of the steps", "a cosine or linear decay is below it in 2 %"),
        ),
        seen="the learning rate fell from {first:.3g} to {last:.3g}; from step {since} on ({share:.0%} of the steps) "
        "it was below a thousandth",
        cause="the scheduler is stepped too often: after every batch where its numbers are meant in epochs",
        remedy="call scheduler.step() once an epoch, or give step_size, gamma and T_max in batches",
        fine_when="the rest of the run is there to average or to evaluate",
        explains=(*_ALL_FLAT, "update.too_small"),
        find=_rate_collapsed,
    ),
    Rule(
        id="lr.bounces",
        severity=Severity.WARN,
        looks_at="the learning rate at every step",
        definition="The learning rate starts high, falls below a thousandth of that, and smoothly rises again.",
        limits=(
            Limit("steps", 20, "steps", "fewer show no schedule"),
            Limit("factor", 1e-3, "of the peak", "cyclic schedules stay above it as a rule"),
            Limit("jump", 0.5, "of the peak, in one step", "a restart jumps"),
        ),
        seen="the learning rate fell from {first:.3g} to nothing at step {low} and rose to {again:.3g} again",
        cause="CosineAnnealingLR beyond its T_max: it is stepped more often than T_max says, and a cosine comes back",
        remedy="T_max = number of scheduler steps in the whole run (epochs * batches where it is stepped every batch)",
        fine_when="a cycle without restart is wanted",
        find=_rate_bounces,
    ),
    Rule(
        id="optimizer.misses_parameters",
        severity=Severity.WARN,
        looks_at="the parameters that the optimizer holds, by identity",
        definition="Parameters that require a gradient are in no group of the optimizer and never change.",
        limits=(_STEPS,),
        seen="{missing} trainable parameters are not in the optimizer and do not move: {names}",
        cause="they were added after the optimizer was built, left out of its groups, or are in a list that is no "
        "nn.ModuleList",
        remedy="build {kind} from model.parameters() once the model is complete, or optimizer.add_param_group(...)",
        fine_when="they are kept as they are on purpose; requires_grad_(False) says so and saves their gradients",
        explains=("loss.flat", "parameter.never_updated"),
        find=_misses,
    ),
    Rule(
        id="parameter.rounded",
        severity=Severity.WARN,
        looks_at="64 elements of every parameter over the run, dtype, gradient",
        definition="A float16 or bfloat16 weight with gradients, in the optimizer, lr above 0, has not changed in a "
        "bit.",
        limits=(_STEPS,),
        seen="{dtype}, with gradients and lr {lr:.3g}, and no bit of it has changed",
        cause="the update is below half of the last digit of the weight, and rounding takes it away",
        remedy="keep the weights in float32 and compute under torch.autocast; or let an optimizer keep float32 copies",
        fine_when="never",
        explains=(*_ALL_FLAT, "update.too_small"),
        find=_rounded,
    ),
    Rule(
        id="weight_decay.too_large",
        severity=Severity.WARN,
        looks_at="root mean square of every weight over the run",
        definition="Most weights shrink below a tenth of what they were, with weight decay, and the loss does not "
        "fall.",
        limits=(Limit("factor", 0.1, "of the value at the start", _MEASURED),),
        seen="{number} weights shrink; this one to {factor:.2g} of what it was",
        cause="weight_decay={decay:.3g} pulls them to 0 faster than the gradients build them up",
        remedy="weight_decay=1e-2 with AdamW, 1e-4 with SGD are usual; no decay for biases and normalisation",
        fine_when="a sparse or pruned model is wanted",
        explains=(
            *_ALL_FLAT,
            "activation.vanishing",
            "gradient.vanishing",
            "relu.dead",
            "layernorm.below_eps",
        ),
        find=_decayed,
    ),
)
