"""Each GPU: its state and memory as nvidia-smi reports them, and whether it computes right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchtap.selftest.check import (
    Check,
    Judged,
    Scope,
    UnreadableError,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)
from torchtap.selftest.checks.numbers import compared
from torchtap.selftest.checks.untold import not_told, untold
from torchtap.selftest.codes import BUSY_CAUSES
from torchtap.selftest.facts import Facts
from torchtap.selftest.smi import CellState, Finding, Row, Verdict
from torchtap.selftest.smi.fields import FIELDS, NotThisFormError
from torchtap.selftest.smi.rules import LANES, is_integrated
from torchtap.selftest.words import count, name_gpus

# What is worth knowing and never a verdict: `smi.judge` notes it, here it is said.
NOTES = {
    "persistence_off": ("persistence_mode", "persistence mode is off, so every start takes longer"),
    "ecc_off": ("ecc.mode.current", "ECC is off, so memory errors are not noticed"),
}
# "May not" of a cell is another thing than "may not" of a device node.
CELL_CAUSES = {"no_permission": "cells_denied"}


def reported(fields: Sequence[str], causes: Sequence[str]) -> Callable[[Facts], Judged]:
    """A judge for what nvidia-smi reports of each GPU: `smi.judge` found the causes, here they are summed up.

    Skips where no GPU reports any of the fields. Passes where the values that are there can all be read, and no GPU
    is silent about what an equal one tells.
    """

    def judge(facts: Facts) -> Judged:
        smi = facts.need_smi
        if smi.path is None:
            return skipped("not_reported", "there is no nvidia-smi to ask")
        if smi.judgement is None or not smi.rows:
            raise UnreadableError("nvidia-smi reported no GPU")
        mine = [
            replace(each, cause=CELL_CAUSES.get(each.cause, each.cause))
            for each in smi.judgement.findings
            if each.verdict is not Verdict.UNKNOWN
        ]
        mine = [each for each in mine if each.cause in causes]
        mine.sort(key=lambda finding: finding.verdict is not Verdict.FAIL)
        if mine:
            return _from_findings(mine, smi.rows, facts)
        values = _readable(smi.rows, fields)
        if denied := {row.gpu: names for row in smi.rows if (names := _denied(row, fields))}:
            return _not_permitted(facts, denied)
        if silent := untold(smi.rows, fields):
            return not_told(silent)
        notes = [
            text for note, (field, text) in NOTES.items() if field in fields and note in smi.judgement.notes
        ]
        telling = [name for name in fields if name in values.keys() - {field for field, _ in NOTES.values()}]
        told = [row.gpu for row in smi.rows if _tells(row, telling)]
        if not told:
            return skipped("not_reported", "; ".join(["not reported by this GPU", *notes]))
        seen = f"{count(len(told), 'GPU')}, nothing to report"
        others = [row.gpu for row in smi.rows if row.gpu not in told]
        rest = [f"not reported by {name_gpus(others)}"] if others else []
        return passed("; ".join([seen, *rest, *notes]), fields=values, notes=notes)

    return judge


def _tells(row: Row, fields: Sequence[str]) -> bool:
    """Whether a row says anything of these fields; of the PCIe link, both widths or nothing."""
    told = {name for name in fields if row.value(name) is not None}
    return bool(told) and (told.isdisjoint(LANES) or (told.issuperset(LANES) and not is_integrated(row)))


def _denied(row: Row, fields: Sequence[str]) -> list[str]:
    """Fields that this user may not read and that decide whether the GPU is well: without them nobody can say so."""
    names = [
        name for name in fields if name in row.cells and row.cells[name].state is CellState.NOT_PERMITTED
    ]
    deciding = [name for name in names if FIELDS[name].vital or FIELDS[name].deciding]
    told = any(name in row.cells and row.cells[name].state is CellState.VALUE for name in fields)
    return deciding or ([] if told else names)


def _not_permitted(facts: Facts, denied: Mapping[int | None, Sequence[str]]) -> Judged:
    """A container with one MIG instance may not read some fields of its GPU: skipped, whatever the others say.

    Who may read nothing of a GPU's state, or of one GPU less than of the others, knows nothing about it.
    """
    rows = facts.need_smi.rows
    names = next(iter(denied.values()))
    if len(denied) == len(rows) and all(_state_is_readable(row) for row in rows):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return skipped("not_permitted", f"not permitted: {names[0]}{more}", fields=list(names))
    gpus = name_gpus(denied)
    index = next(iter(denied))
    return unknown(
        "cells_denied",
        f"{gpus}: {names[0]} [Insufficient Permissions]",
        gpus=gpus,
        index=index or 0,
        uid=facts.host.uid,
    )


def _state_is_readable(row: Row) -> bool:
    """Whether any cell of gpu.state holds a value."""
    fields = [read.removeprefix("smi:") for read in STATE_CHECKS[0].reads]
    return any(cell.state is CellState.VALUE for name, cell in row.cells.items() if name in fields)


def _readable(rows: Sequence[Row], fields: Sequence[str]) -> dict[str, list[str | None]]:
    """Field -> each GPU's text, for fields that at least one GPU reports. Raises where a value has no right form."""
    found: dict[str, list[str | None]] = {}
    for name in fields:
        try:
            texts = [row.cells[name].text if row.value(name) is not None else None for row in rows]
        except NotThisFormError as error:
            raise UnreadableError(f"{name} is {str(error)!r}") from None
        if any(text is not None for text in texts):
            found[name] = texts
    return found


