"""What a GPU's values mean: one row of the table a rule, limits from `limits.py`.

A rule looks at one GPU's row and says nothing, or which cause at which severity. Fields that were not asked for, or
that this product does not have, say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchtap.selftest import limits
from torchtap.selftest.smi.cells import CellState
from torchtap.selftest.smi.fields import CLOCK_PREFIXES, CLOCK_REASONS, FIELDS, NotThisFormError
from torchtap.selftest.smi.forms import Row
from torchtap.selftest.smi.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Said:
    """What a rule says of one GPU. `values` fill the slots of the cause's texts."""

    verdict: Verdict
    cause: str
    values: dict[str, object] = field(default_factory=dict)
    fields: tuple[str, ...] = ()  # the cells it rests on


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `fields` are all it looks at."""

    fields: tuple[str, ...]
    says: Callable[[Row], Said | None]


def _above(name: str, limit: float, verdict: Verdict, cause: str) -> Rule:
    """Says `cause` where the number is above the limit."""

    def says(row: Row) -> Said | None:
        seen = row.number(name)
        if seen is None or seen <= limit:
            return None
        return Said(verdict, cause, {"count": int(seen), "limit": int(limit) + 1})

    return Rule(fields=(name,), says=says)


def _yes(name: str, cause: str, verdict: Verdict = Verdict.FAIL, **values: object) -> Rule:
    """Says `cause` where the answer is yes."""
    return Rule(
        fields=(name,), says=lambda row: Said(verdict, cause, values) if row.value(name) is True else None
    )


def _retired(row: Row) -> Said | None:
    name = "retired_pages.double_bit.count"
    for limit, verdict in (
        (limits.RETIRED_PAGES_FAIL, Verdict.FAIL),
        (limits.RETIRED_PAGES_WARN, Verdict.WARN),
    ):
        if (seen := row.number(name)) is not None and seen >= limit:
            return Said(verdict, "pages_retired", {"count": int(seen), "limit": limit})
    return None


def _places(when: str) -> tuple[str, ...]:
    start = f"ecc.errors.uncorrected.{when}."
    return tuple(name for name in FIELDS if name.startswith(start) and not name.endswith("thresholdExceeded"))


def _errors(row: Row, when: str) -> int:
    """Uncorrected errors, in total or at the place where there are most: the places are parts of the total."""
    counts = [row.number(name) for name in _places(when) if name in row.cells]
    return int(max((each for each in counts if each is not None), default=0))


def _new_errors(row: Row) -> Said | None:
    count = _errors(row, "volatile")
    return Said(Verdict.FAIL, "ecc_uncorrected", {"count": count}) if count else None


def _earlier_errors(row: Row) -> Said | None:
    """Errors over the GPU's life matter only where none are new: new ones have a rule of their own."""
    ever = _errors(row, "aggregate")
    if not ever or _errors(row, "volatile"):
        return None
    return Said(Verdict.WARN, "ecc_uncorrected_earlier", {"count": ever})


def _recovery(row: Row) -> Said | None:
    action = row.value("gpu_recovery_action")
    if action is None or str(action).casefold() == "none":
        return None
    return Said(Verdict.FAIL, "recovery_needed", {"action": action})


def _inforom(row: Row) -> Said | None:
    if str(row.value("inforom.checksum_validation") or "valid").casefold() == "valid":
        return None
    return Said(Verdict.WARN, "inforom_corrupt")


# One reason at a time, the most telling first: the hardware bits come together with 0x8.
_CLOCK_BITS = (
    (limits.HW_THERMAL, "thermal_slowdown"),
    (limits.POWER_BRAKE, "power_brake"),
    (limits.SW_THERMAL, "thermal_slowdown"),
    (limits.HW_SLOWDOWN, "hw_slowdown"),
)


def _clocks(name: str) -> Rule:
    def says(row: Row) -> Said | None:
        bits = row.value(name)
        if not isinstance(bits, int):
            return None
        cause = next((cause for bit, cause in _CLOCK_BITS if bits & bit), None)
        return Said(Verdict.WARN, cause, {"bits": f"0x{bits:x}"}) if cause else None

    return Rule(fields=(name,), says=says)


