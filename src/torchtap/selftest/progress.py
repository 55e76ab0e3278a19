"""What is said while a self-test runs: one changing line on a terminal, a line now and then in a log.

All of it goes to standard error. rich is imported only for a terminal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# A batch job's log: often enough to see that it lives, seldom enough to read. quick never runs that long.
LOG_EVERY_S = 30.0


@contextmanager
def showing(*, report: bool) -> Iterator[Callable[[str], None] | None]:
    """A function that shows what is being done; None where nobody wants to know.

    On a terminal the line is overwritten and erased at the end. Elsewhere (a batch job's log) a whole line is written
    when the last one, or the beginning, is `LOG_EVERY_S` ago. `report` is False where standard output gets something
    for programs (--json): then nothing is said in logs, and on a terminal only where the output itself goes elsewhere.
    """
    changing = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if not report and (not changing or sys.stdout.isatty()):
        yield None
        return
    if not changing:
        yield _Log()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    status = console.status("self-test")

    def show(what: str) -> None:
        line = Text(f"self-test: {what} ...", overflow="ellipsis", no_wrap=True)
        line.truncate(max(console.width - 2, 20), overflow="ellipsis")  # 2: the mark that turns, and a blank
        with suppress(OSError):
            status.update(line)

    # A terminal that goes away (a lost connection) must not take the report away.
    with suppress(OSError):
        status.start()
    try:
        yield show
    finally:
        with suppress(OSError):
            status.stop()


class _Log:
    """Writes a line when it is time for one."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        if now - self._last >= LOG_EVERY_S:
            self._last = now
            with suppress(OSError):
                sys.stderr.write(f"self-test: {what}\n")
                sys.stderr.flush()
