"""The first value of a run that was NaN or infinite."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from torchtap.monitor._keys import Key, KeyTable, input_name
from torchtap.monitor._layers import WatchedLayer
from torchtap.monitor._ops import Values, values_of
from torchtap.monitor._parameters import is_plain, local
from torchtap.monitor._rerun import Rerun
from torchtap.monitor.stats import derive

_SHOWN = 3  # measurements before it, in words
_NONFINITE, _COUNT = 5, 6  # columns of raw rows


@dataclass(frozen=True, slots=True)
class Measured:
    """One tensor of that step."""

    layer: str
    """Its name; "" where the model's inputs are meant."""
    key: Key
    values: dict[str, float]
    """As `stats.derive` names them."""

    def __str__(self) -> str:
        if self.key.direction == "input":
            return f"{input_name(self.key.path)} of the model itself"
        what = {"output": "output", "gradient": "gradient of the output"}[self.key.direction]
        path = f" {self.key.path}" if self.key.path else ""
        of = f" of {self.layer or 'the model itself'}"
        call = f" (call {self.key.call + 1})" if self.key.call else ""
        return f"{what}{path}{of}{call}"


@dataclass(frozen=True, slots=True)
class FirstNonfinite:
    """Where it was, and what had been measured before it in the same step.

    >>> key = Key(0, 0, "", "output")
    >>> first = FirstNonfinite(7, Measured("encoder.0", key, {"nonfinite": 2.0}), 2, 64, ())
    >>> print(first)
    step 7: 2 of 64 values of the output of encoder.0 are NaN or infinite, the first of the run
    """

    step: int
    where: Measured
    nonfinite: int
    """How many of the tensor's values."""
    count: int
    """How many values it has."""
    before: tuple[Measured, ...]
    """In the order of measurement."""
    weights: tuple[tuple[str, Values], ...] = ()
    """Of that layer, by name: right before the optimizer's step, or as `weights_of` says."""
    weights_of: str = ""
    """"now" where nobody looked before the step: on a GPU that would wait, and `step()` comes after it."""
    rerun: Rerun | None = None
    """With `watch(keep_batch=True)`: what came of running the batch again."""

    @property
    def layer(self) -> str:
        """The layer's name; "" where the model's inputs are meant."""
        return self.where.layer

    @property
    def key(self) -> Key:
        """Which of its tensors."""
        return self.where.key

    def __str__(self) -> str:
        lines = [
            f"step {self.step}: {self.nonfinite} of {self.count} values of the {self.where} are NaN or infinite, "
            "the first of the run"
        ]
        for each in self.before[-_SHOWN:]:
            low, high, rms = (each.values[name] for name in ("min", "max", "rms"))
            lines.append(f"  before it: {each}: {low:.3g} to {high:.3g}, rms {rms:.3g}")
        when = f" ({self.weights_of})" if self.weights_of else ""
        lines += [f"  its {name}{when}: {values}" for name, values in self.weights]
        if self.rerun is not None:
            lines.append(textwrap.indent(str(self.rerun), "  "))
        return "\n".join(lines)


def weights_of(module: nn.Module | None) -> tuple[tuple[str, Values], ...]:
    """Of a layer's own parameters. Waits for the device."""
    if module is None:
        return ()
    own = [(name, local(each)) for name, each in module.named_parameters(recurse=False) if is_plain(each)]
    return tuple((name, values_of(each)) for name, each in own)


def first_of(
    step: int, numbers: np.ndarray, raw: np.ndarray, keys: KeyTable, layers: Sequence[WatchedLayer]
) -> FirstNonfinite | None:
    """The first of a step's rows, which are in the order of measurement, that holds such a value."""
    bad = np.flatnonzero(raw[:, _NONFINITE] > 0)
    if not len(bad):
        return None
    derived = derive(raw)

    def measured(place: int) -> Measured:
        key = keys[int(numbers[place])]
        values = {name: float(column[place]) for name, column in derived.items()}
        return Measured(layers[key.layer].name if key.layer >= 0 else "", key, values)

    first = int(bad[0])
    before = tuple(measured(place) for place in range(first))
    return FirstNonfinite(step, measured(first), int(raw[first, _NONFINITE]), int(raw[first, _COUNT]), before)