def _clock_words(prefix: str) -> Rule:
    """The same where each reason was asked for by its name."""
    names = {f"{prefix}.{reason}": bit for reason, bit in CLOCK_REASONS.items()}

    def says(row: Row) -> Said | None:
        on = {bit for name, bit in names.items() if row.value(name) == "Active"}
        cause = next((cause for bit, cause in _CLOCK_BITS if bit in on), None)
        return Said(Verdict.WARN, cause, {"bits": f"0x{sum(on):x}"}) if cause else None

    return Rule(fields=tuple(names), says=says)


def _fabric_health(row: Row) -> Said | None:
    """Of driver 590 and newer; words of nvml.h's nvmlGpuFabricHealthSummary, of which only one is good."""
    health = row.value("fabric.health.summary")
    if health is None or str(health).casefold() == "healthy":
        return None
    verdict = Verdict.WARN if "limited" in str(health).casefold() else Verdict.FAIL
    return Said(verdict, "fabric_not_ready", {"state": health})


def _temperature(row: Row) -> Said | None:
    now, left = row.number("temperature.gpu"), row.number("temperature.gpu.tlimit")
    if left is not None:
        verdict = Verdict.FAIL if left <= limits.TLIMIT_FAIL_C else Verdict.WARN
        text = f"{left:.0f} C below its limit" if left > 0 else "at its limit"
        return Said(verdict, "too_hot", {"temperature": text}) if left <= limits.TLIMIT_WARN_C else None
    if now is None or now < limits.TEMPERATURE_WARN_C:
        return None
    return Said(Verdict.WARN, "too_hot", {"temperature": f"{now:.0f} C"})


LANES = ("pcie.link.width.current", "pcie.link.width.max")


def is_integrated(row: Row) -> bool:
    """Whether the GPU has no memory of its own, as GB10: the PCIe link that it reports (x1) is made up (nvtop#499)."""
    memory = row.cells.get("memory.total")
    return memory is not None and memory.state is CellState.NOT_REPORTED


def _lanes(row: Row) -> Said | None:
    """Lanes in use against lanes possible. The link's generation is not judged: at idle it is lowered on purpose."""
    now, most = (row.number(name) for name in LANES)
    if now is None or most is None or is_integrated(row):
        return None
    if now > most:
        raise NotThisFormError(f"{now:.0f} of {most:.0f} PCIe lanes")
    values: dict[str, object] = {"width": int(now), "max_width": int(most)}
    if now < most:
        return Said(Verdict.FAIL if now * 4 <= most else Verdict.WARN, "pcie_narrow", values)
    return Said(Verdict.WARN, "pcie_slot", values) if most <= limits.PCIE_LANES_WARN else None


def _memory_fits(row: Row) -> Said | None:
    """Never a finding; raises where more is in use than there is, because then neither number is one."""
    total = row.number("memory.total")
    for name in ("memory.used", "memory.free"):
        part = row.number(name)
        if total is not None and part is not None and part > total:
            raise NotThisFormError(f"{name} is {part:.0f} of {total:.0f} MiB")
    return None


def _compute_mode(row: Row) -> Said | None:
    mode = row.value("compute_mode")
    if mode == "Prohibited":
        return Said(Verdict.FAIL, "compute_prohibited")
    return None if mode in (None, "Default") else Said(Verdict.WARN, "compute_exclusive", {"mode": mode})


def _fabric(row: Row) -> Said | None:
    """State and status each count alone. Not reported: no part of an NVSwitch."""
    for name, good in (("fabric.state", "completed"), ("fabric.status", "success")):
        said = str(row.value(name) or "")
        if said and said.casefold() != good:
            return Said(Verdict.FAIL, "fabric_not_ready", {"state": said})
    return None


