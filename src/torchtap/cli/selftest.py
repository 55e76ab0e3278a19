"""The command `torchtap selftest`: parse, run, show.

Exit codes: 0 pass or warn, 1 fail or unknown, 2 could not run (a wrong option included), 129, 130 and 143 interrupted.
"""

from __future__ import annotations

import signal
import textwrap
from typing import Annotated

import typer

from torchtap.cli.files import UnwritableError, path_of
from torchtap.cli.outputs import WORDS, choose_outputs
from torchtap.cli.streams import Judged, drop_output, refuse, show
from torchtap.selftest import Report, SettingError, run
from torchtap.selftest.interrupt import interruptible
from torchtap.selftest.oneline import nagios_code
from torchtap.selftest.progress import showing

SELFTEST_HELP = """\
Test whether this machine's GPU works for PyTorch, and say what to do if not.

Changes nothing; level quick takes a few seconds. On a machine that is meant to have no GPU: --device cpu.

\b
Examples:
  torchtap selftest                            a report for people
  torchtap selftest --json                     the same for programs
  torchtap selftest --device cpu               no GPU here, by design
  torchtap selftest --only torch.cudnn         one check, and what it needs
  torchtap selftest --expect-gpus 8            a GPU less is a failure
  torchtap selftest --level burn --minutes 60  load it for an hour
  torchtap selftest --one-line                 for a log, a prolog, a monitor
  torchtap selftest --output report.json       also write the JSON to a file
  torchtap selftest --report selftest-report   every form, into this folder
  torchtap selftest --merge reports/           the reports of many hosts

\b
Exit codes:
  0  pass or warn
  1  fail or unknown
  2  could not run: a wrong option, or a path that cannot be written
  129, 130, 143  interrupted (SIGHUP, Ctrl-C, SIGTERM); what was found so far
     is reported
With --nagios: 0 pass, 1 warn, 2 fail, 3 unknown or could not run
"""


def _print_checks(wanted: bool) -> None:
    if not wanted:
        return
    from torchtap.selftest.checks import CHECKS
    from torchtap.selftest.checks.expect import EXPECTATIONS

    for check in (*CHECKS, *EXPECTATIONS):
        title = textwrap.fill(check.title, 80, initial_indent=" " * 24, subsequent_indent=" " * 24)
        show(f"{check.id:16}{check.level.value:8}{title.strip()}\n")
    raise typer.Exit


def run_selftest(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", hidden=True),  # told at --merge
    ] = None,
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
        typer.Option(
            help="Run these checks (with commas, or repeated) and what they need.", metavar="ID,..."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Leave these checks out.", metavar="ID,..."),
    ] = None,
    expect_gpus: Annotated[
        str | None, typer.Option(help="Fail unless this many GPUs are here.", metavar="NUMBER")
    ] = None,
    expect_name: Annotated[
        str | None,
        typer.Option(help="Fail unless every GPU's name has these words, as in H200.", metavar="TEXT"),
    ] = None,
    expect_driver_min: Annotated[
        str | None, typer.Option(help="Fail if the driver is older.", metavar="VERSION")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds for each nvidia-smi and each quick step of the test process. Default: 20, and 30 or 60.",
            metavar="SECONDS",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="Write the JSON to this file as well; - is standard output.", metavar="FILE"),
    ] = None,
    junit: Annotated[
        str | None, typer.Option(help="Write JUnit XML, for a CI; - is standard output.", metavar="FILE")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            help="Write metrics for node_exporter's textfile collector; - as above.", metavar="FILE.prom"
        ),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            help="Write all of it into this folder: report.json, report.txt, junit.xml, metrics.prom.",
            metavar="FOLDER",
        ),
    ] = None,
    one_line: Annotated[
        bool, typer.Option("--one-line", help="Print one line: host, verdict, first cause, what to do.")
    ] = False,
    nagios: Annotated[
        bool, typer.Option("--nagios", help="Print one line and exit with 0 to 3, as a Nagios plugin.")
    ] = False,
    mask: Annotated[
        bool, typer.Option("--mask", help="Replace UUIDs, serials, host and user names by pseudonyms.")
    ] = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Test nothing: put the reports of many hosts into one table. FILE: a report, a folder of them, or - "
            "for names on standard input.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every check.")] = False,
    _list: Annotated[
        bool,
        typer.Option(
            "--list", callback=_print_checks, is_eager=True, help="List the checks: id, level, title."
        ),
    ] = False,
) -> None:
    """Parse, run, show; the exit code is the verdict's."""
    if merge:
        from torchtap.cli.merging import refuse_others, run_merge

        refuse_others([name for name in context.params if _given(context, name)])
        run_merge(files or (), json=json, output=output, verbose=verbose)
    if files:
        refuse(f"{files[0]}: files are for --merge; to write one, say --output {files[0]}")
    words = {"--json": json, "--one-line": one_line, "--nagios": nagios}
    try:
        outputs = choose_outputs(
            {name: WORDS[name] for name, given in words.items() if given},
            {
                option: path_of(option, given)
                for option, given in (("--output", output), ("--junit", junit), ("--prometheus", prometheus))
            },
            path_of("--report", report),
        )
        with interruptible() as interrupt, showing(report=outputs.stdout is None) as on_step:
            done = run(
                device,
                level=level,
                minutes=minutes,
                only=_ids("--only", only),
                skip=_ids("--skip", skip),
                expect={"gpus": expect_gpus, "name": expect_name, "driver": expect_driver_min},
                timeout_s=timeout,
                on_step=on_step,
                stop=interrupt,
            )
    except (SettingError, UnwritableError) as error:
        refuse(str(error))
    if mask:
        done = done.masked()
    unwritten = outputs.write(done)
    try:
        show(_table(done, verbose=verbose) if outputs.stdout is None else outputs.stdout(done))
    except OSError:
        if interrupt.signal != signal.SIGHUP:
            raise
        drop_output()  # the terminal went away, and that is why it ends
    if unwritten:
        refuse("; ".join(unwritten))
    raise Judged(interrupt.exit_code or (nagios_code(done) if nagios else done.exit_code))


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _ids(option: str, given: list[str] | None) -> list[str]:
    """Names of checks, separated by commas or given one by one. Raises `SettingError` where an option names none."""
    ids = [name.strip() for text in given or () for name in text.split(",") if name.strip()]
    if given and not ids:
        raise SettingError(f"{option} names no check; torchtap selftest --list shows them")
    return ids


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
