"""What is said while it runs: on a terminal, in a log, and beside JSON."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from torchtap.selftest import progress

SAYS = (
    "from torchtap.selftest import progress\n"
    "progress.LOG_EVERY_S = {every}\n"
    "with progress.showing(report={report}) as show:\n"
    "    for what in ('one', 'two ' + 'x' * 200):\n"
    "        show(what) if show else None\n"
)


def said(*, every: float = 0.0, report: bool = True, terminal: bool = False, **env: str) -> str:
    """What standard error gets. Standard output is never a terminal here."""
    master, slave = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-c", SAYS.format(every=every, report=report)]
    subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **env},
        check=True,
        timeout=60,
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # the terminal is gone
        pass
    os.close(master)
    return shown.decode()


def test_a_log_gets_a_line_when_it_is_time_and_not_before():
    """Whole lines, no colour, nothing overwritten."""
    assert said(every=0.0) == f"self-test: one\nself-test: two {'x' * 200}\n"
    assert said(every=30.0) == ""


def test_a_terminal_gets_one_line_that_is_wiped_away():
    """Cut to its width, so that it never becomes two; a dumb one is a log."""
    shown = said(terminal=True)
    assert "self-test: two xxx" in shown
    assert "x" * 81 not in shown
    assert shown.endswith("\x1b[2K")
    assert said(terminal=True, TERM="dumb").startswith("self-test: one\r\n")


@pytest.mark.parametrize(("terminal", "shows"), [(False, False), (True, True)])
def test_beside_json_only_a_terminal_is_told(terminal: bool, shows: bool):
    """And only where the JSON does not go to it too."""
    assert bool(said(report=False, terminal=terminal)) is shows


def test_quick_says_nothing_in_a_log():
    """It ends before the first line is due."""
    assert progress.LOG_EVERY_S > 15
