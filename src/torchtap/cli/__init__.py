"""The command `torchtap`. Only this package imports typer; torch is never imported here.

streams: what stands behind standard output and standard error. files: paths checked before, files written after.
selftest: the command `torchtap selftest`.
"""

from __future__ import annotations

import errno
import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer

import torchtap
from torchtap.cli.selftest import SELFTEST_HELP, run_selftest
from torchtap.cli.streams import COULD_NOT_RUN, Judged, drop_output, prepare_streams
from torchtap.selftest.oneline import NAGIOS_UNKNOWN

__all__ = ["app", "main"]

app = typer.Typer(
    name="torchtap",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="selftest", help=SELFTEST_HELP)(run_selftest)


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


def main() -> None:
    """The entry point of the command."""
    prepare_streams()
    stdout = sys.stdout
    # Nagios takes 2 for a host that fails, and 1 for one that warns.
    nagios = "--nagios" in sys.argv[1:]
    could_not_run = NAGIOS_UNKNOWN if nagios else COULD_NOT_RUN
    try:
        app()
    except OSError as error:
        if error.filename is not None:  # not about a stream: an error of this program
            raise
        drop_output()
        if error.errno != errno.EPIPE:  # that is a reader who went away, as in `| head`: nothing to say
            with suppress(OSError):
                typer.echo(f"torchtap: standard output cannot be written: {error.strerror}", err=True)
        sys.exit(could_not_run)
    except Judged:
        raise
    except SystemExit as end:
        if sys.stdout is not stdout:
            drop_output()  # typer found a broken pipe and put a mute stream there
        elif end.code != COULD_NOT_RUN:
            raise
        sys.exit(could_not_run)
    except Exception:
        if not nagios:
            raise
        traceback.print_exc()
        sys.exit(could_not_run)
