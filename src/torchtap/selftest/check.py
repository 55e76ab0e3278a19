"""What a check is, and what judging it gives. No check reads anything itself, none prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from torchtap.selftest.status import Level, Status

if TYPE_CHECKING:
    from torchtap.selftest.facts import Facts


class Scope(str, Enum):
    """Where a check makes sense."""

    ANY = "any"  # every machine
    GPU = "gpu"  # machines that are meant to have a GPU
    REAL_GPU = "real gpu"  # the same, but not where libcuda is a test's simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one check found: a status, what was seen in one line, and for anything but a pass the cause's id.

    `values` are the machine-readable numbers behind `seen`; they fill the slots of the cause's texts.
    """

    status: Status
    seen: str
    cause_id: str | None = None
    values: Mapping[str, object] = field(default_factory=dict)


def passed(seen: str, **values: object) -> Judged:
    """All is well: `seen` says what was found, with numbers."""
    return Judged(status=Status.PASS, seen=seen, values=values)


def warned(cause_id: str, seen: str, **values: object) -> Judged:
    """It works, but slower, at risk, or not as tested."""
    return Judged(status=Status.WARN, seen=seen, cause_id=cause_id, values=values)


def failed(cause_id: str, seen: str, **values: object) -> Judged:
    """The GPU or the environment cannot be trusted."""
    return Judged(status=Status.FAIL, seen=seen, cause_id=cause_id, values=values)


def unknown(cause_id: str, seen: str, **values: object) -> Judged:
    """Nobody can say. Never counts as good."""
    return Judged(status=Status.UNKNOWN, seen=seen, cause_id=cause_id, values=values)


def skipped(cause_id: str, seen: str, **values: object) -> Judged:
    """Not judged, and why: the reasons are in `SKIP_REASONS`."""
    return Judged(status=Status.SKIP, seen=seen, cause_id=cause_id, values=values)


SKIP_REASONS: dict[str, str] = {
    "needs": "needs {need}, which did not pass",
    "by_design": "by design: this machine is meant to have no GPU (--device cpu or TORCHTAP_DEVICE=cpu)",
    "simulated": "simulated: only a real GPU can show this",
    "left_out": "left out with --skip",
    "left_alone": "not tried: it would ask the driver, which does not answer",
    "not_reported": "this GPU does not report it",
    "not_permitted": "not permitted: this user may not read it, as in a container with one MIG instance",
    "log_closed": "the kernel log cannot be read here; on the host: sudo dmesg -T | grep -iE 'nvrm|xid'",
    "not_applicable": "does not apply here",
    "no_reference": "measured, but not judged: no reference for {names}",
}


class UnreadableError(Exception):
    """A value is missing or not of the form it must have. The runner turns it into `unknown`, never into a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check, as data.

    `judge` is pure: it looks at the facts and says what they mean. It may raise `UnreadableError`, or `facts.NotDone`
    where a step of the test process gave no result; the runner knows what to make of both.
    """

    id: str  # subject first; the name for --only and --skip, and the anchor in docs/selftest.md
    title: str  # what is asked, as a reader would ask it
    reads: tuple[str, ...]  # "/path", "env:NAME", "smi:field", "child:step": decides what is gathered at all
    judge: Callable[[Facts], Judged]
    causes: tuple[str, ...]  # ids of causes.CAUSES that it can name
    needs: tuple[str, ...] = ()  # one of these did not pass (or warn) -> skip, with its id as the reason
    on_error: str = "check_broke"  # the cause where a step of the test process ended in an exception
    scope: Scope = Scope.GPU
    level: Level = Level.QUICK
    source: str = ""  # where the limit comes from
    see: str = ""  # the command that shows the same to a person
