"""The kernel log: what went wrong with a GPU that nvidia-smi does not tell any more."""

from __future__ import annotations

from torchtap.selftest.check import Check, Judged, failed, passed, skipped, warned
from torchtap.selftest.checks.cuda import named_by_init
from torchtap.selftest.facts import Facts
from torchtap.selftest.log_events import events_of, index_at
from torchtap.selftest.smi import Verdict
from torchtap.selftest.status import Level
from torchtap.selftest.words import age, count, name_gpus

# What starting CUDA shows as it is now, with the log as a witness (codes.py); else it tells of another container.
SHOWN_BY_CUDA = frozenset({"hmm_error", "driver_library_mismatch"})


def judge_log(facts: Facts) -> Judged:
    """Recent errors as what they are, older ones as a warning, those of more than a week ago not at all."""
    log = facts.need_kernel
    if log.problem:
        return skipped("log_closed", f"not readable: {log.problem}", problem=log.problem)
    reach = "" if log.since is None else f", in the last {age(log.now - log.since)}"
    events = [each for each in events_of(log) if each.finding.cause not in SHOWN_BY_CUDA]
    values: dict[str, object] = {"events": [str(event) for event in events]}
    told = [event for event in events if not event.forgotten]
    if not told:
        old = f"; {count(len(events), 'older one')}" if events else ""
        return passed(f"no GPU error{reach}{old}", **values)
    # What fails before what warns, the newest first.
    told.sort(key=lambda event: (not event.fails, event.seconds or 0.0))
    worst = told[0]
    if worst.fails and worst.finding.cause == named_by_init(facts):  # one fault is named once
        return skipped("needs", "needs cuda.init", need="cuda.init")
    same = [each.finding for each in told if each.finding.cause == worst.finding.cause]
    buses = list(dict.fromkeys(bus for each in same if (bus := each.values.get("bus"))))
    rows = facts.smi.rows if facts.smi is not None else ()
    indexes = [index_at(rows, str(bus)) for bus in buses]
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
