"""What a person sees: short labelled lines on stdout, problems on stderr. No decision is made here."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LABEL_WIDTH = 10
DETAIL_COLUMN = 18
USAGE = 2  # the user's input or the host must change first
FAILED = 1  # a step failed


class Problem(Exception):  # noqa: N818 - said to people, not to programmers
    """Something the user has to know, said in one line, with what to do in further ones.

    `code` is the exit code: 2 when input or host must change first, 1 when a step failed.
    """

    def __init__(self, what: str, *do: str, code: int = USAGE) -> None:
        super().__init__(what)
        self.what = what
        self.do = do
        self.code = code


def width() -> int:
    """Columns to write in: the terminal's, at most 110, 80 when there is none."""
    return max(40, min(110, shutil.get_terminal_size((80, 24)).columns))


def fill(label: str, text: str, column: int = LABEL_WIDTH) -> str:
    """`text` from `column` on, beside its label, wrapped; a word too long for a line is never broken.

    >>> print(fill("mode", "cpu: no GPU here"))
    mode      cpu: no GPU here
    """
    lines = textwrap.wrap(text, width() - column, break_long_words=False, break_on_hyphens=False) or [""]
    labels = [label, *[""] * len(lines)]
    return "\n".join(f"{tag:<{column}}{line}".rstrip() for tag, line in zip(labels, lines, strict=False))


def say(label: str, text: str) -> None:
    """One fact or step on stdout."""
    print(fill(label, text), flush=True)


def detail(label: str, text: str) -> None:
    """Something that belongs to the line above, with a label of its own. Further lines of `text` are to be pasted."""
    first, *more = text.splitlines() or [""]
    print(fill(f"{'':{LABEL_WIDTH}}{label}", first, DETAIL_COLUMN), flush=True)
    for line in more:
        print(f"{'':{DETAIL_COLUMN}}{line}", flush=True)


def paste(line: str) -> None:
    """A line for the user to copy: never wrapped."""
    print(" " * LABEL_WIDTH + line, flush=True)


def warn(text: str) -> None:
    """Something that is not as it should be, but does not stop the work."""
    say("warning", text)


def problem(command: str, trouble: Problem) -> None:
    """A `Problem` on stderr: what, then what to do, each line whole."""
    sys.stdout.flush()
    print(f"{command}: {trouble.what}", file=sys.stderr)
    for line in trouble.do:
        print(f"  {line}", file=sys.stderr)
    sys.stderr.flush()


def gigabytes(size_bytes: float) -> str:
    """A size in GB (10^9 bytes), the unit of disks.

    >>> gigabytes(15_400_000_000)
    '15.4 GB'
    """
    return f"{size_bytes / 1e9:.1f} GB"


def listing(words: Iterable[str], last: str = "and") -> str:
    """Words as a person would list them.

    >>> listing(["a", "b", "c"]), listing(["a"]), listing(["gpu", "cpu"], last="or")
    ('a, b and c', 'a', 'gpu or cpu')
    """
    *head, tail = [*words] or [""]
    return f"{', '.join(head)} {last} {tail}" if head else tail


class Ticker:
    """A sign of life: one line rewritten on a terminal, repeated every `every_s` elsewhere."""

    def __init__(self, label: str, every_s: float = 5.0) -> None:
        self.label = label
        self.every_s = every_s
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.last_s = 0.0

    def tick(self, elapsed_s: float, text: str) -> None:
        """Show `text` beside the elapsed seconds; `text` is cut to one line."""
        room = width() - LABEL_WIDTH - 8
        line = f"{self.label:<{LABEL_WIDTH}}{elapsed_s:4.0f} s  {' '.join(text.split())[:room]}"
        if self.live:
            print(f"\r{line}\x1b[K", end="", flush=True)
        elif elapsed_s - self.last_s >= self.every_s:
            print(line.rstrip(), flush=True)
            self.last_s = elapsed_s

    def done(self) -> None:
        """Remove the live line."""
        if self.live:
            print("\r\x1b[K", end="", flush=True)


@contextmanager
def ticking(label: str) -> Iterator[Ticker]:
    """A `Ticker` that cleans up after itself."""
    ticker = Ticker(label)
    try:
        yield ticker
    finally:
        ticker.done()
