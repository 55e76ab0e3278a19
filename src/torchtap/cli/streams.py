"""Standard output and standard error: made fit to write to, and let go of; and the one way to refuse."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import typer

from torchtap.selftest.words import printable

COULD_NOT_RUN = 2


class Judged(SystemExit):
    """The end of a command with a verdict: its exit code says how the host is, and not that it could not be told."""


def refuse(message: str, code: int = COULD_NOT_RUN) -> NoReturn:
    """One line for a user's mistake, no traceback."""
    typer.echo(printable(f"torchtap selftest: {message}"), err=True)
    raise typer.Exit(code)


def show(text: str) -> None:
    """Print in one piece. Raises `OSError` where standard output takes nothing; `main` knows what to say."""
    sys.stdout.write(text)
    sys.stdout.flush()


def prepare_streams() -> None:
    """Streams that can take what is written: a closed one takes nothing, a narrow encoding gets escapes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed, as by 2>&-; else the next file that is opened would become this stream
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # as long as the program
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Let what is still to be written vanish: a second failure at the interpreter's end would be shown."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
