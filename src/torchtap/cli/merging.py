"""`torchtap selftest --merge FILE...`: many reports, one table."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from torchtap.cli.files import UnwritableError, check_writable, path_of, write
from torchtap.cli.outputs import STDOUT
from torchtap.cli.streams import Judged, refuse, show
from torchtap.selftest.fleet.comparing import Merged, merge
from torchtap.selftest.fleet.reading import Bad, find_files, is_merged, read
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


def run_merge(names: Sequence[str], *, json: bool, output: str | None, verbose: bool) -> NoReturn:
    """Read, compare, show, write; ends the command with the exit code."""
    if not names:
        refuse("--merge needs reports: files, folders of them, or - for names on standard input, one a line")
    try:
        files = [path for name in names if (path := path_of("--merge", name)) is not None]
        _merge(files, json=json, output=path_of("--output", output), verbose=verbose)
    except UnwritableError as error:
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("interrupted; nothing was merged", 130)


def _merge(files: Sequence[Path], *, json: bool, output: Path | None, verbose: bool) -> NoReturn:
    """Raises `UnwritableError`."""
    if json and output == STDOUT:
        output = None
    to_stdout = json or output == STDOUT
    if output is not None and output != STDOUT:
        check_writable("--output", output, "merged.json")
    with showing(report=not to_stdout) as on_step:
        found = list(find_files(files, _names))
        if output is not None and output != STDOUT:
            found = _without(output, found)

        def say(number: int) -> None:
            if on_step is not None and number % EVERY == 0:
                on_step(f"reading {number:,} of {len(found):,} reports")

        merged = merge(*read(found, say))
    if output is not None and output != STDOUT:
        write("--output", output, _json(merged))
    show(_json(merged) if to_stdout else _table(merged, verbose=verbose))
    if not merged.reports:
        refuse("no report among what was given" if found else "nothing was given to merge")
    raise Judged(merged.exit_code)


def _without(output: Path, found: Sequence[Path | Bad]) -> list[Path | Bad]:
    """What was found, but for the result of an earlier merge that is written anew. Raises `UnwritableError` where that
    is a report itself.
    """
    kept: list[Path | Bad] = []
    for each in found:
        if isinstance(each, Bad) or not _is_same(each, output):
            kept.append(each)
        elif not is_merged(each):
            raise UnwritableError(f"--output {output} is one of the files to merge; give another name")
    return kept


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _names() -> Iterator[str]:
    """Names on standard input: one a line, or ended by NUL, as of find -print0."""
    try:
        with open(0, "rb", closefd=False) as file:
            given = file.read()
    except OSError as error:
        raise UnwritableError(f"standard input cannot be read: {error.strerror}") from None
    end = b"\0" if b"\0" in given else b"\n"
    return (os.fsdecode(name) for name in given.split(end) if name.strip())


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
