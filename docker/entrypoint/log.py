"""Start-up's log lines: level, subject, what happened; the remedy on lines of its own, indented.

>>> import sys
>>> warning("ssh", "not started, no public key", "For SSH add: -e SSH_PUBLIC_KEY=...", file=sys.stdout)
WARNING ssh: not started, no public key
        For SSH add: -e SSH_PUBLIC_KEY=...
"""

from __future__ import annotations

import sys
from typing import TextIO


def info(subject: str, text: str, *more: str, file: TextIO | None = None) -> None:
    _write("INFO", subject, text, more, file)


def warning(subject: str, text: str, *more: str, file: TextIO | None = None) -> None:
    _write("WARNING", subject, text, more, file)


def error(subject: str, text: str, *more: str, file: TextIO | None = None) -> None:
    _write("ERROR", subject, text, more, file)


def _write(level: str, subject: str, text: str, more: tuple[str, ...], file: TextIO | None) -> None:
    lines = [f"{level:<7} {subject}: {text}", *(f"        {line}" for line in more)]
    print("\n".join(lines), file=file or sys.stderr, flush=True)
