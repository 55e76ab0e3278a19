"""What several rules read from a run: whether the loss falls, how something changes with depth, lines of code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtap.monitor.run import LayerRun, ParameterRun, Run

FEWEST_STEPS = 20
"""Fewer say nothing of a trend."""


def trend(run: Run) -> str:
    """Of the loss: "falls", "flat", "rises", "nonfinite", or "unknown" where none was logged or the run is too short.

    The median of the first points against that of the last. A change counts where it is more than 2 % and beyond the
    noise, or the points follow one direction. Where the loss jumps at once, what counts is what it was before.
    """
    loss = run.loss
    if loss is None:
        return "unknown"
    if loss["nonfinite"].any():
        return "nonfinite"
    if loss.last_step[-1] - loss.first_step[0] + 1 < FEWEST_STEPS:
        return "unknown"
    values = loss["mean"].astype(np.float64)
    first, last = edges(values)
    start = float(loss["min"][0])
    if start > 0 and values[: max(3, len(values) // 4)].max() > 3 * start:
        first = start
    change = last - first
    if abs(change) <= 0.02 * abs(first):
        return "flat"
    if abs(change) <= 1.5 * noise(values) and abs(follows_depth(values)) < 0.5:
        return "flat"
    return "falls" if change < 0 else "rises"


def edges(values: np.ndarray) -> tuple[float, float]:
    """Medians of the first tenth, of three at least, and the last quarter."""
    few = max(3, len(values) // 10)
    return float(np.median(values[:few])), float(np.median(values[-max(few, len(values) // 4) :]))


def noise(values: np.ndarray) -> float:
    """Standard deviation of what changes from point to point, by the median: jumps do not count."""
    return float(np.median(np.abs(np.diff(values))) / 0.954) if len(values) > 2 else 0.0


def deep(run: Run, direction: str) -> list[LayerRun]:
    """The layers with a weight that were measured, in the order in which they ran."""
    return [
        layer
        for layer in run.layers
        if layer.parametric and layer.order >= 0 and getattr(layer, direction) is not None
    ]


def size(layer: LayerRun) -> float:
    """Values of its output in one call."""
    return float(np.prod(layer.look.shape)) if layer.look.shape else 1.0


def follows_depth(values: np.ndarray) -> float:
    """Spearman's correlation with the place in the list: 1 rises throughout, -1 falls throughout."""
    if len(values) < 3 or np.ptp(values) == 0:
        return 0.0
    # Equal values share a rank: what is 0 from some place on does not follow depth.
    ranks = (
        np.searchsorted(np.sort(values), values) + np.searchsorted(np.sort(values), values, side="right")
    ) / 2
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def matrices(run: Run) -> list[ParameterRun]:
    """Trainable weights of two dimensions and more that the optimizer holds, with what was measured of them."""
    return [
        each
        for each in run.parameters
        if each.requires_grad and each.in_optimizer is not False and len(each.shape) >= 2 and len(each.steps)
    ]


def gain(run: Run, layer: LayerRun) -> float | None:
    """Root mean square of the layer's first weight at the start times the root of fan_in: 1.41 is Kaiming's, 0.58
    PyTorch's default. None where it was not measured."""
    weight = next(
        (
            each
            for each in run.parameters
            if each.layer == layer.name and len(each.shape) >= 2 and len(each.steps)
        ),
        None,
    )
    if weight is None or layer.fan_in is None or not np.isfinite(weight.sampled[0]):
        return None
    return float(weight.sampled[0]) * float(np.sqrt(layer.fan_in))


def access(name: str) -> str:
    """How code reaches a module or parameter.

    >>> access("features.3.conv")
    'model.features[3].conv'
    """
    made = "model"
    for part in name.split(".") if name else ():
        made += f".{part}" if part.isidentifier() else f"[{part}]" if part.isdigit() else f"[{part!r}]"
    return made


RECTIFYING = ("ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "GELU", "SiLU", "SELU", "CELU", "Mish")


def initialisation(layer: LayerRun | None, name: str = "", activation: str = "") -> str:
    """The lines that initialise a layer well for the activation after it."""
    name = name or (layer.name if layer is not None else "")
    at = access(name)
    after = activation or (layer.after_kind if layer is not None else "")
    weight = f"{at}.weight"
    if layer is not None and layer.kind in ("LSTM", "GRU", "RNN"):
        return (
            f"for name, p in {at}.named_parameters(): nn.init.orthogonal_(p) if 'weight_hh' in name else "
            "nn.init.xavier_uniform_(p) if 'weight' in name else nn.init.zeros_(p)"
        )
    if after in ("Tanh", "Sigmoid", "Softsign"):
        return f'nn.init.xavier_uniform_({weight}, gain=nn.init.calculate_gain("{after.lower()}"))'.replace(
            '"softsign"', '"tanh"'
        )
    return f'nn.init.kaiming_normal_({weight}, nonlinearity="relu"); nn.init.zeros_({at}.bias)'


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence."""
    shown = ", ".join(name or "the model itself" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
