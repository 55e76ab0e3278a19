"""Commands that hang, crash, babble or cannot start."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.unit.processes import gone
from torchtap.selftest.process import Answer, ask, visible


def python(code: str, timeout_s: float = 20, **options) -> Answer:
    return ask([sys.executable, "-c", code], timeout_s=timeout_s, **options)


def test_output_errors_and_exit_status_come_back():
    """Both pipes, apart."""
    answer = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (answer.text, answer.errors, answer.rc, answer.timed_out) == ("out\n", "err\n", 7, False)


def test_a_hanging_command_is_killed_with_its_children_and_keeps_what_it_said():
    """The whole process group is ended, within the time-out and a little."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    answer = python(code, timeout_s=2)
    assert time.monotonic() - began < 5
    assert (answer.timed_out, answer.rc, answer.stuck_pid) == (True, None, None)
    assert gone(int(answer.text))


def test_a_command_that_ignores_sigterm_is_killed_too():
    """SIGKILL at once: an orderly end is of no use to us."""
    answer = python("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", 1)
    assert (answer.timed_out, answer.stuck_pid) == (True, None)


def test_a_process_that_survives_sigkill_is_reported_and_left(monkeypatch: pytest.MonkeyPatch):
    """As one that waits in the kernel: its pid is named, and the answer comes within two seconds more."""
    killed = []
    monkeypatch.setattr("torchtap.selftest.process.os.killpg", lambda pid, _: killed.append(pid))
    began = time.monotonic()
    answer = python("import time; time.sleep(600)", timeout_s=0.5)
    monkeypatch.undo()
    assert answer.stuck_pid == killed[0]
    assert time.monotonic() - began < 4
    os.kill(killed[0], 9)
    os.waitpid(killed[0], 0)


def test_closed_pipes_do_not_hide_a_hang():
    """It says no more and does not end."""
    answer = python("import os, time; os.close(1); os.close(2); time.sleep(600)", timeout_s=1)
    assert answer.timed_out


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for():
    """The command itself has ended."""
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); time.sleep(5); os._exit(0)\n"
        "print('done', flush=True)"
    )
    began = time.monotonic()
    answer = python(code)
    assert (answer.text, answer.rc) == ("done\n", 0)
    assert time.monotonic() - began < 4


def test_a_babbling_command_is_ended_at_the_limit():
    """An endless answer is none."""
    answer = ask(["yes"], timeout_s=20, max_bytes=1000)
    assert answer.too_long
    assert not answer.timed_out
    assert len(answer.text) == 1000
    assert answer.seconds < 10


def test_a_crash_is_a_negative_exit_status():
    """The signal that ended it."""
    assert python("import os; os.abort()").rc == -6


@pytest.mark.parametrize(
    ("name", "mode", "content", "why"),
    [
        ("missing", None, b"", "No such file or directory"),
        ("not-executable", 0o644, b"#!/bin/sh\n", "Permission denied"),
        ("garbage", 0o755, b"\x00\x01\x02garbage", "Exec format error"),
    ],
)
def test_a_command_that_cannot_start_says_why(
    tmp_path: Path, name: str, mode: int | None, content: bytes, why: str
):
    """No exception."""
    file = tmp_path / name
    if mode is not None:
        file.write_bytes(content)
        file.chmod(mode)
    assert ask([str(file)], timeout_s=5).not_started == why


def test_lines_are_told_as_they_come():
    """Each whole line once, also those that come together."""
    told: list[str] = []
    python("print('a\\nb'); print('half', end='')", on_line=told.append)
    assert told == ["a", "b"]


def test_an_interrupt_leaves_nothing_running():
    """Ctrl-C while waiting ends the command as well."""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        python("import os, time; print(os.getpid(), flush=True); time.sleep(600)", on_line=interrupt)
    assert gone(pids[0])


def test_an_answer_that_is_not_wanted_any_more_is_ended():
    """What was said so far stays, and the command does not."""
    said: list[str] = []
    began = time.monotonic()
    answer = python(
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
        on_line=said.append,
        stop=lambda: bool(said),
    )
    assert (answer.stopped, answer.timed_out, answer.rc) == (True, False, None)
    assert gone(int(answer.text))
    assert time.monotonic() - began < 10
    assert python("raise SystemExit(7)", stop=lambda: True).stopped  # not even begun


def test_the_time_may_be_up_earlier_and_is_asked_again():
    """A command that is given time by what it says, until it is silent."""
    last = [time.monotonic() + 20]

    def heard(_: str) -> None:
        last[0] = time.monotonic() + 0.5

    code = "import time\nfor n in range(5): print(n, flush=True); time.sleep(0.2)\ntime.sleep(600)"
    answer = python(code, on_line=heard, until=lambda: last[0])
    assert (answer.timed_out, answer.text) == (True, "0\n1\n2\n3\n4\n")
    assert answer.seconds < 10


def test_lines_that_need_not_be_kept_fill_no_memory():
    """Hours of progress do not count as babbling."""
    code = "for n in range(30_000): print('progress', n)\nprint('end')"
    answer = python(code, on_line=lambda line: line.startswith("progress"), max_bytes=100_000)
    assert (answer.text, answer.too_long) == ("end\n", False)


def test_control_characters_are_made_visible():
    """Nothing in a report can move a cursor, change a colour or hide a line."""
    assert (
        visible(b"a\x1b[31mb\x00\x07\rc\xff\xe2\x80\xae\td\r\n")
        == "a\\x1b[31mb\\x00\\x07\\rc\\xff\\u202e\td\n"
    )