def _from_findings(findings: list[Finding], rows: Sequence[Row], facts: Facts) -> Judged:
    """The worst cause, with every GPU that has it; `seen` shows the cells behind every finding."""
    first = findings[0]
    indexes = [each.gpu for each in findings if each.cause == first.cause]
    by_gpu = {row.gpu: row for row in rows}
    cells: dict[int | None, list[str]] = {}
    for each in findings:
        cells.setdefault(each.gpu, []).extend(_cells(by_gpu.get(each.gpu), each.fields))
    seen = "; ".join(
        f"GPU {index}: {', '.join(dict.fromkeys(texts))}" for index, texts in cells.items() if texts
    )
    values = {
        **first.values,
        "gpus": name_gpus(indexes),
        "uid": facts.host.uid,
        "index": indexes[0] if indexes[0] is not None else 0,
        "also": [f"{each.gpu}:{each.cause}" for each in findings if each.cause != first.cause],
    }
    say = failed if first.verdict is Verdict.FAIL else warned
    return say(first.cause, seen or "nvidia-smi -L lists no MIG instance", **values)


def _cells(row: Row | None, fields: Sequence[str]) -> list[str]:
    """The cells a finding rests on, as nvidia-smi wrote them."""
    if row is None:
        return []
    states = {cell.state for cell in row.cells.values()}
    for state, text in ((CellState.LOST, "[GPU is lost]"), (CellState.NEEDS_RESET, "[GPU requires reset]")):
        if state in states:
            return [text]
    return [
        f"{name} {row.cells[name].text}"
        for name in fields
        if name in row.cells and row.cells[name].state is not CellState.NOT_REPORTED
    ]


def _smi_check(
    check_id: str,
    title: str,
    fields: tuple[str, ...],
    causes: tuple[str, ...],
    *,
    needs: tuple[str, ...],
    source: str,
    see: str,
) -> Check:
    return Check(
        id=check_id,
        title=title,
        reads=tuple(f"smi:{name}" for name in fields),
        needs=needs,
        judge=reported(fields, causes),
        causes=causes,
        source=source,
        see=see,
    )


