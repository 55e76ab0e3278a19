"""What layers give: dead, saturated, exploding, vanishing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import (
    access,
    deep,
    follows_depth,
    gain,
    initialisation,
    trend,
)
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import LayerRun, Run

_HEALTHY = "measured on the healthy trainings of docs/cases.md: none comes near"
_RECTIFIERS = ("ReLU", "ReLU6")


def _dead(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in run.layers:
        look = layer.look
        if look.dead is None or len(look.dead) < limit["units"] or len(look.number("dead")) < limit["looks"]:
            continue
        if layer.kind not in _RECTIFIERS and (layer.after_kind in _RECTIFIERS or layer is run.layers[-1]):
            continue
        if not (
            layer.kind in _RECTIFIERS
            or layer.parametric
            or layer.kind.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d"))
        ):
            continue
        share = float((look.dead >= limit["looks"]).mean())
        if share < limit["share"]:
            continue
        at_start = look.number("dead")[0] >= 0.8 * limit["share"]
        source = layer if layer.parametric else run.layer(layer.before)
        line = initialisation(source, activation="ReLU")
        if at_start:
            why = "they were so from the first step on: by the initial weights or bias before it, or by its inputs"
            do = line
        else:
            why = "they died in training: too large a step pushed their bias far below 0"
            do = f"a lower learning rate, or warm-up; {line}; nn.LeakyReLU(0.01) lets dead units come back"
        yield Seen(
            layer.name,
            {"share": share, "units": len(look.dead), "looks": int(limit["looks"]), "why": why, "do": do},
        )


def _saturated(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    places = [layer for layer in run.layers if layer.order >= 0]
    for layer in places:
        shares = layer.look.number("saturated")
        if layer is places[-1] or len(shares) < limit["looks"]:
            continue
        if min(shares[-3:]) < limit["share"]:
            continue
        source = layer if layer.parametric else run.layer(layer.before)
        kind = {"RNN": "tanh", "LSTM": "tanh", "GRU": "tanh"}.get(layer.kind, layer.kind)
        yield Seen(
            layer.name,
            {
                "share": float(np.median(shares[-3:])),
                "start": shares[0],
                "kind": kind,
                "do": initialisation(source, activation="Tanh" if "anh" in kind else "Sigmoid"),
            },
        )


def _one_choice(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    places = [layer for layer in run.layers if layer.order >= 0]
    for layer in places:
        if layer.kind != "Softmax" or layer is places[-1]:
            continue
        entropies = layer.look.number("entropy")
        choices = max(layer.look.number("choices") or [0])
        if (
            len(entropies) >= limit["looks"]
            and choices >= limit["choices"]
            and max(entropies[-3:]) < limit["entropy"]
        ):
            yield Seen(layer.name, {"entropy": max(entropies[-3:]), "start": entropies[0]})


def _levels(run: Run) -> tuple[list[LayerRun], np.ndarray, np.ndarray]:
    """Layers by depth, and the root mean square of their output at the start and at its highest."""
    layers, first, high = [], [], []
    for layer in deep(run, "output"):
        assert layer.output is not None
        rms = layer.output["rms"].astype(np.float64)
        rms = rms[np.isfinite(rms)]
        if len(rms):
            layers.append(layer)
            first.append(float(rms[0]))
            high.append(float(rms.max()))
    return layers, np.array(first), np.array(high)


def _exploding(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    layers, first, _ = _levels(run)
    if len(layers) < limit["layers"] or first[0] <= 0:
        return
    gains = [value for layer in layers if (value := gain(run, layer)) is not None]
    if gains and np.median(gains) < limit["gain"]:  # the first step made it so, not the start
        return
    if first.max() > limit["factor"] * first[0] and follows_depth(first) > limit["correlation"]:
        since = int(np.flatnonzero(first > 10 * first[0])[0])
        per_layer = float((first.max() / first[0]) ** (1 / max(1, int(first.argmax()))))
        yield Seen(
            layers[since].name,
            {
                "first": layers[0].name,
                "low": first[0],
                "last": layers[int(first.argmax())].name,
                "high": first.max(),
                "factor": per_layer,
                "do": initialisation(layers[since]),
            },
        )


def _recurrence(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    """A layer that is called again and again in one forward."""
    for layer in run.layers:
        levels = np.array([float(series["rms"][0]) for series in layer.by_call])
        if len(levels) < limit["calls"] or not np.isfinite(levels[:2]).all() or levels[1] <= 0:
            continue
        high = float(np.nan_to_num(levels, nan=np.inf).max())
        if high > limit["factor"] * levels[1] and follows_depth(levels) > limit["correlation"]:
            weight = f"{access(layer.name)}.weight"
            yield Seen(
                layer.name, {"low": levels[1], "high": high, "weight": weight, "rms": gain(run, layer) or 0.0}
            )


def _vanishing(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    layers, first, _ = _levels(run)
    if len(layers) < limit["layers"] or first[0] <= 0:
        return
    spread = [layer.output["std"][0] for layer in layers if layer.output is not None]
    levels = np.minimum(first, 1e30)
    low = float(levels[-3:].min())
    if low < limit["factor"] * levels[0] and follows_depth(levels) < -limit["correlation"] and low > 0:
        since = int(np.flatnonzero(levels < 0.1 * levels[0])[0])
        yield Seen(
            layers[since].name,
            {
                "first": layers[0].name,
                "low": low,
                "high": levels[0],
                "spread": spread[since],
                "do": initialisation(layers[since]),
            },
        )


def _grows(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    if trend(run) == "falls":
        return
    layers, first, high = _levels(run)
    for layer, one, most in zip(layers, first, high, strict=True):
        if one > 0 and most > limit["factor"] * one and most > limit["value"]:
            yield Seen(layer.name, {"first": one, "high": most})


def _too_wide(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    yield from _by_gain(run, limit, wide=True)


def _too_small(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    yield from _by_gain(run, limit, wide=False)


def _by_gain(run: Run, limit: Mapping[str, float], *, wide: bool) -> Iterator[Seen]:
    if trend(run) == "falls":
        return
    found = []
    for layer in run.layers:
        value = gain(run, layer)
        if value and value > 0 and (value > limit["gain"] if wide else value < limit["gain"]):
            found.append((layer, value))
    if len(found) < limit["layers"]:
        return
    for layer, value in found:
        assert layer.fan_in is not None
        yield Seen(
            layer.name,
            {
                "rms": value / layer.fan_in**0.5,
                "gain": value,
                "usual": 2**0.5 / layer.fan_in**0.5,
                "fan_in": layer.fan_in,
                "do": initialisation(layer),
            },
        )


def _constant(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    """The last layer gives the same for every row, and the first does not."""
    layers = [layer for layer in run.layers if layer.order >= 0 and layer.parametric]
    if len(layers) < 2:
        return
    apart = {layer.name: layer.look.number("apart") for layer in layers}
    first, last = apart[layers[0].name], apart[layers[-1].name]
    if len(last) < limit["looks"] or len(first) < limit["looks"] or max(first[-3:]) < 1e-2:
        return
    same = [
        layer
        for layer in layers
        if len(apart[layer.name]) >= 3 and max(apart[layer.name][-3:]) < limit["apart"]
    ]
    if max(last[-3:]) < limit["apart"]:
        yield Seen(layers[-1].name, {"since": same[0].name, "at": access(same[0].name)})


def _dropout(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    found = [
        layer
        for layer in run.layers
        if "Dropout" in layer.kind
        and layer.order >= 0
        and layer.training
        and layer.facts.get("p", 0) >= limit["p"]
    ]
    if found and (trend(run) in ("flat", "rises") or found[0].facts["p"] == 1):
        for layer in found:
            yield Seen(layer.name, {"p": layer.facts["p"], "kept": 1 - layer.facts["p"]})


_CONSEQUENCES = (
    "loss.flat",
    "parameter.never_updated",
    "output.constant",
    "gradient.vanishing",
    "update.too_small",
)
_BLOW_UP = (
    "loss.diverged",
    "loss.nonfinite",
    "nonfinite.first",
    "gradient.grows",
    "update.too_large",
    "activation.grows",
)

RULES = (
    Rule(
        id="init.too_wide",
        severity=Severity.WARN,
        looks_at="root mean square of every weight before the first step",
        definition="The weights of a layer times the root of its fan_in are above 5 (Kaiming for ReLU: 1.41; PyTorch's "
        "default: 0.58), and the loss does not fall.",
        limits=(
            Limit(
                "gain", 5, "rms * sqrt(fan_in)", "3.5 times that of Kaiming initialisation, He et al. 2015"
            ),
            Limit("layers", 1, "layers", "one is enough to saturate the next"),
        ),
        seen="its weights had rms {rms:.2g} at the start with {fan_in} inputs a unit; {usual:.2g} keeps the scale",
        cause="the weights were initialised too wide: outputs grow by {gain:.1f} in this layer, units saturate or die",
        remedy="{do}",
        fine_when="the inputs are that much smaller, or the layer's frequencies are meant to be high (Fourier "
        "features)",
        explains=(
            *_CONSEQUENCES,
            *_BLOW_UP,
            "activation.exploding",
            "activation.saturated",
            "softmax.one_choice",
            "attention.collapse",
            "relu.dead",
            "gradient.exploding",
            "input.unscaled",
        ),
        only_with=(
            "activation.exploding",
            "activation.saturated",
            "relu.dead",
            "gradient.exploding",
            "gradient.vanishing",
            "softmax.one_choice",
            "attention.collapse",
            "loss.diverged",
            "loss.nonfinite",
            "nonfinite.first",
            "loss.flat",
            "gradient.grows",
            "activation.grows",
        ),
        find=_too_wide,
    ),
    Rule(
        id="activation.exploding",
        severity=Severity.WARN,
        looks_at="root mean square of every layer's output in the first steps",
        definition="By depth the outputs grow by more than a thousand, layer by layer.",
        limits=(
            Limit("layers", 4, "layers with a weight", "fewer have no depth"),
            Limit("factor", 1e3, "of the first layer's", _HEALTHY),
            Limit("correlation", 0.7, "(Spearman, with depth)", "one large layer is another matter"),
            Limit("gain", 1.8, "rms * sqrt(fan_in) of the weights", "Kaiming initialisation has 1.41"),
        ),
        seen="outputs grow from rms {low:.2g} at {first} to {high:.2g} at {last}, about x{factor:.1f} a layer",
        cause="each layer multiplies its input by more than 1: the weights are too wide for their fan_in",
        remedy="{do} (and the same for the other layers); or nn.LayerNorm between them",
        fine_when="never",
        explains=(
            *_CONSEQUENCES,
            *_BLOW_UP,
            "relu.dead",
            "activation.saturated",
            "gradient.exploding",
            "fp16.overflow",
            "softmax.one_choice",
        ),
        find=_exploding,
    ),
    Rule(
        id="recurrence.exploding",
        severity=Severity.WARN,
        looks_at="root mean square of a layer's output, call by call, in the first steps",
        definition="A layer that runs eight times and more in one forward gives a thousand times more in the last "
        "calls.",
        limits=(
            Limit("calls", 8, "calls", "the eighth stands for all that follow"),
            Limit("factor", 1e3, "of the second call's", _HEALTHY),
            Limit("correlation", 0.7, "(Spearman, with the calls)", "it must be steady"),
        ),
        seen="in one forward its output grows from rms {low:.2g} at its second call to {high:.2g} at the last",
        cause="what it gives is fed back and multiplied by more than 1 each time (gain of its weight: {rms:.2g})",
        remedy="nn.init.orthogonal_({weight}); tanh or a gate (nn.LSTMCell, nn.GRUCell) in the loop; "
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        fine_when="never",
        explains=(
            *_CONSEQUENCES,
            *_BLOW_UP,
            "gradient.exploding",
            "fp16.overflow",
            "activation.saturated",
            "relu.dead",
        ),
        find=_recurrence,
    ),
    Rule(
        id="init.too_small",
        severity=Severity.WARN,
        looks_at="root mean square of every weight before the first step",
        definition="The weights of two layers and more times the root of their fan_in are below 0.05, and the loss "
        "does not fall.",
        limits=(
            Limit("gain", 0.05, "rms * sqrt(fan_in)", "a tenth of PyTorch's default"),
            Limit("layers", 2, "layers", "one, the last, is often made small on purpose"),
        ),
        seen="its weights had rms {rms:.2g} at the start with {fan_in} inputs a unit; {usual:.2g} keeps the scale",
        cause="the weights were initialised too small: what goes through the layer shrinks to {gain:.2g} of it, and so "
        "does the gradient",
        remedy="{do}",
        fine_when="the layer ends a residual branch",
        explains=(*_CONSEQUENCES, "activation.vanishing", "layernorm.below_eps", "relu.dead"),
        find=_too_small,
    ),
    Rule(
        id="activation.vanishing",
        severity=Severity.WARN,
        looks_at="root mean square of every layer's output in the first steps",
        definition="By depth the outputs shrink below a ten-thousandth, layer by layer.",
        limits=(
            Limit("layers", 4, "layers with a weight", "fewer have no depth"),
            Limit("factor", 1e-4, "of the first layer's", _HEALTHY),
            Limit("correlation", 0.7, "(Spearman, with depth)", "one small layer is another matter"),
        ),
        seen="outputs shrink from rms {high:.2g} at {first} to {low:.2g} at the end",
        cause="each layer multiplies its input by less than 1: the weights are too small for their fan_in",
        remedy="{do} (and the same for the other layers)",
        fine_when="never",
        explains=(*_CONSEQUENCES, "layernorm.below_eps", "relu.dead"),
        find=_vanishing,
    ),
    Rule(
        id="relu.dead",
        severity=Severity.WARN,
        looks_at="the largest output and gradient of every unit, every tenth step",
        definition="Half of a layer's units and more gave nothing above 0 for any input in three looks in a row; for a "
        "layer before a function F.relu: and no gradient reached them.",
        limits=(
            Limit("share", 0.5, "of the units", _HEALTHY),
            Limit("looks", 3, "looks in a row", "30 steps: one batch may miss a unit"),
            Limit("units", 4, "units", "fewer are no layer"),
        ),
        seen="{share:.0%} of {units} units gave 0 for every input of the last {looks} looks",
        cause="a unit that is 0 for all inputs gets no gradient and stays so; {why}",
        remedy="{do}",
        fine_when="the units were pruned on purpose",
        explains=(
            "loss.flat",
            "parameter.never_updated",
            "output.constant",
            "update.too_small",
            "batchnorm.mismatch",
        ),
        find=_dead,
    ),
    Rule(
        id="activation.saturated",
        severity=Severity.WARN,
        looks_at="share of values beyond 0.98 of the range, of tanh, sigmoid and recurrent layers, every tenth step",
        definition="Nearly all values lie where the derivative is below 0.04 (tanh) or 0.01 (sigmoid), in three "
        "looks in a row; not of the model's last layer.",
        limits=(
            Limit("share", 0.75, "of the values", _HEALTHY),
            Limit("looks", 3, "looks", "one batch may do it"),
        ),
        seen="{share:.0%} of its values are at the ends of {kind} ({start:.0%} in the first step)",
        cause="what goes into it is too large, so its derivative is almost 0 and little gradient passes",
        remedy="{do}; nn.LayerNorm before it, inputs of mean 0 and deviation 1, a lower learning rate",
        fine_when="it is a gate or a code that is meant to be 0 or 1",
        explains=_CONSEQUENCES,
        find=_saturated,
    ),
    Rule(
        id="softmax.one_choice",
        severity=Severity.WARN,
        looks_at="entropy of every nn.Softmax that is not the last layer, every tenth step",
        definition="Its entropy is below 2 % of the highest possible in three looks in a row.",
        limits=(
            Limit("entropy", 0.02, "of the highest", _HEALTHY),
            Limit("looks", 3, "looks", "one batch may do it"),
            Limit("choices", 3, "choices", "two are a decision"),
        ),
        seen="one choice has all the weight: entropy {entropy:.1%} of the highest ({start:.0%} in the first step)",
        cause="the scores before it are too large: for attention the division by sqrt(width) is missing, or the "
        "learning rate is too high",
        remedy="scores / width ** 0.5 before the softmax; normalise queries and keys (nn.LayerNorm)",
        fine_when="it routes or retrieves, and is sure",
        explains=_CONSEQUENCES,
        find=_one_choice,
    ),
    Rule(
        id="activation.grows",
        severity=Severity.WARN,
        looks_at="root mean square of every layer's output over the run",
        definition="It rises a thousandfold over that of the start and above 100, and the loss does not fall.",
        limits=(Limit("factor", 1e3, "of the start", _HEALTHY), Limit("value", 100, "rms", _HEALTHY)),
        seen="its output grew from rms {first:.2g} to {high:.2g} in training",
        cause="training diverges: the steps are too large",
        remedy="a tenth of the learning rate; torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before the step",
        fine_when="never",
        explains=(
            "loss.diverged",
            "loss.nonfinite",
            "nonfinite.first",
            "loss.flat",
            "relu.dead",
            "activation.saturated",
            "output.constant",
        ),
        find=_grows,
    ),
    Rule(
        id="dropout.nearly_all",
        severity=Severity.WARN,
        looks_at="p of every dropout layer that runs in train mode",
        definition="p is 0.9 or more, and the loss does not fall; or p is 1.",
        limits=(Limit("p", 0.9, "probability to drop", "Srivastava et al. 2014 use 0.2 to 0.5"),),
        seen="p={p}: it keeps {kept:.0%} of its values",
        cause="p is the probability to drop, not to keep",
        remedy="nn.Dropout({kept:.2g})",
        fine_when="never with p=1",
        explains=(*_CONSEQUENCES, *_BLOW_UP, "relu.dead"),
        find=_dropout,
    ),
    Rule(
        id="output.constant",
        severity=Severity.WARN,
        looks_at="distance of the rows of a batch from each other, in every layer, every tenth step",
        definition="The last layer gives the same for every row in three looks in a row, and the first layer does not.",
        limits=(
            Limit("apart", 1e-5, "of the largest value", "float32 has 1e-7"),
            Limit("looks", 4, "looks", "at the start a head of zeros does it"),
        ),
        seen="the model gives the same for every input; from {since} on all rows are equal",
        cause="what distinguishes the inputs is lost at {since}: dead or saturated units, a weight of 0, or a "
        "reduction over the batch dimension",
        remedy="look at the input of {at}: its rows must differ; check dim= of mean, softmax and normalisation there",
        fine_when="the inputs are equal",
        explains=("loss.flat",),
        find=_constant,
    ),
)
