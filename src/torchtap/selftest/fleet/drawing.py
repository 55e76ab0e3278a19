"""Draw a merge for people: what is wrong first, one entry for all hosts of which the same is to be said.

`python -m torchtap.selftest.fleet.drawing` shows one of recorded and invented reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from torchtap.selftest.fleet.comparing import Drift, Group, Merged, Slow, host_list
from torchtap.selftest.fleet.reading import HostReport
from torchtap.selftest.lines import STYLES, fit, line, print_lines
from torchtap.selftest.status import COUNTED, Status
from torchtap.selftest.words import and_list, count, figure, printable

MOST = 10  # entries of one kind; --json has all


def draw_merged(merged: Merged, console: Console, *, verbose: bool = False) -> None:
    """Print the table at the console's width. `verbose`: also the names of many good hosts, and each report."""
    fit(console)
    for group in merged.groups:
        if group.verdict is not Status.PASS:
            print_lines(console, [*_group(group, None), Text()])
    for entries in (
        [_slow(slow) for slow in merged.slow],
        [_drift(drift) for drift in merged.drift],
        [_entry("old", f"{each.report.host}: {each.why}") for each in merged.replaced],
        [_entry("BAD", f"{bad.file}: {bad.why}", STYLES[Status.UNKNOWN]) for bad in merged.bad],
    ):
        print_lines(console, _first(entries))
    for group in merged.groups:
        if group.verdict is Status.PASS:
            print_lines(console, _group(group, None if verbose else console.width))
    if verbose:
        print_lines(console, map(_host, merged.reports))
    print_lines(console, _verdict(merged))


def _entry(word: str, text: str, style: str = "") -> Text:
    return line(word, style, printable(text))


def _first(entries: Sequence[Text]) -> Iterator[Text]:
    yield from entries[:MOST]
    if len(entries) > MOST:
        yield line("", "", f"and {len(entries) - MOST} more; --json has all")


def _group(group: Group, width: int | None) -> Iterator[Text]:
    """What is said of these hosts, then their names in one piece, to be pasted; left out where they pass `width`."""
    word = group.verdict.value.upper() if group.verdict is not Status.PASS else group.verdict.value
    what = f"{group.check}: " if group.check else ""
    on = f", {group.gpus}" if group.gpus else ""
    yield line(
        word,
        STYLES[group.verdict],
        (printable(what), "bold"),
        printable(f"{count(len(group.hosts), 'host')}{on}"),
    )
    names = line("", "", (printable(host_list(group.hosts)), "cyan"))
    if width is None or len(names) <= width:
        yield names
    if group.cause:
        where = f" (as on {group.hosts[0]})" if len(group.hosts) > 1 else ""
        yield _entry("cause", f"{group.cause_id}: {group.cause}{where}")
    if group.remedy:
        do, _, paste = group.remedy.partition("\n")
        yield _entry("do", do)
        if paste:
            yield line("", "", (printable(paste), "cyan"))


def _host(report: HostReport) -> Text:
    """One host and what is known of its report."""
    known = (f"level {report.level}", str(report.selection), report.started, report.file)
    words = f"{report.host}: {', '.join(word for word in known if word)}"
    return _entry(report.verdict.value, words, STYLES[report.verdict])


def _slow(slow: Slow) -> Text:
    measure = slow.measure
    what = f"{measure.check} {measure.what}".strip()
    return _entry(
        "SLOW" if slow.status is Status.FAIL else "slow",
        f"{slow.host} GPU {measure.gpu}: {figure(measure.value)} {measure.unit} in {what}, {slow.below:.0%} below the "
        f"median {figure(slow.median)} of {slow.equals:,} {measure.name}",
        STYLES[slow.status],
    )


def _drift(drift: Drift) -> Text:
    """The value of most hosts, then who has another one."""
    others = [f"{value} on {_some(hosts)}" for value, hosts in list(drift.others.items())[:MOST]]
    if len(drift.others) > MOST:
        others.append(f"{len(drift.others) - MOST} other values")
    most = f"{drift.most} on {count(drift.hosts, 'host')}; " if drift.most is not None else "no majority; "
    return _entry("drift", f"{drift.what}: {most}{and_list(others)}", STYLES[Status.WARN])


def _some(hosts: Sequence[str]) -> str:
    """Names where they are short, else how many."""
    names = host_list(hosts)
    return names if len(names) <= 60 else f"{count(len(hosts), 'host')}, first {hosts[0]}"


def _verdict(merged: Merged) -> Iterator[Text]:
    numbers = ", ".join(f"{number} {COUNTED[status]}" for status, number in merged.counts.items() if number)
    slow = {(each.host, each.measure.gpu) for each in merged.slow}
    noted = ((slow, "slow GPU"), (merged.bad, "unreadable file"))
    notes = [count(len(each), noun) for each, noun in noted if each]
    verdict = merged.verdict
    yield line(
        verdict.value.upper(),
        STYLES[verdict],
        "; ".join([f"{count(len(merged.reports), 'host')}: {numbers or 'no report'}", *notes]),
    )


def main() -> None:
    """Show a merge at the terminal's width."""
    from torchtap.selftest.fleet.examples import example

    draw_merged(example(), Console(highlight=False))


if __name__ == "__main__":
    main()
