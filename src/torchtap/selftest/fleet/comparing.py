"""Reports of many hosts side by side: which are equal, which GPUs are slow, whose versions differ. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

import torchtap
from torchtap.selftest.fleet.reading import Bad, HostReport, Measure, Replaced, newest
from torchtap.selftest.limits import MEDIAN_LEAST_GPUS, SLOWER_FAIL, SLOWER_WARN
from torchtap.selftest.status import Status, worst

# What should be equal on equal hosts, in the order in which it is told.
DRIFTING = ("gpus", "driver", "kernel", "variant", "torch", "cuda", "cudnn", "torchtap", "level", "device")
PART_ONLY = "part_only"  # the cause of a host of which there is no whole report
_ORDER = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Hosts of which the same is to be said. `cause` and `remedy` are the first host's."""

    verdict: Status
    check: str | None
    cause_id: str | None
    cause: str | None
    remedy: str | None
    gpus: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A GPU below the median of its equals, on all hosts. `below` is a fraction of that median."""

    status: Status
    host: str
    measure: Measure
    median: float
    below: float
    equals: int  # how many GPUs the median is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What most hosts have, and who has something else. `most` is None where no value is the most frequent one."""

    what: str
    most: str | None
    hosts: int  # that have it
    others: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Everything that a merge says."""

    reports: tuple[HostReport, ...]
    groups: tuple[Group, ...]
    slow: tuple[Slow, ...]
    drift: tuple[Drift, ...]
    replaced: tuple[Replaced, ...]
    bad: tuple[Bad, ...]

    @property
    def verdict(self) -> Status:
        """The worst of all hosts and of what comparing them showed. A bad file leaves its host unknown."""
        statuses = [report.verdict for report in self.reports] + [slow.status for slow in self.slow]
        statuses += [Status.UNKNOWN] * len(self.bad) + [Status.WARN] * len(self.drift)
        return worst(statuses)

    @property
    def exit_code(self) -> int:
        """0 pass or warn, 1 fail or unknown, 2 where there was no report at all."""
        if not self.reports:
            return 2
        return 0 if self.verdict in (Status.PASS, Status.WARN) else 1

    @property
    def counts(self) -> dict[Status, int]:
        """How many hosts have each verdict."""
        numbers = Counter(report.verdict for report in self.reports)
        return {status: numbers[status] for status in (Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN)}

    def to_dict(self) -> dict[str, object]:
        """For JSON, keys in this order (docs/fleet.md)."""
        return {
            "schema": 1,
            "merged": len(self.reports),
            "torchtap": torchtap.__version__,
            "verdict": self.verdict.value,
            "counts": {status.value: number for status, number in self.counts.items()},
            "groups": [
                {
                    "verdict": group.verdict.value,
                    "check": group.check,
                    "cause_id": group.cause_id,
                    "cause": group.cause,
                    "remedy": group.remedy,
                    "gpus": group.gpus,
                    "hosts": list(group.hosts),
                }
                for group in self.groups
            ],
            "slow": [
                {
                    "status": slow.status.value,
                    "host": slow.host,
                    "gpu": slow.measure.gpu,
                    "name": slow.measure.name,
                    "check": slow.measure.check,
                    "what": slow.measure.what or None,
                    "value": slow.measure.value,
                    "median": slow.median,
                    "unit": slow.measure.unit,
                    "below": round(slow.below, 4),
                    "equals": slow.equals,
                }
                for slow in self.slow
            ],
            "drift": [
                {
                    "what": drift.what,
                    "most": drift.most,
                    "hosts": drift.hosts,
                    "others": [
                        {"value": value, "hosts": list(hosts)} for value, hosts in drift.others.items()
                    ],
                }
                for drift in self.drift
            ],
            "replaced": [
                {"host": each.report.host, "file": each.report.file, "by": each.by.file, "why": each.why}
                for each in self.replaced
            ],
            "bad": [{"file": bad.file, "why": bad.why} for bad in self.bad],
            "hosts": [
                {
                    "name": report.host,
                    "file": report.file,
                    "started": report.started,
                    "level": report.level,
                    "device": report.device,
                    "selection": str(report.selection) or None,
                    "verdict": report.verdict.value,
                    "check": report.check,
                    "cause_id": report.cause_id,
                }
                for report in self.reports
            ],
        }


def merge(reports: Iterable[HostReport], bad: Sequence[Bad] = ()) -> Merged:
    """Compare reports with each other."""
    hosts, replaced = newest(reports)
    hosts = [_as_proved(report) for report in hosts]
    hosts.sort(key=lambda report: _natural(report.host))
    return Merged(
        reports=tuple(hosts),
        groups=tuple(_groups(hosts)),
        slow=tuple(_slow(hosts)),
        drift=tuple(_drift(hosts)),
        replaced=tuple(replaced),
        bad=tuple(bad),
    )


def _as_proved(report: HostReport) -> HostReport:
    """What a report proves of its host: a part of a self-test may show a fault, and never that there is none."""
    if not report.selection or report.verdict not in (Status.PASS, Status.WARN):
        return report
    return replace(
        report,
        verdict=Status.UNKNOWN,
        check=None,
        cause_id=PART_ONLY,
        cause=f"only a part of the self-test was run ({report.selection}), so nothing is proved of the host",
        remedy="Run all of it on this host\ntorchtap selftest --json",
    )


def _groups(reports: Sequence[HostReport]) -> list[Group]:
    """Worst first, and of each verdict the largest first."""
    by_key: dict[tuple[object, ...], list[HostReport]] = {}
    for report in reports:
        key = (report.verdict, report.check, report.cause_id, gpus_in_words(report.gpus))
        by_key.setdefault(key, []).append(report)
    groups = [
        Group(
            verdict=same[0].verdict,
            check=same[0].check,
            cause_id=same[0].cause_id,
            cause=same[0].cause,
            remedy=same[0].remedy,
            gpus=gpus_in_words(same[0].gpus),
            hosts=tuple(report.host for report in same),
        )
        for same in by_key.values()
    ]
    return sorted(groups, key=lambda group: (_ORDER.index(group.verdict), -len(group.hosts)))


def _slow(reports: Sequence[HostReport]) -> list[Slow]:
    """GPUs below the median of all of their name, for everything that is a rate: more is better."""
    equals: dict[tuple[str, ...], list[tuple[str, Measure]]] = {}
    for report in reports:
        for measure in report.measured:
            if measure.unit.endswith("/s"):
                # A rate to another GPU depends on where both sit: it is compared with the same pair of other hosts.
                place = str(measure.gpu) if re.search(r"GPU \d", measure.what) else ""
                key = (measure.name, measure.check, measure.what, measure.unit, place)
                equals.setdefault(key, []).append((report.host, measure))
    slow = []
    for of_a_kind in equals.values():
        if len(of_a_kind) < MEDIAN_LEAST_GPUS:
            continue
        middle = median(measure.value for _, measure in of_a_kind)
        for host, measure in of_a_kind:
            below = 1 - measure.value / middle if middle > 0 else 0.0
            if below > SLOWER_WARN:
                status = Status.FAIL if below > SLOWER_FAIL else Status.WARN
                slow.append(
                    Slow(
                        status=status,
                        host=host,
                        measure=measure,
                        median=middle,
                        below=below,
                        equals=len(of_a_kind),
                    )
                )
    return sorted(slow, key=lambda each: -each.below)


def _drift(reports: Sequence[HostReport]) -> list[Drift]:
    """What is not known of a host does not differ."""
    found = []
    for what in DRIFTING:
        by_value: dict[str, list[str]] = {}
        for report in reports:
            value = gpus_in_words(report.gpus) if what == "gpus" else report.versions.get(what)
            if value:
                by_value.setdefault(value, []).append(report.host)
        if len(by_value) < 2:
            continue
        ranked = sorted(by_value.items(), key=lambda item: -len(item[1]))
        (value, hosts), second = ranked[0], ranked[1][1]
        most = value if len(hosts) > len(second) else None
        others = ranked[1:] if most is not None else ranked
        found.append(
            Drift(
                what=what,
                most=most,
                hosts=len(hosts) if most is not None else 0,
                others={other: tuple(names) for other, names in others},
            )
        )
    return found


def gpus_in_words(names: Iterable[str]) -> str:
    """Equal GPUs in one phrase.

    >>> gpus_in_words(["NVIDIA H200"] * 8), gpus_in_words([])
    ('8 x NVIDIA H200', '')
    """
    return ", ".join(f"{number} x {name}" for name, number in Counter(names).items())


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that puts node9 before node10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))


def host_list(names: Sequence[str]) -> str:
    """Names as Slurm, ClusterShell and pdsh write and read them.

    >>> host_list(["node001", "node002", "node003", "node007", "gpu1", "login"])
    'node[001-003,007],gpu1,login'
    """
    shown = []
    split = [re.fullmatch(r"(.*?)(\d+)", name, re.ASCII) for name in names]
    pairs = [(each[1], each[2]) if each else (name, "") for each, name in zip(split, names, strict=True)]
    for (prefix, _), same in groupby(pairs, key=lambda pair: (pair[0], len(pair[1]) if pair[1] else 0)):
        numbers = [number for _, number in same]
        if not numbers[0]:
            shown += [prefix] * len(numbers)
        elif len(numbers) == 1:
            shown.append(prefix + numbers[0])
        else:
            shown.append(f"{prefix}[{','.join(_ranges(numbers))}]")
    return ",".join(shown)


def _ranges(numbers: Sequence[str]) -> list[str]:
    ranges: list[list[str]] = []
    for number in numbers:
        if ranges and int(number) == int(ranges[-1][-1]) + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges]
