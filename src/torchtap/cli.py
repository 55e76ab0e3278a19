"""The command `torchtap`. Only this module imports typer; torch is never imported here.

Exit codes of `torchtap selftest`: 0 pass or warn, 1 fail or unknown, 2 could not run (a wrong option included).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import torchtap
from torchtap.selftest import Report, SettingError, run

COULD_NOT_RUN = 2
INTERRUPTED = 130

SELFTEST_HELP = """\
Test whether this machine's GPU works for PyTorch, and say what to do if not.

Takes a few seconds and changes nothing. On a machine that is meant to have no GPU: --device cpu.

\b
Examples:
  torchtap selftest                            a report for people
  torchtap selftest --json                     the same for programs
  torchtap selftest --device cpu               no GPU here, by design
  torchtap selftest --only torch.cudnn         one check, and what it needs
  torchtap selftest --output report.json       also write the JSON to a file

\b
Exit codes:
  0  pass or warn
  1  fail or unknown
  2  could not run: a wrong option, an unwritable --output
"""

app = typer.Typer(
    name="torchtap",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchtap {torchtap.__version__}")
        raise typer.Exit


@app.callback()
def torchtap_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Torchtap: prove that the GPU works, and see what your network is doing."""


@app.command(help=SELFTEST_HELP)
def selftest(
    json: Annotated[bool, typer.Option("--json", help="Print JSON (schema 1) instead of the table.")] = False,
    device: Annotated[
        str,
        typer.Option(help="auto, gpu or cpu. auto: what TORCHTAP_DEVICE says, else gpu.", metavar="DEVICE"),
    ] = "auto",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run this check and those it needs. May be given more than once.", metavar="ID"),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Leave this check out. May be given more than once.", metavar="ID"),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds for each nvidia-smi, and for the test process. Default: 20 and 60.",
            metavar="SECONDS",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the JSON to this file as well, all of it or nothing.", metavar="FILE"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every check.")] = False,
) -> None:
    """Parse, run, show; the exit code is the verdict's."""
    if output is not None:
        _check_writable(output)
    try:
        with _progress(wanted=not json) as on_step:
            report = run(device, only=only or (), skip=skip or (), timeout_s=timeout, on_step=on_step)
    except SettingError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        _refuse("interrupted; nothing was written", INTERRUPTED)
    if output is not None:
        _write(output, report)
    if json:
        typer.echo(report.to_json(), nl=False)
    else:
        _show(report, verbose=verbose)
    raise typer.Exit(report.exit_code)


def _show(report: Report, *, verbose: bool) -> None:
    from rich.console import Console

    from torchtap.selftest.report import draw

    draw(report, Console(highlight=False), verbose=verbose)


@contextmanager
def _progress(*, wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """What is being done, on a terminal only: logs and pipes get the report alone."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("self-test") as status:
        yield lambda what: status.update(f"self-test: {what} ...")


def _check_writable(path: Path) -> None:
    """Refuse a path that cannot be written before the tests run, not after."""
    if path.is_dir():
        _refuse(f"--output {path} is a folder; give a file in it, as in {path / 'selftest.json'}")
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        _refuse(f"--output {path} cannot be written: {error.strerror}")


def _write(path: Path, report: Report) -> None:
    """All of it or nothing: a reader never sees half a report."""
    handle, temporary = -1, ""
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.absolute().parent, prefix=f".{path.name}.", suffix=".part"
        )
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report.to_json())
        # Other users of the machine read it: the login message, a fleet's collector.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(temporary).unlink()
        _refuse(f"--output {path} cannot be written: {error.strerror}")


def _refuse(message: str, code: int = COULD_NOT_RUN) -> NoReturn:
    """One line for a user's mistake, no traceback."""
    typer.echo(f"torchtap selftest: {message}", err=True)
    raise typer.Exit(code)


def main() -> None:
    """The entry point of the command."""
    try:
        app()
    except BrokenPipeError:  # the reader went away, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(COULD_NOT_RUN)


if __name__ == "__main__":
    main()
