"""Run a command that may hang, crash or babble, and always come back with what it said.

Used for nvidia-smi and for the test process. The command gets a process group of its own; when its time is up, that
group is killed by its id and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchtap.selftest.limits import KILL_WAIT_S, MAX_OUTPUT_BYTES
from torchtap.selftest.words import size, waited

# How often a running command is looked at while it says nothing.
LOOK_EVERY_S = 0.2
# Process groups of commands that run now.
_RUNNING: set[int] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said. `rc` is None where it did not end by itself; negative: ended by that signal."""

    command: tuple[str, ...]
    text: str = ""  # standard output, control characters made visible
    errors: str = ""  # standard error, likewise
    rc: int | None = None
    seconds: float = 0.0
    timed_out: bool = False
    stopped: bool = False  # its answer was no longer wanted, so it was ended
    too_long: bool = False  # it printed more than the limit and was ended for it
    stuck_pid: int | None = None  # survived SIGKILL for two seconds, so it was left alone
    not_started: str = ""  # why it could not be started at all

    @property
    def ending(self) -> str:
        """How it ended, in words.

        >>> Answer(command=(), rc=3).ending, Answer(command=(), too_long=True).ending
        ('exit code 3', 'ended, because it printed more than 1 MiB')
        """
        if self.not_started:
            return self.not_started
        if self.too_long:
            return f"ended, because it printed more than {size(MAX_OUTPUT_BYTES)}"
        if self.timed_out:
            return f"no answer in {waited(self.seconds)} s"
        return "ended, because its answer was not wanted any more" if self.stopped else f"exit code {self.rc}"


def ask(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], bool | None] | None = None,
    until: Callable[[], float] | None = None,
    stop: Callable[[], bool] | None = None,
    max_bytes: int = MAX_OUTPUT_BYTES,
) -> Answer:
    """Run `command` for at most `timeout_s` seconds (two more if it resists being killed).

    Never raises for what the command does. `on_line` is called with each complete line of its standard output as it
    comes; where it returns True, the line is not kept. What was printed before a time-out or a crash is kept.
    `until` says, as often as it is asked, at which `time.monotonic()` the time is up before `timeout_s` is. `stop`
    says that the answer is no longer wanted.

    >>> ask(["echo", "hello"], timeout_s=5).text
    'hello\\n'
    >>> ask(["no-such-command-here"], timeout_s=5).not_started
    'No such file or directory'
    """
    began = time.monotonic()
    argv = tuple(command)
    if stop is not None and stop():
        return Answer(command=argv, stopped=True)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,  # its own group: its children are ended with it, and Ctrl-C reaches only us
        )
    except OSError as error:
        return Answer(
            command=argv, not_started=error.strerror or str(error), seconds=time.monotonic() - began
        )
    _RUNNING.add(process.pid)
    reader = _Reader(process, on_line, max_bytes)
    try:
        ended = reader.read(began + timeout_s, until, stop)
    except BaseException:  # KeyboardInterrupt, an error of on_line: leave nothing running behind
        _kill(process)
        _RUNNING.discard(process.pid)
        reader.close()
        raise
    stuck = None if ended else _kill(process)
    _RUNNING.discard(process.pid)
    if not ended:
        reader.drain()
    reader.close()
    return Answer(
        command=argv,
        text=visible(reader.out),
        errors=visible(reader.err),
        rc=process.returncode if ended else None,
        seconds=time.monotonic() - began,
        timed_out=not ended and not reader.too_long and not reader.stopped,
        stopped=reader.stopped,
        too_long=reader.too_long,
        stuck_pid=stuck,
    )


def visible(raw: bytes) -> str:
    r"""Bytes as text in which nothing can move a terminal's cursor or hide: control characters become \xNN.

    >>> visible(b"GPU 0\x1b[2J ok\n")
    'GPU 0\\x1b[2J ok\n'
    """
    text = raw.decode("utf-8", errors="backslashreplace").replace("\r\n", "\n")
    return "".join(char if char in "\n\t" or char.isprintable() else ascii(char)[1:-1] for char in text)


class _Reader:
    """Reads both pipes of a process side by side until it ends, a deadline passes or it prints too much."""

    def __init__(
        self, process: subprocess.Popen[bytes], on_line: Callable[[str], bool | None] | None, max_bytes: int
    ) -> None:
        self._process = process
        self._on_line = on_line
        self._max_bytes = max_bytes
        self._told = 0
        self._selector = selectors.DefaultSelector()
        self.too_long = False
        self.stopped = False
        self._buffers = {"out": bytearray(), "err": bytearray()}
        for name, pipe in (("out", process.stdout), ("err", process.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, name)

    @property
    def out(self) -> bytes:
        return bytes(self._buffers["out"])

    @property
    def err(self) -> bytes:
        return bytes(self._buffers["err"])

    def read(self, latest: float, until: Callable[[], float] | None, stop: Callable[[], bool] | None) -> bool:
        """True once the process has ended; False when the time is up, it printed too much or is not wanted."""
        while True:
            self.stopped = stop is not None and stop()
            deadline = latest if until is None else min(latest, until())
            # A short wait, because a grandchild may keep a pipe open after the process itself has ended.
            wait = min(deadline - time.monotonic(), LOOK_EVERY_S)
            if wait <= 0 or self.too_long or self.stopped:
                return False
            if not self._selector.get_map():  # both pipes closed: only its end is missing
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=wait)
                    return True
                continue
            self._step(wait)
            if self._process.poll() is not None:
                self.drain()
                return True

    def drain(self) -> None:
        """Whatever is in the pipes already."""
        while self._selector.get_map() and self._step(0):
            pass

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._finish(key)
        self._selector.close()

    def _step(self, wait_s: float) -> bool:
        """Read what is ready; whether anything was."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            try:
                chunk = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            if not chunk:
                self._finish(key)
                continue
            buffer = self._buffers[key.data]
            room = self._max_bytes - len(buffer)
            buffer += chunk[:room]
            self.too_long = self.too_long or len(chunk) > room
            if key.data == "out":
                self._tell()
        return bool(ready) and not self.too_long

    def _finish(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]  # pipes, never a bare descriptor

    def _tell(self) -> None:
        if self._on_line is None:
            return
        buffer = self._buffers["out"]
        while (end := buffer.find(b"\n", self._told)) >= 0:
            if self._on_line(visible(bytes(buffer[self._told : end]))):
                del buffer[self._told : end + 1]
            else:
                self._told = end + 1


def end_all() -> None:
    """SIGKILL to every command that is running now, without waiting. For the program's own sudden end."""
    for pid in tuple(_RUNNING):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes]) -> int | None:
    """End the process group. The process's id if it is still there two seconds later, else None."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(timeout=KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        # SIGKILL may not end it: a process that waits in the kernel (state D) takes no signal. Report it and go on.
        return process.pid
    return None
