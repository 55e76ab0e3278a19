"""A table: one line for each tensor of each step."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, TextIO

from torchtap.monitor.history import COLUMNS
from torchtap.monitor.writers.record import About, Record

HEAD = ("step", "loss", "layer", "direction", "call", "path", *COLUMNS)


class Csv:
    """Writes a CSV file. What is not finite or not measured is an empty field.

    Raises FileExistsError where the file is there already.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = Path(file)
        self._open: TextIO | None = None
        self._lines: Any = None

    def start(self, about: About) -> None:  # noqa: ARG002
        """Write the head."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open = self.file.open("x", encoding="utf-8", newline="")
        except FileExistsError:
            raise FileExistsError(f"{self.file} is there already: give another name, or remove it") from None
        self._lines = csv.DictWriter(self._open, HEAD)
        self._lines.writeheader()

    def write(self, record: Record) -> None:
        """Add the step's lines."""
        loss = record.scalars.get("loss")
        for each in record.tensors():
            self._lines.writerow({"step": record.step, "loss": loss, **each})
        if self._open is not None:
            self._open.flush()

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()

    def __repr__(self) -> str:
        return f"Csv({str(self.file)!r})"
