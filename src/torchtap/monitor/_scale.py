"""The loss scale of `torch.amp.GradScaler`: gradients are divided by it, and those of skipped steps are left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.amp.grad_scaler import GradScaler

from torchtap.monitor._keys import KeyTable
from torchtap.monitor._rows import Rows, read_later

PASSES = 1 << 32
"""A row's number is its key's plus this times its pass, where there is a scaler."""


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A step's rows, gradients divided by the scale."""

    numbers: np.ndarray
    rows: np.ndarray
    skipped: int
    """Backward passes whose step the scaler left out: their gradients are not among the rows."""


class Scale:
    """Follows a scaler over the passes of a step. Never waits for the device."""

    def __init__(self, scaler: GradScaler | None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._of_passes: list[Callable[[], float]] = []

    @property
    def is_on(self) -> bool:
        """Whether there is a scaler that scales."""
        return self._scaler is not None

    @property
    def tag(self) -> int:
        """What the numbers of this pass' rows are raised by."""
        return PASSES * (len(self._of_passes) - 1) if self._of_passes else 0

    def begin_pass(self) -> None:
        """A forward of the model begins: its backward will run under the scale of now."""
        if self._scaler is not None:
            self._of_passes.append(self._now())

    def _now(self) -> Callable[[], float]:
        scale = self._scaler._scale if self._scaler is not None else None
        if scale is None:  # made at the first scale()
            first = float(self._scaler._init_scale) if self._scaler is not None else 1.0
            return lambda: first
        read = read_later(scale)
        return lambda: float(read())

    def take(self) -> Callable[[Rows, KeyTable], Unscaled]:
        """The step ends: what undoes the scaling of its rows.

        A pass whose scale was higher than the scale is now has been skipped: only that lowers it.
        """
        if self._scaler is None:
            return lambda rows, _: Unscaled(*rows, skipped=0)
        of_passes, self._of_passes = self._of_passes, []
        now = self._now()

        def unscaled(rows: Rows, keys: KeyTable) -> Unscaled:
            numbers, raw = rows
            gradients = keys.are_gradients(numbers % PASSES)
            scales = np.array([read() for read in of_passes] or [1.0])
            passes = numbers // PASSES
            skipped = scales > now()
            raw = raw.copy()
            of_rows = scales[passes]
            raw[gradients, :3] /= of_rows[gradients, None]
            raw[gradients, 3] /= of_rows[gradients] ** 2
            kept = ~(gradients & skipped[passes])
            return Unscaled(numbers[kept] % PASSES, raw[kept], int(skipped.sum()))

        return unscaled
