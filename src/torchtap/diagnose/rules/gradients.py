"""Gradients: whether they come, go, and how they change with depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import access, deep, follows_depth, initialisation, listed, size
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import LayerRun, ParameterRun, Run

_HEALTHY = "measured on the healthy trainings of docs/cases.md: none comes near"


def len_of(layer: LayerRun) -> int:
    """Points of its output's gradient."""
    return 0 if layer.gradient is None else len(layer.gradient)


def _is_reached(layer: LayerRun, share: float = 0.0) -> bool:
    """Whether its output had a gradient that is not 0: ever, and in this share of the points."""
    there = layer.gradient is not None and layer.gradient["absmax"] > 0
    return bool(np.any(there) and np.mean(there) >= share)


def _cleared_before_step(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    optimizer = run.optimizer
    if (
        optimizer is None
        or optimizer.closure
        or run.steps < limit["steps"]
        or optimizer.strangers == optimizer.held
    ):
        return
    trainable = any(each.requires_grad for each in run.parameters)
    reached = [each for each in run.layers if each.parameters and _is_reached(each, limit["share"])]
    if run.no_gradient_before_steps and trainable and reached:
        yield Seen("", {"kind": optimizer.kind, "layer": reached[-1].name})


def _never_cleared(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    kept, looks = run.gradients_kept
    if looks >= limit["looks"] and kept >= limit["share"] * looks:
        yield Seen("", {"kept": kept, "looks": looks})


def _cleared_rarely(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    kept, looks = run.gradients_kept
    if looks >= limit["looks"] and limit["low"] * looks <= kept < limit["high"] * looks:
        yield Seen("", {"kept": kept, "looks": looks})


def _untouched(run: Run, *, ran: bool) -> list[ParameterRun]:
    calls = {layer.name: layer.calls for layer in run.layers}
    found = []
    for each in run.parameters:
        if (
            not each.requires_grad
            or each.had_gradient
            or each.moved
            or not run.optimizer
            or run.optimizer.closure
        ):
            continue
        own = calls.get(each.layer)
        below = [
            number for name, number in calls.items() if not each.layer or name.startswith(f"{each.layer}.")
        ]
        did = bool(own) if own is not None else any(below)
        if did == ran:
            found.append(each)
    return found


def _no_gradient(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    found = _untouched(run, ran=True)
    cleared = run.no_gradient_before_steps and any(_is_reached(each) for each in run.layers)
    if run.steps < limit["steps"] or not found or cleared:
        return
    yield Seen(found[0].name, {"number": len(found), "names": listed([each.name for each in found])})


def _unused(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    found = _untouched(run, ran=False)
    if run.steps < limit["steps"] or not found or run.no_gradient_before_steps:
        return
    yield Seen(found[0].name, {"number": len(found), "names": listed([each.name for each in found])})


def _norms(run: Run) -> tuple[list[LayerRun], np.ndarray]:
    """Layers by depth, and the L2 norm of the gradient of their output in one step: medians over the run."""
    layers = [each for each in deep(run, "gradient") if len_of(each) and each.look.shape]
    norms = []
    for each in layers:
        assert each.gradient is not None
        rms = each.gradient["rms"].astype(np.float64)
        rms = rms[np.isfinite(rms)]
        norms.append((float(np.median(rms)) if len(rms) else np.nan) * size(each) ** 0.5)
    there = [place for place, norm in enumerate(norms) if np.isfinite(norm)]
    return [layers[place] for place in there], np.array([norms[place] for place in there])


def _vanishing(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    layers, norms = _norms(run)
    if len(layers) < limit["layers"]:
        return
    top = norms[-3:].max()
    if top <= 0 or norms[:2].max() > limit["factor"] * top:
        return
    with np.errstate(divide="ignore"):
        small = np.log10(np.maximum(norms / top, 1e-40))
    if follows_depth(small) < limit["correlation"] or np.diff(small).max() > limit["one"] * np.ptp(small):
        return
    since = int(np.flatnonzero(norms < 1e-2 * top)[-1])
    layer = layers[since]
    activations = {each.after_kind for each in layers[:-1]}
    squashing = sorted(activations & {"Tanh", "Sigmoid", "Softsign", "Hardtanh"})
    if squashing:
        why = f"each {' and '.join(squashing)} multiplies the gradient by its derivative, which is below 1"
        do = (
            f"ReLU or GELU in place of {' and '.join(squashing)} with {initialisation(layer, activation='ReLU')}; else "
            "normalisation or residual connections between the layers"
        )
    else:
        why = (
            "each layer multiplies the gradient by less than 1: weights too small, or saturated or dead units"
        )
        do = f"{initialisation(layer)}; normalisation (nn.LayerNorm) or residual connections between the layers"
    per_layer = float((norms[since] / top) ** (1 / max(1, len(layers) - 1 - since)))
    yield Seen(
        layer.name,
        {
            "first": layers[0].name,
            "ratio": norms[0] / top,
            "depth": len(layers),
            "from_end": len(layers) - since,
            "factor": per_layer,
            "why": why,
            "do": do,
        },
    )


def _exploding(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    layers, norms = _norms(run)
    if len(layers) < limit["layers"] or norms[-3:].max() <= 0:
        return
    ratio = norms[:2].max() / norms[-2:].max()
    if ratio < limit["factor"] or follows_depth(norms) > -limit["correlation"]:
        return
    since = int(np.flatnonzero(norms > 1e2 * norms[-2:].max())[-1])
    yield Seen(
        layers[since].name,
        {
            "first": layers[0].name,
            "ratio": ratio,
            "depth": len(layers),
            "do": f"{initialisation(layers[since])}; nn.LayerNorm between the layers",
        },
    )


def _grows(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    """Of all parameters together, over time."""
    held = [each for each in run.parameters if len(each.steps) and each.requires_grad]
    if not held:
        return
    longest = max(len(each.steps) for each in held)
    held = [each for each in held if len(each.steps) == longest]
    sizes = np.array([float(np.prod(each.shape)) for each in held])
    squares = np.array([each.gradient.astype(np.float64) ** 2 for each in held]) * sizes[:, None]
    total = np.sqrt(np.nansum(squares, axis=0))
    finite = total[np.isfinite(total)]
    if len(finite) < 3 or finite[0] <= 0:
        return
    if finite.max() > limit["factor"] * float(np.median(finite[:2])) and finite.max() > limit["norm"]:
        worst = held[int(np.nan_to_num(squares[:, int(np.nanargmax(total))]).argmax())]
        yield Seen(worst.name, {"first": finite[0], "high": finite.max()})


def _frozen_by_mistake(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    """Frozen, never trained, and not at the input side of what trains."""
    if run.steps < limit["steps"]:
        return
    weights = [each for each in run.parameters if len(each.shape) >= 2]
    order = {layer.name: layer.order for layer in run.layers if layer.order >= 0}
    trained = [each for each in weights if each.requires_grad and each.layer in order]
    frozen = [
        each
        for each in weights
        if not each.requires_grad and each.fresh and not each.moved and each.layer in order
    ]
    if not trained or not frozen:
        return
    first = min(order[each.layer] for each in trained)
    last = max(order.values())
    inside = [each for each in frozen if order[each.layer] > first and not _adapted(each, run)]
    if not inside or (len(inside) > limit["layers"] and max(order[each.layer] for each in inside) < last):
        return
    yield Seen(
        inside[0].name,
        {
            "number": len(inside),
            "before": min(trained, key=lambda each: order[each.layer]).layer,
            "at": access(inside[0].name),
        },
    )


def _adapted(frozen: ParameterRun, run: Run) -> bool:
    """Whether something trainable stands beside it in a module of its own, as adapters do."""
    holder = frozen.layer.rpartition(".")[0]
    near = f"{holder}." if holder and not holder.rpartition(".")[2].isdigit() else f"{frozen.layer}."
    near = (
        f"{holder}."
        if holder.count(".") or (holder and not frozen.layer.rpartition(".")[2].isdigit())
        else near
    )
    return any(each.requires_grad and each.name.startswith(near) for each in run.parameters)


def _equal_units(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    layers = {layer.name: layer for layer in run.layers}
    for each in run.parameters:
        layer = layers.get(each.layer)
        if layer is None or not each.requires_grad or run.steps < limit["steps"] or each.shape[0] < 2:
            continue
        if (
            layer.fan_in is None
            or len(each.shape) < 2
            or not each.equal_units
            or (each.zero and not _idle(each))
        ):
            continue
        what = "0" if each.zero else "equal for all units"
        yield Seen(each.name, {"what": what, "units": each.shape[0], "do": initialisation(layer)}, None)


def _idle(parameter: ParameterRun) -> bool:
    """Whether it has had gradients of exactly 0 only, or none."""
    known = parameter.gradient[np.isfinite(parameter.gradient)]
    return bool(len(parameter.steps)) and not (known > 0).any()


def _never_updated(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for each in run.parameters:
        if (
            not each.requires_grad
            or not each.in_optimizer
            or not each.lr
            or each.moved
            or run.steps < limit["steps"]
        ):
            continue
        if len(each.shape) < 2:  # the bias of what is subtracted or normalised next has no gradient by nature
            continue
        known = each.gradient[np.isfinite(each.gradient)]
        if each.had_gradient and len(known) >= limit["looks"] and not (known > 0).any():
            yield Seen(each.name, {"looks": len(known)})


_STEPS = Limit("steps", 10, "steps", "as many must have been seen")

RULES = (
    Rule(
        id="gradients.cleared_before_step",
        severity=Severity.WARN,
        looks_at="the parameters' gradients right before every tenth step; the gradients of the layers' outputs",
        definition="Gradients reach the layers, and right before the optimizer's step no parameter has one that is "
        "not 0.",
        limits=(
            Limit("steps", 5, "steps", "as many must have been seen"),
            Limit(
                "share",
                0.9,
                "of the points",
                "behind a ReLU that is dead for most inputs they are 0 by themselves",
            ),
        ),
        seen="gradients reach {layer}, and right before each step of {kind} all parameters have none or 0",
        cause="zero_grad() runs between backward() and step(), so the step has nothing to go by",
        remedy="in this order: optimizer.zero_grad(); loss.backward(); optimizer.step()",
        fine_when="never",
        explains=(
            "loss.flat",
            "parameter.never_updated",
            "optimizer.no_effect",
            "parameter.no_gradient",
            "update.too_small",
        ),
        find=_cleared_before_step,
    ),
    Rule(
        id="gradients.never_cleared",
        severity=Severity.WARN,
        looks_at="16 elements of three weights' gradients, when a backward arrives, in some pairs of steps",
        definition="When the first backward after a step arrives, the gradient of before that step is still there, "
        "to the bit, and no backward of that step finds it cleared.",
        limits=(
            Limit("looks", 6, "looks", "three layers in two steps"),
            Limit("share", 0.9, "of the looks", "all, but for chance"),
        ),
        seen="in {kept} of {looks} looks the gradient of the step before was still there when the next was added",
        cause="zero_grad() is never called, or of another optimizer or model: every step goes by the sum of all "
        "gradients since the start",
        remedy="optimizer.zero_grad() before each loss.backward() (or once a step with gradient accumulation)",
        fine_when="the sum is wanted, as a momentum of its own",
        explains=(
            "gradient.grows",
            "loss.flat",
            "loss.diverged",
            "loss.nonfinite",
            "nonfinite.first",
            "update.too_large",
            "activation.grows",
            "activation.exploding",
            "relu.dead",
            "output.constant",
            "activation.saturated",
        ),
        find=_never_cleared,
    ),
    Rule(
        id="gradients.cleared_rarely",
        severity=Severity.WARN,
        looks_at="16 elements of three weights' gradients, when a backward arrives, in some pairs of steps",
        definition="As gradients.never_cleared, in a part of the steps only.",
        limits=(
            Limit("looks", 6, "looks", "three layers in two steps"),
            Limit("low", 0.2, "of the looks", "fewer may be a restart"),
            Limit("high", 0.9, "of the looks", "more is never"),
        ),
        seen="in {kept} of {looks} looks the gradient of the step before was still there when the next was added",
        cause="step() runs more often than zero_grad(): with gradient accumulation both belong to the same steps",
        remedy="if (i + 1) % accumulate == 0: optimizer.step(); optimizer.zero_grad()",
        fine_when="the sum is wanted",
        explains=("gradient.grows", "loss.flat", "loss.diverged"),
        find=_cleared_rarely,
    ),
    Rule(
        id="parameter.equal_units",
        severity=Severity.WARN,
        looks_at="every weight of two dimensions and more, now",
        definition="All units of a trainable weight are equal to the bit after training; a weight of 0 counts where "
        "its gradient was 0 throughout.",
        limits=(_STEPS,),
        seen="its weight is {what}, in each of {units} units, after training",
        cause="it was initialised with one value: equal units get equal gradients, and stay one unit for ever",
        remedy="{do}",
        fine_when="the weight is not meant to train",
        explains=(
            "loss.flat",
            "parameter.never_updated",
            "gradient.vanishing",
            "output.constant",
            "relu.dead",
            "activation.vanishing",
            "init.too_wide",
            "activation.exploding",
            "init.too_small",
            "layernorm.below_eps",
        ),
        find=_equal_units,
    ),
    Rule(
        id="parameter.no_gradient",
        severity=Severity.WARN,
        looks_at="whether each parameter ever has a gradient before a step",
        definition="A parameter requires a gradient, its layer runs, and before no step it had one.",
        limits=(_STEPS,),
        seen="{number} parameters of layers that run never had a gradient: {names}",
        cause="the graph is cut between this layer and the loss: .detach(), .data, .item(), torch.no_grad(), argmax or "
        "numpy on the way, or the output is not used in the loss; where it is every parameter, loss.backward() may be "
        "missing",
        remedy="take the cut out, or add the output's term to the loss; layer by layer: print(output.requires_grad, "
        "output.grad_fn)",
        fine_when="it is meant to be frozen; requires_grad_(False) says so",
        explains=("loss.flat", "parameter.never_updated", "output.constant"),
        find=_no_gradient,
    ),
    Rule(
        id="parameter.unused",
        severity=Severity.WARN,
        looks_at="calls of each layer; whether each parameter ever has a gradient before a step",
        definition="A parameter requires a gradient, its layer never ran, and it never had a gradient nor changed.",
        limits=(_STEPS,),
        seen="{number} trainable parameters are in layers that never ran: {names}",
        cause="forward() does not call the layer: forgotten, or replaced by another",
        remedy="call it in forward(), or take it out of the model; DistributedDataParallel raises for it unless "
        "find_unused_parameters=True",
        fine_when="the layer has its turn later, or only in evaluation",
        find=_unused,
    ),
    Rule(
        id="parameter.frozen_inside",
        severity=Severity.WARN,
        looks_at="requires_grad, the order of layers, how weights are spread",
        definition="A weight is frozen, still has the values that PyTorch initialised it with, and comes after "
        "layers that train.",
        limits=(_STEPS, Limit("layers", 2, "layers", "more, with a trained head, are frozen on purpose")),
        seen="requires_grad is False in {number} weights after {before}, which trains; it has the values that it was "
        "initialised with",
        cause="the wrong part was frozen: this layer was neither trained nor loaded",
        remedy="{at}.requires_grad_(True), before the optimizer is built",
        fine_when="random features are wanted here",
        explains=("loss.flat",),
        find=_frozen_by_mistake,
    ),
    Rule(
        id="gradient.vanishing",
        severity=Severity.WARN,
        looks_at="L2 norm of the gradient of every layer's output, every step",
        definition="By depth, from the loss to the input, the gradient falls below a ten-thousandth, step by step.",
        limits=(
            Limit("layers", 5, "layers with a weight", "fewer have no depth"),
            Limit("factor", 1e-4, "of the gradient at the end", _HEALTHY),
            Limit("correlation", 0.7, "(Spearman, with depth)", "it must be steady"),
            Limit(
                "one",
                0.6,
                "of the fall (logarithm) at one layer",
                "one layer that cuts off is another matter",
            ),
        ),
        seen="from here to the input the gradient is below a hundredth of that at the end ({from_end} layers from it), "
        "at {first} {ratio:.1g} of it; about x{factor:.2f} a layer",
        cause="{why}",
        remedy="{do}",
        fine_when="the first layers are not meant to train",
        explains=("loss.flat", "update.too_small", "output.constant", "relu.dead", "parameter.never_updated"),
        find=_vanishing,
    ),
    Rule(
        id="gradient.exploding",
        severity=Severity.WARN,
        looks_at="L2 norm of the gradient of every layer's output, every step",
        definition="By depth, from the loss to the input, the gradient grows by more than a thousand, step by step.",
        limits=(
            Limit("layers", 4, "layers with a weight", "fewer have no depth"),
            Limit("factor", 1e3, "of the gradient at the end", _HEALTHY),
            Limit("correlation", 0.7, "(Spearman, with depth)", "one layer is another matter"),
        ),
        seen="from here to the input the gradient grows; at {first} it is {ratio:.1g} times that at the end",
        cause="each of {depth} layers multiplies the gradient by more than 1: its weights are too large",
        remedy="{do}; torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before the step helps for a while",
        fine_when="never with plain SGD; adaptive optimizers bear it",
        explains=(
            "loss.diverged",
            "loss.flat",
            "loss.nonfinite",
            "nonfinite.first",
            "gradient.grows",
        ),
        find=_exploding,
    ),
    Rule(
        id="gradient.grows",
        severity=Severity.WARN,
        looks_at="L2 norm of all parameters' gradients, every tenth step",
        definition="The norm rises a thousandfold over that of the start and above 100.",
        limits=(Limit("factor", 1e3, "of the start", _HEALTHY), Limit("norm", 100, "L2 norm", _HEALTHY)),
        seen="the norm of all gradients went from {first:.2g} to {high:.2g}; this parameter has most of it",
        cause="training diverges: the learning rate is too high for the curvature, or a recurrence multiplies by more "
        "than 1 in every time step",
        remedy="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) between backward() and step(), and a tenth of "
        "the learning rate",
        fine_when="the loss is a sum that grows by itself",
        explains=("loss.diverged", "loss.nonfinite", "nonfinite.first", "loss.flat"),
        find=_grows,
    ),
    Rule(
        id="parameter.never_updated",
        severity=Severity.WARN,
        looks_at="gradient of every weight of two dimensions and more, at every tenth step",
        definition="A weight in the optimizer has gradients of exactly 0 at every look and has not changed.",
        limits=(_STEPS, Limit("looks", 3, "looks", "a few may be chance")),
        seen="its gradient was exactly 0 at all {looks} looks, and it has not changed",
        cause="nothing of the loss depends on it: a unit or layer after it is dead, multiplied by 0 or masked",
        remedy="look at the first layer after it whose output does not vary; a gate or scale of 0 before it must train "
        "itself",
        fine_when="it is masked or pruned on purpose",
        find=_never_updated,
    ),
)
