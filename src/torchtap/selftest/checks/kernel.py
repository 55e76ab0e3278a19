"""The kernel log: what went wrong with a GPU that nvidia-smi does not tell any more."""

from __future__ import annotations

from dataclasses import dataclass

from torchtap.selftest.check import Check, Judged, failed, passed, skipped, warned
from torchtap.selftest.facts import Facts
from torchtap.selftest.kernel_log import KernelLog, LogLine
from torchtap.selftest.limits import XID_FORGOTTEN_S, XID_RECENT_S
from torchtap.selftest.smi import Finding, Kind, Row, Verdict, judge
from torchtap.selftest.smi.texts import DRIVER_LOADED
from torchtap.selftest.status import Level
from torchtap.selftest.words import age, count, name_gpus


@dataclass(frozen=True, slots=True)
class _Event:
    """A finding and how long ago its newest line was written (None: the log has no times)."""

    finding: Finding
    seconds: float | None

    @property
    def recent(self) -> bool:
        return self.seconds is None or self.seconds <= XID_RECENT_S

    @property
    def forgotten(self) -> bool:
        return self.seconds is not None and self.seconds > XID_FORGOTTEN_S

    def __str__(self) -> str:
        ago = "" if self.seconds is None else f"{age(self.seconds)} ago: "
        return f"{ago}{self.finding.line}"


# What starting CUDA shows as it is now, with the log as a witness (codes.py); else it tells of another container.
SHOWN_BY_CUDA = frozenset({"hmm_error", "driver_library_mismatch"})


def judge_log(facts: Facts) -> Judged:
    """Recent errors as what they are, older ones as a warning, those of more than a week ago not at all."""
    log = facts.need_kernel
    if log.problem:
        return skipped("log_closed", f"not readable: {log.problem}", problem=log.problem)
    reach = "" if log.since is None else f", in the last {age(log.now - log.since)}"
    events = [each for each in _events(log) if each.finding.cause not in SHOWN_BY_CUDA]
    values: dict[str, object] = {"events": [str(event) for event in events]}
    told = [event for event in events if not event.forgotten]
    if not told:
        old = f"; {count(len(events), 'older one')}" if events else ""
        return passed(f"no GPU error{reach}{old}", **values)
    # What fails before what warns, the newest first.
    told.sort(key=lambda event: (not _fails(event), event.seconds or 0.0))
    worst = told[0]
    same = [each.finding for each in told if each.finding.cause == worst.finding.cause]
    buses = list(dict.fromkeys(bus for each in same if (bus := each.values.get("bus"))))
    rows = facts.smi.rows if facts.smi is not None else ()
    indexes = [_index(rows, str(bus)) for bus in buses]
    values |= {
        **worst.finding.values,
        "gpus": name_gpus(indexes or [None], buses[0] if buses else None),
        "index": next((index for index in indexes if index is not None), 0),
        "also": list(dict.fromkeys(each.finding.cause for each in told if each.finding not in same)),
    }
    if worst.recent:
        say = failed if worst.finding.verdict is Verdict.FAIL else warned
        return say(worst.finding.cause, str(worst), **values)
    what = f"Xid {worst.finding.values['xid']}" if "xid" in worst.finding.values else worst.finding.cause
    return warned("xid_earlier", str(worst), **values, age=age(worst.seconds or 0.0), what=what)


def _fails(event: _Event) -> bool:
    return event.recent and event.finding.verdict is Verdict.FAIL


def _events(log: KernelLog) -> list[_Event]:
    """What the lines since the driver was loaded say, each kind of error of each GPU once, with its newest line."""
    lines = log.lines
    for at, line in enumerate(lines):
        if DRIVER_LOADED.search(line.text):
            lines = log.lines[at + 1 :]
    newest = {line.text.strip(): line for line in lines}
    findings = judge("\n".join(line.text for line in lines), kind=Kind.DMESG).findings
    none = LogLine(None, "")
    return [
        _Event(finding, log.age(newest.get(finding.line, none).at))
        for finding in findings
        if finding.verdict is not Verdict.UNKNOWN
    ]


def _index(rows: tuple[Row, ...], bus: str) -> int | None:
    """The GPU at this address; nvidia-smi writes the domain with eight digits, the kernel with four."""
    for row in rows:
        if (text := row.text("pci.bus_id")) and text.lower().partition(".")[0].endswith(bus[-10:]):
            return row.gpu
    return None


CHECKS = (
    Check(
        id="kernel.log",
        title="Does the kernel log tell of GPU errors since the driver was loaded?",
        reads=("/dev/kmsg", "smi:pci.bus_id"),
        needs=("driver.smi", "gpu.state"),
        judge=judge_log,
        causes=(
            "gpu_fell_off_bus",
            "gpu_lost",
            "gsp_timeout",
            "smi_hung",
            "driver_blocked",
            "pcie_error",
            "ecc_uncorrected",
            "remap_failed",
            "nvlink_error",
            "power_cable",
            "xid_reset",
            "init_failed",
            "recovery_needed",
            "xid_earlier",
            "xid_other",
        ),
        level=Level.FULL,
        source="NVIDIA's Xid catalogue (immediate actions); limits.py: two hours and a week",
        see="sudo dmesg -T | grep -iE 'nvrm|xid'",
    ),
)
