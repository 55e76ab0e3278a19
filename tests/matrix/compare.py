"""One row of the matrix: the same training bare, watched, and captured under a guard."""

from __future__ import annotations

import copy
import warnings
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn

from tests.matrix.cases import Case
from tests.matrix.training import PeakMemory, first_difference, hooks_on, seed, train
from torchtap.hooks import capture, coverage
from torchtap.hooks.names import never_runs
from torchtap.modes import Severity, guard
from torchtap.monitor import Watch, watch

EQUAL = "equal"


@dataclass
class Row:
    """What came out for one model."""

    name: str
    group: str
    parameters: int = 0
    watched: str = ""
    """"equal", or the first thing that differs from the bare run, or the error."""
    captured: str = ""
    guarded: list[str] = field(default_factory=list)
    """Findings of the guard above INFO: these trainings are healthy."""
    hooks_left: int = 0
    modules: int = 0
    """Those that can run: without lists and dicts of modules."""
    ran: int = 0
    outputs: int = 0
    """Modules of which an output was measured."""
    gradients: int = 0
    unseen: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, class, reason) of the modules that did not run."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    bare_mib: float | None = None
    added_mib: float | None = None
    """Peak memory beyond that of the bare run."""
    nonfinite: str | None = None
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was changed, found or left."""
        return self.watched == self.captured == EQUAL and not self.guarded and not self.hooks_left

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def compare(case: Case) -> Row:
    """Train three copies of one model. What raises is a result too."""
    began = perf_counter()
    row = Row(case.name, case.group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            seed()
            model = case.build().train()
            row.parameters = sum(
                p.numel() for p in model.parameters() if not isinstance(p, nn.UninitializedParameter)
            )
            row.modules = sum(not never_runs(module) for module in model.modules())
            first = copy.deepcopy(model)
            with PeakMemory() as peak:
                bare, hooks = _bare(first, case)
            del first
            row.bare_mib = peak.mib
        except Exception as error:
            row.watched = row.captured = f"the bare run raised {_said(error)}"
            return row
        try:
            row.watched = _watched(copy.deepcopy(model), case, bare, row)
            row.hooks_left -= hooks
        except Exception as error:
            row.watched = f"raised {_said(error)}"
        try:
            row.captured = _captured(model, case, bare, row)
            row.hooks_left -= hooks
        except Exception as error:
            row.captured = f"raised {_said(error)}"
    row.seconds = perf_counter() - began
    return row


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _bare(model: nn.Module, case: Case) -> tuple[dict[str, str], int]:
    """What was computed, and how many hooks there are then: some models put hooks on themselves when they run."""
    optimizer = _optimizer(model)
    return train(model, case, optimizer), hooks_on(model, optimizer)


def _watched(model: nn.Module, case: Case, bare: dict[str, str], row: Row) -> str:
    optimizer = _optimizer(model)
    with PeakMemory() as peak, watch(model, optimizer, layers="all", parameters_every=1) as w:
        seen = train(model, case, optimizer)
    if peak.mib is not None and row.bare_mib is not None:
        row.added_mib = peak.mib - row.bare_mib
    row.hooks_left += hooks_on(model, optimizer)
    row.outputs, row.gradients = _measured(w, "output"), _measured(w, "gradient")
    row.refused = list(w.refused)
    first = w.first_nonfinite()
    row.nonfinite = None if first is None else str(first)
    return first_difference(bare, seen) or EQUAL


def _measured(w: Watch, direction: str) -> int:
    """Of how many layers something was measured."""
    return len({key.layer for key in w._state.keys.keys if key.direction == direction and key.layer >= 0})


def _captured(model: nn.Module, case: Case, bare: dict[str, str], row: Row) -> str:
    optimizer = _optimizer(model)
    with (
        guard(model, on_violation="collect") as guarding,
        capture(model, "all", gradients=True) as taken,
    ):
        seen = train(model, case, optimizer)
    row.hooks_left += hooks_on(model, optimizer)
    row.guarded = [
        f"{finding.id} at {finding.where}: {finding.seen}"
        for finding in guarding.findings
        if finding.severity is not Severity.INFO
    ]
    calls = {name: len(taken.calls(name)) for name in taken}
    row.ran = len(calls)
    layers = [layer for layer in taken.layers if not never_runs(layer.module)]
    row.unseen = [(one.name, one.kind, one.reason) for one in coverage(model, layers, calls)]
    return first_difference(bare, seen) or EQUAL
