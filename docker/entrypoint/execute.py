"""Become another program."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence


def execute(program: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become `program` (a path, or a name on PATH of `environment`), with the signals as they are by default.

    Python ignores SIGPIPE and SIGXFSZ, and a new program would inherit that: the `yes` of `yes | head` would complain
    instead of ending. Raises OSError when the program cannot be run.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(program, list(words), environment)
