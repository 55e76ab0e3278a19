"""A run folder: `run.json`, what the run is of, and `steps.jsonl`, a line a step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from torchtap.monitor.writers.record import About, Record

SCHEMA = 1


class JsonLines:
    """Writes a run folder.

    `run.json`: {"schema": 1, "model", "layers": [[name, class], ...], "every", "torch"}. A line of `steps.jsonl`:
    {"step", "scalars": {"loss": ...}, "tensors": [{"layer", "direction", "call", "path", "min", "max", "mean", "rms",
    "std", "zeros", "nonfinite", "count"}, ...], "parameters": [{"name", "value", "gradient", "update", "sampled"}]}.
    Numbers that are not finite, or not measured, are null. Each line is handed to the system as it is written: of a
    process that is killed all lines but the last are whole.

    Raises FileExistsError where the folder holds a run already.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._file: TextIO | None = None

    def start(self, about: About) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file = (self.folder / "steps.jsonl").open("x", encoding="utf-8")
        except FileExistsError:
            raise FileExistsError(
                f"{self.folder} holds a run already: give another folder, or remove this one"
            ) from None
        written = self.folder / "run.json.part"
        written.write_text(json.dumps({"schema": SCHEMA, **asdict(about)}, indent=1) + "\n", encoding="utf-8")
        written.replace(self.folder / "run.json")

    def write(self, record: Record) -> None:
        """Add a line."""
        line = {
            "step": record.step,
            "scalars": {
                name: value if abs(value) < float("inf") else None for name, value in record.scalars.items()
            },
            "tensors": list(record.tensors()),
            "parameters": list(record.norms_of_parameters()),
        }
        if self._file is not None:
            self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __repr__(self) -> str:
        return f"JsonLines({str(self.folder)!r})"


def read_run(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `JsonLines` wrote: (run.json, the steps). A last line that was not finished is left out.

    Raises FileNotFoundError where there is no run, ValueError where it is of another schema.
    """
    folder = Path(folder)
    about: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if about.get("schema") != SCHEMA:
        raise ValueError(f"{folder}: schema {about.get('schema')}, and this Torchtap reads {SCHEMA}")
    return about, list(_whole_lines(folder / "steps.jsonl"))


def _whole_lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
