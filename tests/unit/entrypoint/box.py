"""A stand-in for a container's PID 1: processes that a test starts in it, and all that come of them, are its own.

It adopts orphans as tini does (`tini -s`), so `processes(below=box.pid)` is the whole content, and nothing else of
the machine can ever be seen, let alone signalled.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entrypoint.stop import Process, processes

SYSTEM_PYTHON = "/usr/bin/python3"  # for other users: the tests' own may lie where they cannot go
INIT = """
import contextlib, ctypes, os, select, signal, subprocess
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
while True:
    if select.select([0], [], [], 0.01)[0]:
        line = os.read(0, 65536)
        if not line:
            break
        for command in line.decode().splitlines():
            subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, start_new_session=True)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
# The test is over, or was itself killed: nothing stays behind.
while children := open(f"/proc/self/task/{os.getpid()}/children").read().split():
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    os.waitpid(-1, 0)
"""


class Box:
    """Commands go in; `look` tells what is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", INIT], stdin=subprocess.PIPE, cwd=folder, start_new_session=True
        )
        self.pid = self._process.pid

    def run(self, command: str) -> None:
        """A shell command of one line; it runs until it ends or is stopped."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def python(self, name: str, code: str, user: int | None = None) -> None:
        """Run Python code, and wait until it makes a file named NAME.ready."""
        (self.folder / f"{name}.py").write_text(code)
        if user is None:
            self.run(f"exec {sys.executable} -S {name}.py")
        else:
            if not Path(SYSTEM_PYTHON).exists():
                pytest.skip(f"no {SYSTEM_PYTHON}, and {sys.executable} may not be open to other users")
            self.folder.chmod(0o777)
            self.run(
                f"exec setpriv --reuid {user} --regid {user} --clear-groups {SYSTEM_PYTHON} -S {name}.py"
            )
        self.wait_for(f"{name}.ready")

    def wait_for(self, name: str) -> None:
        wait_until((self.folder / name).exists, f"no {name}")

    def look(self) -> list[Process]:
        return processes(below=self.pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def wait_until(true: Callable[[], object], complaint: str, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.01)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Box]:
    box = Box(folder)
    try:
        yield box
    finally:
        box.close()
