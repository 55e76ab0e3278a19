"""docs/compatibility.md, from what runs of the matrix wrote."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.matrix.cases import Case
from tests.matrix.compare import EQUAL, Row
from torchtap.monitor.stats import kernel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
HEAD = """# Compatibility: does watching change anything?

**{good} of {rows} models are equal in all bits**, watched and captured, to the run without.
{missing}
Each model is trained for two steps (SGD with momentum, random weights, small inputs) three times, from the same weights
and random state:

- **bare**;
- **watched**: `torchtap.watch(model, optimizer, layers="all", parameters_every=1)`, with output gradients;
- **captured**: `torchtap.hooks.capture(model, "all", gradients=True)`, inside `torchtap.modes.guard(model)`.

Compared are all bits of outputs, loss and gradients in each step, then the random states of PyTorch, numpy and Python,
and `state_dict()`: names, order and bytes. "equal" stands where nothing differs at all; else the first thing that does.
These runs are healthy, so the guard must find nothing above INFO; and no hook may be left.

How to read the tables:

- *modules* can run (lists and dicts of modules cannot); one that is shared counts once. *ran* did so as modules in
  these steps: the second table of a group says of the others why, as `hooks.coverage` tells it.
- *outputs* and *gradients* are the modules of which `watch` measured some: coverage is partial where a module gives no
  floating-point tensor, or no gradient comes back to what it gives.
- *added* is the peak memory of the process beyond that of the bare run; what a process
  does for the first time makes it uncertain by up to 10 % of the peak, so less than nothing is shown as 0.

Made by `python -m tests.matrix`, which runs all or some of them anywhere: {date}; on a CPU, one thread;
{libraries};
statistics by {path}. `make test` runs 20 of torchvision, 10 of transformers and all hard cases. Nothing here
was run on a GPU yet.
"""
MISSING = """
## Not run yet

{names}
"""
TABLE = """
## {group}

| model | parameters | watched | captured | guard finds | hooks left | modules, ran, outputs, gradients | peak | added |
|---|---|---|---|---|---|---|---|---|
"""
UNSEEN = """
| model | modules that did not run | the first | why |
|---|---|---|---|
"""


def environment() -> dict[str, Any]:
    """What a run was made with."""
    libraries = {"Python": platform.python_version(), "PyTorch": torch.__version__, "numpy": np.__version__}
    for name in ("torchvision", "transformers"):
        try:
            libraries[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            libraries[name] = "none"
    path = "the C kernel" if kernel.has_kernel() else "PyTorch's operators (no C kernel)"
    return {"schema": 1, "date": datetime.date.today().isoformat(), "libraries": libraries, "path": path}


def page(runs: list[dict[str, Any]], every: list[Case]) -> str:
    """The page about the models of `every`; of one that was run more than once the last run counts."""
    latest = {(row["group"], row["name"]): Row(**row) for run in runs for row in run["rows"]}
    places = {(case.group, case.name): place for place, case in enumerate(every)}
    rows = [latest[key] for key in places if key in latest]
    missing = [name for group, name in places if (group, name) not in latest]
    libraries = ", ".join(f"{name} {version}" for name, version in runs[-1]["libraries"].items())
    text = HEAD.format(
        date=runs[-1]["date"],
        libraries=libraries,
        path=" and ".join(dict.fromkeys(run["path"] for run in runs)),
        good=sum(row.good for row in rows),
        rows=len(rows),
        missing=f"\n{len(missing)} more were not run yet; they are named at the end.\n" if missing else "",
    )
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        text += TABLE.format(group=group) + "".join(map(_line, of_group))
        unseen = "".join(_unseen(of_group))
        text += UNSEEN + unseen if unseen else ""
    return text + (MISSING.format(names=", ".join(missing)) if missing else "")


def _line(row: Row) -> str:
    cells = [
        row.name,
        f"{row.parameters:,}",
        _verdict(row.watched),
        _verdict(row.captured),
        "; ".join(row.guarded) or "nothing",
        str(row.hooks_left),
        f"{row.modules}, {row.ran}, {row.outputs}, {row.gradients}",
        _mib(row.bare_mib),
        _mib(row.added_mib),
    ]
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _verdict(text: str) -> str:
    return text if text == EQUAL else f"**{text}**"


def _mib(number: float | None) -> str:
    return "not measured" if number is None else f"{max(0.0, number):.0f} MiB"


def _unseen(rows: list[Row]) -> Iterator[str]:
    """Lines about what did not run; models of which the same is to be said share one."""
    same: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.unseen:
            name, kind, reason = row.unseen[0]
            same.setdefault((str(len(row.unseen)), f"{name} ({kind})", reason), []).append(row.name)
    for cells, models in same.items():
        yield f"| {' | '.join(map(_cell, (', '.join(models), *cells)))} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
