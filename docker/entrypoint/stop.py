"""The last step of `docker stop`: s6 has stopped JupyterLab and sshd; now everything else gets its SIGTERM.

A training run in tmux must be able to save when it gets SIGTERM. tmux, screen and sshd's sessions hold the other
end of their programs' terminals: were they to die first, the programs would get SIGHUP in the middle of saving.
So those holders, and the shells between, come last. Then a real wait, until the grace period of `docker stop` is
nearly over; PID 1 ending would kill whatever is still there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from entrypoint import log, paths

PROC = Path("/proc")
# For the engine's own work after us, so that nothing is killed at the very end of the grace period.
MARGIN_S = 0.5
DEFAULT_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """What decides how a process is stopped."""

    pid: int
    name: str
    ignores_sigterm: bool  # interactive shells do
    holds_terminals: bool  # has the controlling end of a terminal open

    @property
    def last(self) -> bool:
        return self.ignores_sigterm or self.holds_terminals


def processes(proc: Path = PROC, skip: Iterable[int] = ()) -> list[Process]:
    """All processes of the container that can still do something, less PID 1, this one and `skip`."""
    left_out = {1, os.getpid(), *skip}
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) in left_out:
            continue
        try:
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
            )
        except OSError:
            continue  # gone meanwhile
        if status["State"].strip().startswith(("Z", "X")):
            continue
        ignored = int(status.get("SigIgn", "0"), 16)
        found.append(
            Process(
                pid=int(folder.name),
                name=status["Name"].strip(),
                ignores_sigterm=bool(ignored >> (signal.SIGTERM - 1) & 1),
                holds_terminals=_holds_terminals(folder),
            )
        )
    return found


def _holds_terminals(folder: Path) -> bool:
    try:
        with _as_owner_of(folder):
            return any(
                os.readlink(link) in ("/dev/ptmx", "/dev/pts/ptmx") for link in (folder / "fd").iterdir()
            )
    except OSError:
        return False


@contextlib.contextmanager
def _as_owner_of(folder: Path) -> Iterator[None]:
    """Root in a container has no CAP_SYS_PTRACE, so it may not look into other users' processes; they may."""
    uid, gid = os.geteuid(), os.getegid()
    found = folder.stat()
    try:
        if uid == 0:
            os.setegid(found.st_gid)
            os.seteuid(found.st_uid)
        yield
    finally:
        if uid == 0:
            os.seteuid(uid)
            os.setegid(gid)


def stop(
    deadline: float,
    look: Callable[[], list[Process]],
    send: Callable[[int, int], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Process]:
    """SIGTERM to all, in two rounds, and wait until `deadline`; the processes that are left."""
    told: set[int] = set()
    while (first := [process for process in look() if not process.last]) and now() < deadline:
        for process in first:
            if process.pid not in told:  # some were only born after the first round
                told.add(process.pid)
                send(process.pid, signal.SIGTERM)
        sleep(0.02)
    hung_up: set[int] = set()
    while (rest := look()) and now() < deadline:
        for process in rest:
            if process.pid not in hung_up:
                hung_up.add(process.pid)
                if process.pid not in told:
                    send(process.pid, signal.SIGTERM)
                if process.ignores_sigterm:
                    send(process.pid, signal.SIGHUP)  # what a shell ends on
        sleep(0.02)
    return look()


def main() -> int:
    """Run by s6-svscan when its services are down."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    grace = float((paths.started() or {}).get("stop_grace_s", DEFAULT_GRACE_S))
    left = stop(began + max(grace - MARGIN_S, 0.5), processes, _send)
    for process in left:
        log.warning(
            "stop", f"{process.name} (pid {process.pid}) did not end in {grace:.0f} s and will be killed"
        )
    return 0


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    sys.exit(main())
