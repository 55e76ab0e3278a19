"""The command `torchtap selftest`: parse, run, show.

Exit codes: 0 pass or warn, 1 fail or unknown, 2 could not run (a wrong option included), 130 and 143 interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtap.cli.files import UnwritableError
from torchtap.cli.outputs import choose_outputs
from torchtap.cli.streams import refuse, show
from torchtap.selftest import Report, SettingError, run
from torchtap.selftest.interrupt import interruptible
from torchtap.selftest.progress import showing

SELFTEST_HELP = """\
Test whether this machine's GPU works for PyTorch, and say what to do if not.

Takes a few seconds and changes nothing. On a machine that is meant to have no GPU: --device cpu.

\b
Examples:
  torchtap selftest                            a report for people
  torchtap selftest --json                     the same for programs
  torchtap selftest --device cpu               no GPU here, by design
  torchtap selftest --only torch.cudnn         one check, and what it needs
  torchtap selftest --level burn --minutes 60  load it for an hour
  torchtap selftest --output report.json       also write the JSON to a file
  torchtap selftest --report selftest-report   every form, into this folder

\b
Exit codes:
  0  pass or warn
  1  fail or unknown
  2  could not run: a wrong option, or a path that cannot be written
  130, 143  interrupted (Ctrl-C, SIGTERM); what was found so far is reported
"""


def run_selftest(
    json: Annotated[bool, typer.Option("--json", help="Print JSON (schema 1) instead of the table.")] = False,
    device: Annotated[
        str,
        typer.Option(help="auto, gpu or cpu. auto: what TORCHTAP_DEVICE says, else gpu.", metavar="DEVICE"),
    ] = "auto",
    level: Annotated[
        str, typer.Option(help="quick (seconds), full (minutes) or burn (as long as asked).", metavar="LEVEL")
    ] = "quick",
    minutes: Annotated[
        float | None,
        typer.Option(help="How long --level burn loads the machine. Default: 10.", metavar="MINUTES"),
    ] = None,
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
        typer.Option(help="Write the JSON to this file as well; - is standard output.", metavar="FILE"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write every form into this folder: report.json, report.txt.", metavar="FOLDER"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every check.")] = False,
) -> None:
    """Parse, run, show; the exit code is the verdict's."""
    try:
        outputs = choose_outputs({"--json": Report.to_json} if json else {}, {"--output": output}, report)
        with interruptible() as interrupt, showing(report=outputs.stdout is None) as on_step:
            done = run(
                device,
                level=level,
                minutes=minutes,
                only=only or (),
                skip=skip or (),
                timeout_s=timeout,
                on_step=on_step,
                stop=interrupt,
            )
    except (SettingError, UnwritableError) as error:
        refuse(str(error))
    unwritten = outputs.write(done)
    show(_table(done, verbose=verbose) if outputs.stdout is None else outputs.stdout(done))
    if unwritten:
        refuse("; ".join(unwritten))
    raise typer.Exit(interrupt.exit_code or done.exit_code)


def _table(report: Report, *, verbose: bool) -> str:
    """For people, at the terminal's width, in colour where it has any.

    As text, and not printed by rich: it would end the program itself where the reader has gone away.
    """
    from rich.console import Console

    from torchtap.selftest.report import draw

    console = Console(highlight=False)
    with console.capture() as drawn:
        draw(report, console, verbose=verbose)
    return drawn.get()
