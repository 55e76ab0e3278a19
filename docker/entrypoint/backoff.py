"""A service that ends is started again after 1, 2, 4 ... 60 s; one that has run for a minute begins at 1 s again.

s6 calls `ended` each time (the service's `finish` script). What it writes into the service's folder is read by the
service's `run` script, which waits before it starts anything, so that a stop can end the wait at once; and by health.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from entrypoint import log, paths

FIRST_S, LONGEST_S = 1, 60
LONG_ENOUGH_S = 60.0  # that a service ran so long says that it can start
# In the folder of a service, which is root's (the user's own with --user).
BEGAN, WAIT, ENDED = "began", "wait", "ended.json"
NOT_STARTED = 256  # s6's exit code of what a signal ended
# Exit codes that a service of ours gives a meaning.
REASONS = {
    ("jupyter", 77): "its token cannot be read; the error above says why",
    ("jupyter", 78): "JupyterLab would be open to anyone; the error above says what to do",
}


def next_wait(before: int, ran_s: float) -> int:
    """Seconds to wait, by the last wait (0: none yet) and how long the service ran.

    >>> [next_wait(0, 1), next_wait(1, 1), next_wait(32, 1), next_wait(60, 1), next_wait(60, 61)]
    [1, 2, 60, 60, 1]
    """
    if before == 0 or ran_s >= LONG_ENOUGH_S:
        return FIRST_S
    return min(2 * before, LONGEST_S)


def how(name: str, code: int, number: int) -> str:
    """How a service ended, in words.

    >>> how("sshd", 256, 9), how("sshd", 255, 0)
    ('signal 9, SIGKILL', 'exit code 255')
    """
    if code >= NOT_STARTED:
        with contextlib.suppress(ValueError):
            return f"signal {number}, {signal.Signals(number).name}"
        return f"signal {number}"
    reason = REASONS.get((name, code))
    return f"exit code {code}: {reason}" if reason else f"exit code {code}"


def last_end(run: Path | None, name: str) -> dict[str, Any] | None:
    """How the service ended the last time: how, times (in a row), starts_again (time). None: it never did."""
    if run is None:
        return None
    try:
        found = json.loads((run / paths.SERVICES / name / ENDED).read_text())
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def runs_for_s(run: Path | None, name: str) -> float:
    """How long the service has been running; 0 while it does not."""
    if run is None:
        return 0.0
    try:
        return max(time.time() - (run / paths.SERVICES / name / BEGAN).stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def ended(name: str, code: int, number: int, folder: Path) -> None:
    """Note that a service has ended, and say when it starts again."""
    ran_s = 0.0
    with contextlib.suppress(OSError):
        ran_s = max(time.time() - (folder / BEGAN).stat().st_mtime, 0.0)
        (folder / BEGAN).unlink()
    before = 0
    with contextlib.suppress(OSError, ValueError):
        before = int((folder / WAIT).read_text())
    wait = next_wait(before, ran_s)
    again = (last_end(folder.parents[1], name) or {}).get("times", 0) if wait > FIRST_S else 0
    said = how(name, code, number)
    record = {"how": said, "times": again + 1, "starts_again": time.time() + wait}
    paths.write(folder / ENDED, json.dumps(record) + "\n")
    paths.write(folder / WAIT, f"{wait}\n")
    # An end of its own accord is no fault: JupyterLab's menu has a "Shut Down".
    say = log.info if code == 0 else log.warning
    say(name, f"ended ({said}) after {ran_s:.0f} s; starts again in {wait} s")


def main(words: list[str]) -> int:
    """s6 gives exit code and signal; the folder of the service is where this runs."""
    name, code, number = words
    ended(name, int(code), int(number), Path(os.getcwd()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
