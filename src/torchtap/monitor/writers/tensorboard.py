"""Scalars for TensorBoard: `tensorboard --logdir FOLDER`."""

from __future__ import annotations

import os
from typing import Any

from torchtap.monitor.writers.record import About, Record

SHOWN = ("rms", "std", "min", "max", "zeros", "nonfinite")


class TensorBoard:
    """Writes `output/rms/LAYER`, `gradient/std/LAYER`, ..., `parameter/update/NAME`, and what `log` was given.

    Needs the package tensorboard: `pip install "torchtap[tensorboard]"`; ImportError without.
    """

    def __init__(self, folder: str | os.PathLike[str], columns: tuple[str, ...] = SHOWN) -> None:
        self.folder = os.fspath(folder)
        self.columns = columns
        self._writer: Any = None

    def start(self, about: About) -> None:
        """Open the folder."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError('TensorBoard: pip install "torchtap[tensorboard]"') from error
        self._writer = SummaryWriter(self.folder)
        self._writer.add_text("torchtap", f"{about.model}, {len(about.layers)} layers, torch {about.torch}")

    def write(self, record: Record) -> None:
        """Add the step's scalars."""
        add = self._writer.add_scalar
        for name, value in record.scalars.items():
            add(name, value, record.step)
        for each in record.tensors():
            place = ".".join(
                str(part) for part in (each["layer"] or "model", each["call"] or "", each["path"]) if part
            )
            for column in self.columns:
                if each[column] is not None:
                    add(f"{each['direction']}/{column}/{place}", each[column], record.step)
        for each in record.norms_of_parameters():
            for column in ("value", "gradient", "update"):
                if each[column] is not None:
                    add(f"parameter/{column}/{each['name']}", each[column], record.step)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def __repr__(self) -> str:
        return f"TensorBoard({self.folder!r})"
