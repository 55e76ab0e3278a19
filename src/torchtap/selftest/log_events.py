"""What the kernel log tells of GPUs: each kind of error of each GPU once, with its age."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchtap.selftest.facts import Facts
from torchtap.selftest.kernel_log import KernelLog, LogLine
from torchtap.selftest.limits import XID_FORGOTTEN_S, XID_RECENT_S
from torchtap.selftest.smi import Finding, Kind, Row, Verdict, judge
from torchtap.selftest.smi.texts import DRIVER_LOADED
from torchtap.selftest.words import age


@dataclass(frozen=True, slots=True)
class Event:
    """A finding and how long ago its newest line was written (None: the log has no times)."""

    finding: Finding
    seconds: float | None

    @property
    def recent(self) -> bool:
        """Whether it is judged as what it is."""
        return self.seconds is None or self.seconds <= XID_RECENT_S

    @property
    def forgotten(self) -> bool:
        """Whether it is only counted."""
        return self.seconds is not None and self.seconds > XID_FORGOTTEN_S

    @property
    def fails(self) -> bool:
        """Whether it is recent, and a failure."""
        return self.recent and self.finding.verdict is Verdict.FAIL

    def __str__(self) -> str:
        ago = "" if self.seconds is None else f"{age(self.seconds)} ago: "
        return f"{ago}{self.finding.line}"


def events_of(log: KernelLog) -> list[Event]:
    """What the lines since the driver was loaded say."""
    lines = log.lines
    for at, line in enumerate(lines):
        if DRIVER_LOADED.search(line.text):
            lines = log.lines[at + 1 :]
    newest = {line.text.strip(): line for line in lines}
    findings = judge("\n".join(line.text for line in lines), kind=Kind.DMESG).findings
    none = LogLine(None, "")
    return [
        Event(finding, log.age(newest.get(finding.line, none).at))
        for finding in findings
        if finding.verdict is not Verdict.UNKNOWN
    ]


def failures_here(facts: Facts) -> Iterator[Event]:
    """Recent failures in the log, the newest first. A container's log is its host's: there, of its own GPUs only."""
    log = facts.kernel
    if log is None or log.problem:
        return
    rows = facts.smi.rows if facts.smi is not None else ()
    for event in sorted(events_of(log), key=lambda each: each.seconds or 0.0):
        bus = str(event.finding.values.get("bus") or "")
        of_another = bool(bus and rows and facts.host.container) and index_at(rows, bus) is None
        if event.fails and not of_another:
            yield event


def index_at(rows: tuple[Row, ...], bus: str) -> int | None:
    """The GPU at this address; nvidia-smi writes the domain with eight digits, the kernel with four."""
    for row in rows:
        if (text := row.text("pci.bus_id")) and text.lower().partition(".")[0].endswith(bus[-10:]):
            return row.gpu
    return None
