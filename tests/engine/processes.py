"""Processes by id and start time: an id is given out again, the two together are not. Reads /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat after the command (which may hold spaces): state, ppid, ...; empty: no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot; None if there is none (a zombie counts as none).

    >>> start_time(os.getpid()) is not None, start_time(2**22 + 1)
    (True, None)
    """
    fields = _stat_fields(pid)
    return fields[19] if fields and fields[0] != "Z" else None  # field 22 of the line: clock ticks since boot


def child_of(pid: int) -> int | None:
    """A child of a process, if it has one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) and int(fields[1]) == pid:
            return int(entry.name)
    return None


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a process; fine if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(pid: int, started: str, limit_s: float) -> bool:
    """Wait until the process that began then has ended; whether it did in time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if start_time(pid) != started:
            return True
        time.sleep(0.05)
    return False