RULES: tuple[Rule, ...] = (
    Rule(fields=_places("volatile"), says=_new_errors),
    Rule(
        fields=(*_places("aggregate"), *_places("volatile")),
        says=_earlier_errors,
    ),
    _yes("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "ecc_threshold"),
    _yes("remapped_rows.failure", "remap_failed"),
    _yes("unrepairable_memory", "remap_failed"),
    _yes("remapped_rows.pending", "remap_pending"),
    _above("remapped_rows.uncorrectable", limits.REMAPPED_ROWS_FAIL - 1, Verdict.FAIL, "remap_exhausted"),
    _yes("retired_pages.pending", "retirement_pending"),
    Rule(fields=("retired_pages.double_bit.count",), says=_retired),
    Rule(fields=("gpu_recovery_action",), says=_recovery),
    Rule(fields=("inforom.checksum_validation",), says=_inforom),
    _yes("reset_status.reset_required", "gpu_requires_reset"),
    _yes("reset_status.drain_and_reset_recommended", "recovery_needed", action="Drain and Reset"),
    _clocks("clocks_throttle_reasons.active"),
    _clocks("clocks_event_reasons.active"),
    *(_clock_words(prefix) for prefix in CLOCK_PREFIXES),
    _yes("repair.channel", "recovery_needed", action="Reset"),
    _yes("repair.tpc", "recovery_needed", action="Reset"),
    Rule(fields=("temperature.gpu", "temperature.gpu.tlimit"), says=_temperature),
    Rule(fields=LANES, says=_lanes),
    Rule(fields=("memory.total", "memory.used", "memory.free"), says=_memory_fits),
    Rule(fields=("compute_mode",), says=_compute_mode),
    Rule(fields=("fabric.state", "fabric.status"), says=_fabric),
    Rule(fields=("fabric.health.summary",), says=_fabric_health),
)


def rules_on(row: Row) -> list[Said]:
    """What the rules say of one GPU, once per cause.

    Raises `NotThisFormError` where a value that a rule needs is not of its field's form.
    """
    found: dict[str, Said] = {}
    for rule in RULES:
        if (said := rule.says(row)) is not None:
            found.setdefault(said.cause, replace(said, fields=rule.fields))
    return list(found.values())


def same_uuid(rows: Sequence[Row]) -> dict[int | None, Said]:
    """GPU -> what to say of it, where another one has its UUID: one of the two was not read. (Addresses get masked.)"""
    found: dict[int | None, Said] = {}
    first: dict[str, int | None] = {}
    for row in rows:
        uuid = row.text("uuid")
        if uuid is not None and first.setdefault(uuid.casefold(), row.gpu) != row.gpu:
            values: dict[str, object] = {"what": "the UUID of another GPU"}
            found[row.gpu] = Said(Verdict.UNKNOWN, "smi_unreadable", values, ("uuid",))
    return found


def error_cells(row: Row) -> list[Said]:
    """What cells that hold an error instead of a value mean. A lost GPU is only lost: its other cells say no more."""
    by_state: dict[CellState, list[str]] = {}
    for name, cell in row.cells.items():
        by_state.setdefault(cell.state, []).append(name)
    if CellState.LOST in by_state:
        return [Said(Verdict.FAIL, "gpu_lost")]
    if CellState.NEEDS_RESET in by_state:
        return [Said(Verdict.FAIL, "gpu_requires_reset")]
    broken = by_state.get(CellState.BROKEN, [])
    vital = [name for name in broken if name in FIELDS and FIELDS[name].vital]
    if vital:
        return [Said(Verdict.FAIL, "gpu_unreadable", {"field": vital[0]}, tuple(vital))]
    deciding = [name for name in broken if name in FIELDS and FIELDS[name].deciding]
    if deciding:
        what = f"an error instead of {deciding[0]}"
        return [Said(Verdict.UNKNOWN, "smi_unreadable", {"what": what}, tuple(deciding))]
    if broken:
        return [Said(Verdict.WARN, "field_unreadable", {"field": broken[0]}, tuple(broken))]
    # A container with one MIG instance may not read some fields; only where it may read none is that a fault.
    if CellState.NOT_PERMITTED in by_state and CellState.VALUE not in by_state:
        return [Said(Verdict.FAIL, "no_permission")]
    return []
