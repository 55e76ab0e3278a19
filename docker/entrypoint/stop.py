"""The last step of `docker stop`: s6 has stopped JupyterLab and sshd; now everything else gets its SIGTERM.

A training run in tmux must be able to save when it gets SIGTERM. tmux, screen and sshd's sessions hold the other
end of their programs' terminals: were they to die first, the programs would get SIGHUP in the middle of saving.
So those holders, and the shells between, come last. Then a real wait, until the grace period of `docker stop` is
nearly over; PID 1 ending would kill whatever is still there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from entrypoint import log, paths
from entrypoint.account import acting_as

PROC = Path("/proc")
STOPPING = "stopping"  # in the run directory: made when the stop signal comes
DEFAULT_GRACE_S = 10.0
# For the engine's own work after us, so that nothing is killed at the very end of the grace period.
MARGIN_S = 0.5
# What processes get when the services have used up all of it.
LEAST_S = 0.5
# Kept for the holders of terminals when the others use up their time: a shell saves its history.
LAST_S = 0.3
# They changed their identity (sshd) or run with a group's (screen), so even their owner may not see what they hold.
HOLDERS = ("sshd", "sshd-session", "screen")


@dataclass(frozen=True, slots=True)
class Process:
    """What decides how a process is stopped."""

    pid: int
    name: str
    ignores_sigterm: bool = False  # interactive shells do
    holds_terminals: bool = False  # has the controlling end of a terminal open
    suspended: bool = False  # by Ctrl-Z: takes no signal before it goes on

    @property
    def last(self) -> bool:
        return self.ignores_sigterm or self.holds_terminals


def processes(proc: Path = PROC, below: int | None = None) -> list[Process]:
    """All processes of the container that can still do something, less PID 1, this one and its parent (tini).

    `below`: only the descendants of that process, for a container that shares the PID namespace of its host
    (`--pid host`): there /proc shows, and root may end, everything.
    """
    seen = {pid: status for pid in _pids(proc) if (status := _status(proc / str(pid)))}
    wanted = set(seen) if below is None else _descendants(seen, below)
    return [
        _process(proc / str(pid), seen[pid])
        for pid in sorted(wanted - {1, os.getpid(), os.getppid()})
        if not seen[pid]["State"].startswith(("Z", "X"))
    ]


def _pids(proc: Path) -> list[int]:
    return [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()]


def _status(folder: Path) -> dict[str, str]:
    """/proc/PID/status; empty when the process is gone."""
    try:
        # Names are cut after 15 bytes, if need be amid a character.
        text = (folder / "status").read_text(errors="replace")
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, value in fields.items()}


def _descendants(seen: dict[int, dict[str, str]], of: int) -> set[int]:
    found: set[int] = set()
    new = {of}
    while new:
        new = {pid for pid, status in seen.items() if int(status["PPid"]) in new} - found
        found |= new
    return found


def _process(folder: Path, status: dict[str, str]) -> Process:
    return Process(
        pid=int(folder.name),
        name=status["Name"],
        ignores_sigterm=bool(int(status["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1),
        holds_terminals=_holds_terminals(folder, status["Name"]),
        suspended=status["State"].startswith("T"),
    )


def _holds_terminals(folder: Path, name: str) -> bool:
    try:
        owner = folder.stat()
        # Root in a container has no CAP_SYS_PTRACE, so it may not look into other users' processes; they may.
        with acting_as(owner.st_uid, owner.st_gid):
            return any(
                os.readlink(link) in ("/dev/ptmx", "/dev/pts/ptmx") for link in (folder / "fd").iterdir()
            )
    except OSError:
        return name in HOLDERS


def stop(
    deadline: float,
    look: Callable[[], list[Process]],
    send: Callable[[int, int], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Process]:
    """SIGTERM to all, in two rounds, and wait until `deadline`; the processes that are left."""
    told: set[int] = set()
    while (first := [process for process in look() if not process.last]) and now() < deadline - LAST_S:
        for process in first:
            if process.pid not in told:  # some were only born after the first round
                told.add(process.pid)
                _ask_to_end(process, send)
        sleep(0.02)
    hung_up: set[int] = set()
    while (rest := look()) and now() < deadline:
        for process in rest:
            if process.pid not in hung_up:
                hung_up.add(process.pid)
                if process.pid not in told:
                    _ask_to_end(process, send)
                if process.ignores_sigterm:
                    send(process.pid, signal.SIGHUP)  # what a shell ends on
        sleep(0.02)
    return look()


def _ask_to_end(process: Process, send: Callable[[int, int], None]) -> None:
    send(process.pid, signal.SIGTERM)
    if process.suspended:
        send(process.pid, signal.SIGCONT)


def main() -> int:
    """Run by s6-svscan when its services are down."""
    now = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    grace = float((paths.started() or {}).get("stop_grace_s", DEFAULT_GRACE_S))
    deadline = max(now - _seconds_since_the_signal() + grace - MARGIN_S, now + LEAST_S)
    below = _shared_below()
    left = stop(deadline, lambda: processes(below=below), _send)
    for process in left:
        log.warning(
            "stop", f"{process.name} (pid {process.pid}) did not end in {grace:.0f} s and will be killed"
        )
    return 0


def _shared_below(proc: Path = PROC) -> int | None:
    """None where every process in /proc is this container's, else our parent (tini), of which ours descend."""
    tini = os.getppid()
    try:
        # --init puts another PID 1 above tini. That of a host lives among other mounts, or may not even be asked.
        ours = tini == 1 or os.readlink(proc / "1/ns/mnt") == os.readlink(proc / "self/ns/mnt")
    except OSError:
        ours = False
    return None if ours else tini


def _seconds_since_the_signal() -> float:
    """How much of the grace period the services have used up; 0 where nothing says when the signal came."""
    run = paths.run_directory()
    try:
        return max(time.time() - (run / STOPPING).stat().st_mtime, 0.0) if run else 0.0
    except OSError:
        return 0.0


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    sys.exit(main())
