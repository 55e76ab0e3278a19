"""The command `torchtap`. Only this module imports typer; torch is never imported here.

Exit codes of `torchtap selftest`: 0 pass or warn, 1 fail or unknown, 2 could not run (a wrong option included).
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

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
  2  could not run: a wrong option, an unwritable --output or standard output
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
    level: Annotated[
        str, typer.Option(help="quick (seconds), full (minutes) or burn (as long as asked).", metavar="LEVEL")
    ] = "quick",
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
            report = run(
                device, level=level, only=only or (), skip=skip or (), timeout_s=timeout, on_step=on_step
            )
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

    console = Console(highlight=False)
    # In one piece, and not by rich: it would end the program itself where the reader has gone away.
    with console.capture() as drawn:
        draw(report, console, verbose=verbose)
    sys.stdout.write(drawn.get())
    sys.stdout.flush()


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
    try:
        there = _status(path)
        if there is not None and stat.S_ISDIR(there.st_mode):
            _refuse(f"--output {path} is a folder; give a file in it, as in {path / 'selftest.json'}")
        if there is not None and stat.S_ISSOCK(there.st_mode):
            _refuse(f"--output {path} is a socket; give a file")
        if there is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if there is None or stat.S_ISREG(there.st_mode):
            with tempfile.TemporaryFile(dir=_behind_links(path).parent):
                pass
    except OSError as error:
        _refuse(f"--output {path} cannot be written: {error.strerror}")


def _status(path: Path) -> os.stat_result | None:
    """What stands at the path, links followed; None where nothing does."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _behind_links(path: Path) -> Path:
    """The file that is meant: replacing a link would leave the file it points to as it was."""
    return Path(os.path.realpath(path))


def _write(path: Path, report: Report) -> None:
    """All of it or nothing where it is a file: a reader never sees half a report.

    A device, a pipe or an open stream is no file that may be replaced: it is written to.
    """
    text = report.to_json()
    try:
        there = _status(path)
        if there is not None and (stream := _stream_at(there)) is not None:
            stream.write(text)
            stream.flush()
        elif there is not None and not stat.S_ISREG(there.st_mode):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8") as file:
                file.write(text)
        else:
            _replace(_behind_links(path), text, there)
    except OSError as error:
        _refuse(f"--output {path} cannot be written: {error.strerror}")


def _stream_at(there: os.stat_result) -> TextIO | None:
    """The stream of this command that goes to the same place, as --output /dev/stdout does."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(OSError):
            if stream is not None and os.path.samestat(there, os.fstat(number)):
                return stream
    return None


def _replace(path: Path, text: str, there: os.stat_result | None) -> None:
    """Put a whole new file in the place of `path`, as readable as the old one. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".torchtap-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if there is not None:
            with suppress(OSError):  # only root may give a file to its old owner
                os.chown(temporary, there.st_uid, there.st_gid)
        # A new one is for other users of the machine too: the login message, a fleet's collector.
        Path(temporary).chmod(0o644 if there is None else stat.S_IMODE(there.st_mode))
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _refuse(message: str, code: int = COULD_NOT_RUN) -> NoReturn:
    """One line for a user's mistake, no traceback."""
    typer.echo(f"torchtap selftest: {message}", err=True)
    raise typer.Exit(code)


def _prepare_streams() -> None:
    """Streams that can take what is written: a closed one takes nothing, a narrow encoding gets escapes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed, as by 2>&-; else the next file that is opened would become this stream
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # as long as the program
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Let what is still to be written vanish: a second failure at the interpreter's end would be shown."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def main() -> None:
    """The entry point of the command."""
    _prepare_streams()
    stdout = sys.stdout
    try:
        app()
    except OSError as error:
        if error.filename is not None:  # not about a stream: an error of this program
            raise
        _drop_output()
        if error.errno != errno.EPIPE:  # that is a reader who went away, as in `| head`: nothing to say
            with suppress(OSError):
                typer.echo(f"torchtap: standard output cannot be written: {error.strerror}", err=True)
        sys.exit(COULD_NOT_RUN)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        _drop_output()  # typer found a broken pipe and put a mute stream there
        sys.exit(COULD_NOT_RUN)


if __name__ == "__main__":
    main()
