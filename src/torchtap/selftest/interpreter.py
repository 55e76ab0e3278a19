"""Which Python the test process is: the one that people's `python` is.

In the image the self-test itself runs with the image's own packages alone, so that it still answers when those of the
user are broken. What is tested is the user's: start has linked their environment into its run directory.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

BASE = "/opt/torchtap/venv"
RUN_DIRECTORIES = ("/run/torchtap", "/tmp/torchtap")  # noqa: S108 - checked for its owner


def users_python(prefix: str = sys.prefix, runs: Sequence[str] = RUN_DIRECTORIES) -> str:
    """Path of the interpreter; outside the image that of this process.

    >>> users_python(prefix="/home/me/.venv") == sys.executable
    True
    """
    if prefix != BASE:
        return sys.executable
    for run in map(Path, runs):
        try:
            found = run.lstat()
        except OSError:
            continue
        # Anyone can make a folder of that name in /tmp, so only one that is root's or our own counts.
        is_starts = stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())
        if is_starts and (run / "started.json").exists():
            return str(run / "env/bin/python") if (run / "env").is_symlink() else sys.executable
    return sys.executable