STATE_CHECKS = (
    _smi_check(
        "gpu.state",
        "Does every GPU answer, and is it ready for work?",
        (
            "memory.total",
            "compute_mode",
            "mig.mode.current",
            "persistence_mode",
            "gpu_recovery_action",
            "reset_status.reset_required",
            "reset_status.drain_and_reset_recommended",
            "fabric.state",
            "fabric.status",
            "fabric.health.summary",
            "inforom.checksum_validation",
        ),
        (
            "gpu_lost",
            "gpu_requires_reset",
            "recovery_needed",
            "gpu_unreadable",
            "cells_denied",
            "mig_no_instance",
            "compute_prohibited",
            "fabric_not_ready",
            "compute_exclusive",
            "inforom_corrupt",
            "field_unreadable",
            "not_told",
        ),
        needs=("driver.smi",),
        source="nvidia-smi's error cells; nvml.h (recovery action, fabric); nvidia-smi's MIG mode",
        see="nvidia-smi -q -d COMPUTE,MIG_MODE; nvidia-smi -L",
    ),
    _smi_check(
        "gpu.ecc",
        "Is every GPU's memory sound?",
        (
            "ecc.mode.current",
            "ecc.errors.uncorrected.volatile.total",
            "ecc.errors.uncorrected.aggregate.total",
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
            "remapped_rows.pending",
            "remapped_rows.failure",
            "remapped_rows.uncorrectable",
            "retired_pages.pending",
            "retired_pages.double_bit.count",
        ),
        (
            "ecc_uncorrected",
            "ecc_threshold",
            "remap_failed",
            "remap_pending",
            "remap_exhausted",
            "retirement_pending",
            "pages_retired",
            "ecc_uncorrected_earlier",
            "cells_denied",
            "not_told",
        ),
        needs=("gpu.state",),
        source="limits.py: NVIDIA DCGM's limits (63 retired pages, 512 remapped rows); any new uncorrected error",
        see="nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER",
    ),
    _smi_check(
        "gpu.clocks",
        "Is a GPU slowed down by heat or power?",
        ("clocks_throttle_reasons.active", "temperature.gpu", "temperature.gpu.tlimit"),
        ("too_hot", "thermal_slowdown", "power_brake", "hw_slowdown", "cells_denied", "not_told"),
        needs=("gpu.state",),
        source="limits.py: the four clock reasons of DCGM's diagnostic; 5 C below the limit, or 85 C",
        see="nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
    ),
    _smi_check(
        "gpu.pcie",
        "Does every GPU use all its PCIe lanes?",
        ("pcie.link.width.current", "pcie.link.width.max"),
        ("pcie_narrow", "pcie_slot", "cells_denied", "not_told"),
        needs=("gpu.state",),
        source="DCGM: narrower is a warning, a quarter or less a failure; the generation is lowered at idle on purpose",
        see="nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.width.max --format=csv",
    ),
)

COMPUTE_CHECKS = (
    Check(
        id="gpu.matmul",
        title="Does a matrix product on every GPU give the exact result?",
        reads=("child:gpu.matmul",),
        needs=("torch.arch",),
        judge=compared("gpu.matmul", "wrong_numbers"),
        causes=("wrong_numbers", "kernel_missing", "kernel_failed", "gpu_memory_full", *BUSY_CAUSES),
        on_error="kernel_failed",
        scope=Scope.REAL_GPU,
        source="whole numbers, exact in fp32, TF32 and bf16 (limits.py)",
    ),
    Check(
        id="gpu.cudnn",
        title="Does cuDNN work on every GPU?",
        reads=("child:gpu.cudnn",),
        needs=("torch.cudnn", "gpu.matmul"),
        judge=compared("gpu.cudnn", "wrong_numbers"),
        causes=("wrong_numbers", "cudnn_mixed", "cudnn_refuses_gpu", "cudnn_failed", "gpu_memory_full"),
        on_error="cudnn_failed",
        scope=Scope.REAL_GPU,
        source="a convolution against the CPU, within limits.CONVOLUTION_TOLERANCE",
    ),
    Check(
        id="gpu.rnn",
        title="Does an LSTM run forward and backward through cuDNN?",
        reads=("child:gpu.rnn",),
        needs=("torch.cudnn", "gpu.matmul"),
        judge=compared("gpu.rnn", "rnn_differs"),
        causes=("rnn_differs", "cudnn_mixed", "cudnn_refuses_gpu", "cudnn_failed", "gpu_memory_full"),
        on_error="cudnn_failed",
        scope=Scope.REAL_GPU,
        source="cuDNN on against cuDNN off, within limits.LSTM_TOLERANCE",
    ),
)
