"""`torchtap selftest --merge FILE...`: many reports, one table."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import typer

from torchtap.cli.files import UnwritableError, check_writable, write
from torchtap.cli.outputs import STDOUT
from torchtap.cli.streams import COULD_NOT_RUN, refuse, show
from torchtap.selftest.fleet.comparing import Merged, merge
from torchtap.selftest.fleet.reading import find_files, read
from torchtap.selftest.progress import showing

# Options of the self-test that mean something here too, by the names of their parameters.
KNOWN = frozenset({"merge", "files", "json", "output", "verbose"})
EVERY = 20  # files, between two words about the progress


def refuse_others(given: Collection[str]) -> None:
    """`given`: options on the command line, by their names. Those that ask for tests are refused."""
    if others := [f"--{name.replace('_', '-')}" for name in given if name not in KNOWN]:
        refuse(
            f"{others[0]} is for testing this machine; --merge only reads reports, and takes --json and --output"
        )


def run_merge(files: Sequence[Path], *, json: bool, output: Path | None, verbose: bool) -> NoReturn:
    """Read, compare, show, write; ends the command with the exit code."""
    if not files:
        refuse("--merge needs reports: files, folders of them, or - for names on standard input, one a line")
    if json and output == STDOUT:
        output = None
    to_stdout = json or output == STDOUT
    try:
        if output is not None and output != STDOUT:
            check_writable("--output", output, "merged.json")
        with showing(report=not to_stdout) as on_step:
            found = list(find_files(files, _names))

            def say(number: int) -> None:
                if on_step is not None and number % EVERY == 0:
                    on_step(f"reading {number:,} of {len(found):,} reports")

            merged = merge(*read(found, say))
        if output is not None and output != STDOUT:
            write("--output", output, _json(merged))
    except UnwritableError as error:
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("interrupted; nothing was merged", 130)
    show(_json(merged) if to_stdout else _table(merged, verbose=verbose))
    if not merged.reports:
        refuse(
            "no report among what was given" if merged.bad else "nothing was given to merge", COULD_NOT_RUN
        )
    raise typer.Exit(merged.exit_code)


def _names() -> Iterator[str]:
    return (name for line in sys.stdin if (name := line.rstrip("\n")))


def _json(merged: Merged) -> str:
    from json import dumps

    return dumps(merged.to_dict(), indent=2) + "\n"


def _table(merged: Merged, *, verbose: bool) -> str:
    from rich.console import Console

    from torchtap.selftest.fleet.drawing import draw_merged

    console = Console(highlight=False)
    with console.capture() as drawn:
        draw_merged(merged, console, verbose=verbose)
    return drawn.get()
