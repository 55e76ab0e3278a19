"""Running other programs: a call has a time limit or shows its output; an absent program raises nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO

Tick = Callable[[float, str], None]
NOT_FOUND = 127
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended. `rc` is 127 when it does not exist, 124 when it was ended by its time limit."""

    rc: int
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.rc == 0

    @property
    def said(self) -> str:
        """Its last words: the last line of stderr, else of stdout, else its exit code."""
        for text in (self.err, self.out):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1]
        return f"exit code {self.rc}"


def ask(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 30.0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    tick: Tick | None = None,
) -> Done:
    """Run a program for its answer; after `timeout_s` it and what it started are killed.

    Meanwhile `tick(elapsed seconds, what is waited for)` is called every second.
    A program stuck in the kernel (nvidia-smi on a lost GPU) takes no signal: it is left behind after 2 s.
    """
    try:
        child = _start(argv, env, cwd, own_group=True)
    except OSError as error:  # not there, or not executable
        return Done(NOT_FOUND, "", f"{argv[0]}: {error.strerror or error}")
    name, began = Path(argv[0]).name, time.monotonic()
    while (elapsed := time.monotonic() - began) < timeout_s:
        try:
            out, err = child.communicate(timeout=min(1.0, timeout_s - elapsed))
            return Done(child.returncode, out, err)
        except subprocess.TimeoutExpired:
            if tick is not None:
                tick(time.monotonic() - began, f"{name} has not answered yet")
    kill_group(child.pid)
    try:
        child.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    return Done(TIMED_OUT, "", f"{name} gave no answer in {timeout_s:g} s")


def _start(
    argv: Sequence[str | Path], env: Mapping[str, str] | None, cwd: Path | None, *, own_group: bool
) -> subprocess.Popen[str]:
    """A program whose output is read here. In a group of its own it can be killed with all that it started; in ours
    it gets Ctrl-C with us."""
    return subprocess.Popen(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(env) if env is not None else None,
        cwd=cwd,
        start_new_session=own_group,
    )


def kill_group(pid: int) -> None:
    """SIGKILL for a process group that we started; gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def follow(
    argv: Sequence[str | Path],
    tick: Tick,
    *,
    pick: Callable[[str], str] = str.strip,
    every_s: float = 0.5,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Done:
    """Run a program to its end; every `every_s`, `tick(elapsed seconds, what it is at)` is called.

    What it is at: its last line of output for which `pick` gives a text.
    """
    began = time.monotonic()
    out: list[str] = []
    err: list[str] = []

    def read(pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            lines.append(line)

    try:
        child = _start(argv, env, cwd, own_group=False)
    except OSError as error:
        return Done(NOT_FOUND, "", f"{argv[0]}: {error.strerror or error}")
    assert child.stdout is not None
    assert child.stderr is not None
    readers = [
        Thread(target=read, args=pair, daemon=True) for pair in ((child.stdout, out), (child.stderr, err))
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            try:
                child.wait(timeout=every_s)
                break
            except subprocess.TimeoutExpired:
                at = next((text for line in reversed(out[-100:]) if (text := pick(line))), "")
                tick(time.monotonic() - began, at)
    except BaseException:  # Ctrl-C: the child got it too, and must not outlive us
        child.terminate()
        child.wait()
        raise
    for reader in readers:
        reader.join(timeout=2)
    return Done(child.returncode, "".join(out), "".join(err))


def watch(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> int:
    """Run a program in the foreground, its output shown as it comes. Ctrl-C reaches it and rises here."""
    words = [str(word) for word in argv]
    try:
        return subprocess.run(
            words, env=dict(env) if env is not None else None, cwd=cwd, check=False
        ).returncode
    except OSError:
        return NOT_FOUND


def foreground(argv: Sequence[str | Path], *, env: Mapping[str, str]) -> int:
    """Run a program in the foreground to its end, which it may choose itself: Ctrl-C is its matter and not ours.

    The terminal sends Ctrl-C to both; SIGTERM and SIGHUP, which reach only this process, are passed on. Returns its
    exit code, 128 + N where signal N ended it, 127 when it is absent.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    child: subprocess.Popen[bytes] | None = None

    def hear(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT and child is not None:
            child.send_signal(number)

    # A handler of ours, not SIG_IGN: the child would inherit that.
    wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, hear) for number in wanted}
    try:
        child = subprocess.Popen([str(word) for word in argv], env=dict(env))
        rc = child.wait()
    except OSError:
        return NOT_FOUND
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return rc if rc >= 0 else 128 - rc


def become(argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path | None = None) -> int:
    """Replace this process by a program: terminal and exit code become its own. Returns 127 when absent."""
    if cwd is not None:
        os.chdir(cwd)
    try:
        os.execvpe(str(argv[0]), [str(word) for word in argv], dict(env))
    except OSError:
        return NOT_FOUND
