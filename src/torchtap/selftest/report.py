"""Draw a report for people: short when all is well, cause and remedy when not.

Handed results and draws them; decides nothing. `python -m torchtap.selftest.report` shows every kind of report from
recorded data.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from torchtap.selftest.lines import DEFAULT_WIDTH, STYLES, fit, line, print_lines
from torchtap.selftest.result import Report, Result, measured
from torchtap.selftest.status import COUNTED, Status
from torchtap.selftest.words import count, figure, printable, took

NEEDS_ATTENTION = (Status.FAIL, Status.UNKNOWN, Status.WARN)  # in this order
# What a machine is told by, in the line under the verdict: the id of a check that passed, and the words before it.
SUMMARY = {"driver.smi": "", "driver.version": "driver ", "torch.build": "", "torch.cudnn": ""}
ID_WIDTH = 15
MOST_QUANTITIES = 6  # of one check that are told apart
# Skips of one kind in one phrase; the rest by their own reason.
SKIPS = {
    "needs": "{n} that need{s} {need}: not tested",
    "by_design": "{n} of a GPU: by design (--device cpu or TORCHTAP_DEVICE=cpu)",
    "simulated": "{n} that only a real GPU can pass: simulated",
}


def draw(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Print the report at the console's width. `verbose`: every check on a line of its own as well."""
    fit(console)
    for status in NEEDS_ATTENTION:
        for result in report.results:
            if result.status is status and not _follows(result, report):
                print_lines(console, [*_attention(result), Text()])
    print_lines(console, _every(report.results) if verbose else _groups(report))
    print_lines(console, _verdict(report))


def to_text(report: Report, width: int = DEFAULT_WIDTH) -> str:
    """The report as plain text with every check, for a file: it begins with what it is of."""
    of = (
        report.identity.name,
        report.identity.started,
        f"level {report.level}",
        f"torchtap {report.torchtap}",
    )
    file = io.StringIO()
    file.write(printable(", ".join(word for word in of if word)) + "\n\n")
    draw(report, Console(file=file, width=width, highlight=False, no_color=True), verbose=True)
    return file.getvalue()


def _attention(result: Result) -> Iterator[Text]:
    """A check that is not well: what was seen, the cause, what to do, the line to paste."""
    yield line(result.status.value.upper(), STYLES[result.status], (result.id, "bold"), f"  {result.seen}")
    if result.cause:
        yield line("cause", "", f"{result.cause_id}: {result.cause}")
    if result.remedy:
        do, _, paste = result.remedy.partition("\n")
        yield line("do", "", do)
        if paste:
            yield line("", "", (paste, "cyan"))


def _follows(result: Result, report: Report) -> bool:
    """Whether this needs no words of its own: it was not reached, and why is shown, or known to who pressed Ctrl-C."""
    return result.cause_id == "interrupted" or (
        result.cause_id == "not_reached" and report.verdict is Status.FAIL
    )


def _groups(report: Report) -> Iterator[Text]:
    """The checks that need no attention: those that passed (where not all did), and how many were skipped and why."""
    for cause, why in (("interrupted", "interrupted"), ("not_reached", "the test process had ended")):
        lost = [each.id for each in report.results if each.cause_id == cause and _follows(each, report)]
        if lost:
            yield line("unknown", STYLES[Status.UNKNOWN], f"{', '.join(lost)}: not reached, {why}")
    passed = [result.id for result in report.results if result.status is Status.PASS]
    if passed and report.verdict is not Status.PASS:
        yield line("pass", STYLES[Status.PASS], ", ".join(passed))
    groups: dict[tuple[str | None, object], list[Result]] = {}
    for result in report.results:
        if result.status is Status.SKIP:
            groups.setdefault((result.cause_id, result.values.get("need") or result.cause), []).append(result)
    for (reason, need), results in groups.items():
        some = SKIPS.get(reason or "")
        if some is None:
            text = f"{', '.join(result.id for result in results)}: {results[0].cause}"
        else:
            text = some.format(n=count(len(results), "check"), s="s" if len(results) == 1 else "", need=need)
        yield line("skip", STYLES[Status.SKIP], text)


def _every(results: Iterable[Result]) -> Iterator[Text]:
    for result in results:
        seconds = f"  ({took(result.seconds)})" if result.seconds >= 0.05 else ""
        yield line(
            result.status.value,
            STYLES[result.status],
            f"{result.id:{ID_WIDTH}}",
            result.seen,
            (seconds, "dim"),
        )


def _verdict(report: Report) -> Iterator[Text]:
    verdict = report.verdict
    numbers = {status: sum(result.status is status for result in report.results) for status in Status}
    counts = ", ".join(f"{numbers[status]} {word}" for status, word in COUNTED.items() if numbers[status])
    yield line(verdict.value.upper(), STYLES[verdict], f"self-test: {counts}; {took(report.seconds)}")
    if verdict is Status.UNKNOWN and not numbers[Status.UNKNOWN]:
        yield line("", "", "no check ran, so nothing is proved")
    seen = {result.id: result.seen for result in report.results if result.status is Status.PASS}
    if proof := [f"{words}{_short(seen[name])}" for name, words in SUMMARY.items() if name in seen]:
        yield line("on", "", "; ".join(proof))
    if figures := "; ".join(_figures(report.results)):
        yield line("figures", "", figures)


def _figures(results: Iterable[Result]) -> Iterator[str]:
    """What each check measured: one number, or the least and the most of all GPUs; a unit once."""
    for result in results:
        records = measured(result.values)
        pairs = len({record.get("what") for record in records}) > MOST_QUANTITIES  # each GPU with each other
        by_what: dict[tuple[str, str], list[float]] = {}
        for record in records:
            what = "" if pairs else str(record.get("what") or "")
            by_what.setdefault((str(record["unit"]), what), []).append(float(record["value"]))  # type: ignore[arg-type]
        for unit in dict.fromkeys(unit for unit, _ in by_what):
            said = [f"{what} {_range(each)}".strip() for (of, what), each in by_what.items() if of == unit]
            yield f"{result.id} {', '.join(said)} {unit}"


def _range(values: Sequence[float]) -> str:
    least, most = figure(min(values)), figure(max(values))
    return least if least == most else f"{least} to {most}"


def _short(seen: str) -> str:
    """What was seen, without what it was compared with.

    >>> _short("590.48.01 (needed: 580.65.06)"), _short("cuDNN 9.24.0, as it should be")
    ('590.48.01', 'cuDNN 9.24.0')
    """
    return seen.partition(" (")[0].partition(", as ")[0].partition("; as ")[0]


def main() -> None:
    """Show each kind of report at the terminal's width."""
    from torchtap.selftest.examples import examples

    console = Console(highlight=False)
    for title, report in examples():
        console.rule(Text(title), align="left", characters="-")
        draw(report, console)


if __name__ == "__main__":
    main()
