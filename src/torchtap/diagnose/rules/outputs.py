"""What the loss makes of the model's last layer: probabilities that are made into probabilities once more.

The gradient tells it. Cross-entropy of scores z gives softmax(z) - y for each row, which sums to 0. Where z are
probabilities themselves, softmax(z) lies between 1 / (K - 1 + e) and e / (K - 1 + e), whatever the model has learned,
and the loss never gets below log(1 + (K - 1) / e). With a logarithm of probabilities (NLLLoss, BCELoss) no row sums to
0; squared errors of probabilities are below that loss from the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import access
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.history import Series
from torchtap.monitor.run import LayerRun, Run

_LOW, _HIGH = 0.98, 1.02


def _last(run: Run, kind: str, limit: Mapping[str, float]) -> tuple[LayerRun, Series, float] | None:
    """The layer that ran last, if it is one of this kind: with its gradient, and the least loss of the run."""
    ran = [layer for layer in run.layers if layer.order >= 0]
    if not ran or ran[-1].kind != kind or ran[-1].gradient is None or run.loss is None:
        return None
    layer, gradient, losses = ran[-1], ran[-1].gradient, run.loss["min"]
    enough = len(gradient) >= limit["points"] and len(losses) and np.isfinite(losses).all()
    return (layer, gradient, float(losses.min())) if enough and gradient["rms"].all() else None


def _softmax(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    found = _last(run, "Softmax", limit)
    if found is None:
        return
    layer, gradient, least = found
    shape, dimension = layer.look.shape, layer.facts.get("dim", -1)
    if len(shape) < 2:
        return
    choices = shape[dimension if isinstance(dimension, int) else -1]
    rows = math.prod(shape) // choices
    floor = math.log(1 + (choices - 1) / math.e)
    sums_to_nothing = np.abs(gradient["mean"]) <= limit["mean"] * gradient["rms"]
    wanted = float(np.median(gradient["min"])) * rows  # softmax(z) - 1 of the row that is most wrong
    low, high = -(1 - 1 / (choices - 1 + math.e)), -(1 - math.e / (choices - 1 + math.e))
    within = low * _HIGH <= wanted <= high * _LOW
    if choices > 1 and sums_to_nothing.all() and within and least >= floor * _LOW:
        yield Seen(layer.name, {"floor": floor, "least": least, "layer": access(layer.name)})


def _sigmoid(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    found = _last(run, "Sigmoid", limit)
    if found is None:
        return
    layer, gradient, least = found
    number, half, most = math.prod(layer.look.shape), 0.5, 1 / (1 + math.exp(-1))
    high, low = gradient["max"] * number, gradient["min"] * number
    of_zeros = (high >= half * _LOW) & (high <= most * _HIGH)
    of_ones = (low >= -half * _HIGH) & (low <= (most - 1) * _LOW)
    floor = math.log(1 + math.exp(-1))
    if (of_zeros & of_ones).mean() >= limit["share"] and least >= floor * _LOW:
        yield Seen(layer.name, {"floor": floor, "least": least, "layer": access(layer.name)})


_EXPLAINS = ("loss.flat", "update.too_small", "gradient.vanishing", "output.constant", "activation.saturated")

RULES = (
    Rule(
        id="output.softmax_twice",
        severity=Severity.WARN,
        looks_at="the last layer, where it is nn.Softmax: the gradient of its output in every step, and the loss",
        definition="Every gradient sums to 0 and is as large as cross-entropy gives it for scores between 0 and 1, and "
        "the loss stays above log(1 + (K - 1) / e).",
        limits=(
            Limit("mean", 1e-5, "of its rms", "0 but for rounding, which is 1e-7 in float32"),
            Limit("points", 5, "points", "fewer say nothing about the loss"),
        ),
        seen="the loss takes the softmax of these probabilities once more: it cannot get below {floor:.3g}, and its "
        "least was {least:.3g}",
        cause="CrossEntropyLoss has a softmax of its own, and wants scores. Of probabilities its gradient is small, "
        "and never ends",
        remedy="leave {layer} out in training: CrossEntropyLoss of the layer before it; softmax(dim=-1) where "
        "probabilities are wanted. Or NLLLoss of nn.LogSoftmax",
        fine_when="such a soft loss is meant",
        explains=_EXPLAINS,
        find=_softmax,
    ),
    Rule(
        id="output.sigmoid_twice",
        severity=Severity.WARN,
        looks_at="the last layer, where it is nn.Sigmoid: the gradient of its output in every step, and the loss",
        definition="In nearly all steps the gradient is as large as BCEWithLogitsLoss gives it for scores between 0 "
        "and 1, and the loss stays above log(1 + 1 / e).",
        limits=(
            Limit("share", 0.9, "of the points", "a last batch may be smaller"),
            Limit("points", 5, "points", "fewer say nothing about the loss"),
        ),
        seen="the loss takes the sigmoid of these probabilities once more: it cannot get below {floor:.3g}, and its "
        "least was {least:.3g}",
        cause="BCEWithLogitsLoss has a sigmoid of its own, and wants scores",
        remedy="leave {layer} out in training, and take torch.sigmoid where probabilities are wanted; or BCELoss, "
        "which wants probabilities",
        fine_when="such a soft loss is meant",
        explains=_EXPLAINS,
        find=_sigmoid,
    ),
)
