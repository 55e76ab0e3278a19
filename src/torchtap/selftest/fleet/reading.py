"""Files to reports. A bad file is named with what is wrong, and does not hide the others.

Strict: a report that is not whole proves nothing about its host. Its verdict must be the one that follows from its
results, so that an edited or half-merged file is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torchtap
from torchtap.selftest.result import ALL, SCHEMA, Selection, is_measure
from torchtap.selftest.status import Device, Level, Status, worst

MAX_BYTES = 64 << 20  # a report has some 100 KB
PREFLIGHT = "preflight.json"  # make selftest leaves it beside its report; it is of the host's side, and none
MOMENT = "%Y-%m-%dT%H:%M:%SZ"
LONGEST_NAME = 300  # a host's has 253 characters at most (RFC 1035), a file's 255 bytes
PLAIN_NAMES = ("report", "selftest", "selftest-report")  # of files that say nothing about their host


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One value that a check measured on one GPU."""

    check: str
    what: str
    gpu: int | str
    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a merge needs of one report."""

    host: str
    file: str
    started: str
    verdict: Status
    check: str | None = None  # of the first cause
    cause_id: str | None = None
    cause: str | None = None
    remedy: str | None = None
    device: str = Device.GPU.value
    level: str = Level.QUICK.value
    selection: Selection = ALL  # with anything in it, this is a part of a self-test
    gpus: tuple[str, ...] = ()  # names
    uuids: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)
    measured: tuple[Measure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A file that is no report, and why."""

    file: str
    why: str


class NoReportError(ValueError):
    """What was read is no report of this schema: why."""


class OfPreflightError(NoReportError):
    """It is the report of preflight, which `make selftest` leaves beside the self-test's: no report, and no fault."""


class MergedError(NoReportError):
    """It is what a merge wrote."""


def is_merged(path: Path) -> bool:
    """Whether this file is what a merge wrote."""
    try:
        read_file(path)
    except MergedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def find_files(paths: Iterable[Path], names: Callable[[], Iterable[str]]) -> Iterator[Path | Bad]:
    """Every file that is meant, once: files, the *.json in and below folders, and for - the names that come in, one a
    line. A folder without any is bad.
    """
    seen: set[Path] = set()
    for path in paths:
        for each in [Path(name) for name in names()] if str(path) == "-" else [path]:
            for file in _files_of(each):
                if isinstance(file, Bad) or file not in seen:
                    yield file
                if isinstance(file, Path):
                    seen.add(file)


def _files_of(path: Path) -> Sequence[Path | Bad]:
    try:
        return _in_folder(path) if path.is_dir() else (path,)
    except (OSError, ValueError) as error:  # a name that no file can have
        return (Bad(file=str(path), why=f"cannot be read: {getattr(error, 'strerror', None) or error}"),)


def _in_folder(folder: Path) -> Sequence[Path | Bad]:
    files = sorted(path for path in folder.rglob("*.json") if path.name != PREFLIGHT)
    return files or [Bad(file=str(folder), why="a folder without reports: no *.json in it")]


def read(
    files: Iterable[Path | Bad], on_file: Callable[[int], None] = lambda _: None
) -> tuple[list[HostReport], list[Bad]]:
    """Every report, and every file that is none. `on_file` hears how many were read."""
    reports, bad = [], []
    for number, file in enumerate(files, 1):
        on_file(number)
        if isinstance(file, Bad):
            bad.append(file)
            continue
        try:
            reports.append(read_file(file))
        except OSError as error:
            bad.append(Bad(file=str(file), why=f"cannot be read: {error.strerror}"))
        except OfPreflightError:
            continue
        except ValueError as error:
            bad.append(Bad(file=str(file), why=str(error)))
    return reports, bad


def read_file(path: Path) -> HostReport:
    """One report. Raises `NoReportError` and `OSError`."""
    if path.exists() and not path.is_file():
        raise NoReportError("not a file")  # a device or a pipe may never end
    if path.stat().st_size > MAX_BYTES:
        raise NoReportError(f"not a self-test report: {path.stat().st_size >> 20} MiB")
    written = _decode(path.read_bytes())
    try:
        return report_of(written, path)
    except NoReportError:
        raise
    except Exception as error:  # whatever a file holds, it must not take the others' table away
        raise NoReportError(f"not a whole report: {_missing(error)}") from None


def _decode(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        raise NoReportError("empty")
    try:
        # A terminal (docker run -t) ends lines with both.
        text = _alone(raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"))
        written = json.loads(text)
    except NoReportError:
        raise
    except UnicodeDecodeError:
        raise NoReportError("not JSON: not UTF-8") from None
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("{") and not text.rstrip().endswith("}"):
            raise NoReportError(
                f"cut off: it ends in the middle, in line {text.count(chr(10)) + 1}"
            ) from None
        raise NoReportError(f"not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError):
        raise NoReportError("not JSON that a report could be") from None
    if isinstance(written, dict) and "preflight" in written and "schema" not in written:
        raise OfPreflightError("the report of preflight; give the self-test's")
    if not isinstance(written, dict) or "schema" not in written:
        raise NoReportError('not a self-test report: it has no "schema"')
    if "merged" in written:
        raise MergedError("a merged report; give the reports that it was made of")
    if written["schema"] != SCHEMA or isinstance(written["schema"], bool):
        by = written.get("torchtap")
        raise NoReportError(
            f"schema {written['schema']!r}, written by torchtap {by if isinstance(by, str) else '?'}; torchtap "
            f"{torchtap.__version__} reads schema {SCHEMA}: merge with the version that wrote it"
        )
    return written


def _alone(text: str) -> str:
    r"""The report without what a log has around it: it begins with a line {, and ends with a line }. Raises
    `NoReportError` where there are more of them.

    >>> _alone('WARNING ssh: not started\n{\n  "schema": 1\n}\nbye\n')
    '{\n  "schema": 1\n}\n'
    """
    if text.startswith("{\n") and "\n{\n" not in text:
        return text
    whole = re.findall(r"^\{$.*?^\}$\n?", text, re.MULTILINE | re.DOTALL)
    if len(whole) > 1:
        raise NoReportError(f"{len(whole)} reports in one file; give each its own")
    return whole[0] if whole else text


def _missing(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def report_of(written: Mapping[str, Any], path: Path) -> HostReport:
    """The report of this JSON. Raises `NoReportError`, `KeyError` or `ValueError` where it is not of the schema."""
    results = _list(written["results"], "results")
    verdict = Status(written["verdict"])
    follows = worst(Status(result["status"]) for result in results)
    if verdict is not follows:
        raise NoReportError(
            f"its verdict is {verdict.value}, but what follows from its results is {follows.value}"
        )
    for result in results:
        _text(result["id"], "the id of a result")
        for key in ("cause_id", "cause", "remedy"):
            _text(result.get(key), f"{key} of {result['id']}")
    first = (
        next((result for result in results if result["status"] == verdict.value), {})
        if verdict is not Status.PASS
        else {}
    )
    gpus = _list(written.get("gpus", []), "gpus")
    for gpu in gpus:
        if not isinstance(gpu.get("index"), int | None):
            raise NoReportError("not a whole report: the index of a GPU is not a number")
    names = {gpu.get("index"): _text(gpu.get("name"), "the name of a GPU") or "GPU" for gpu in gpus}
    known = _record(written.get("versions", {}), "versions")
    versions = {key: text for key, value in known.items() if (text := _text(value, f"version {key}"))}
    host = _record(written.get("host", {}), "host")
    name = _text(host.get("name"), "the host's name") or _name_of(path)
    if len(name) > LONGEST_NAME:
        raise NoReportError(f"not a whole report: the host's name has {len(name):,} characters")
    kernel = _text(host.get("kernel"), "the kernel")
    device = Device(written.get("device", Device.GPU.value)).value
    level = Level(written.get("level", Level.QUICK.value)).value
    return HostReport(
        host=name,
        file=str(path),
        started=_moment(written.get("started", "")),
        verdict=verdict,
        check=first.get("id"),
        cause_id=first.get("cause_id"),
        cause=first.get("cause"),
        remedy=first.get("remedy"),
        device=device,
        level=level,
        selection=_selection(written, results),
        gpus=tuple(gpu.get("name") or "GPU" for gpu in gpus),
        uuids=frozenset(uuid for gpu in gpus if (uuid := _text(gpu.get("uuid"), "the uuid of a GPU"))),
        versions={
            **versions,
            **({"kernel": kernel} if kernel else {}),
            "torchtap": _text(written["torchtap"], "torchtap"),
            "level": level,
            "device": device,
        },
        measured=tuple(_measures(results, names)),
    )


def _text(value: object, name: str) -> str:
    """A text, empty for null."""
    if value is not None and not isinstance(value, str):
        raise NoReportError(f"not a whole report: {name} is not a text")
    return value or ""


def _moment(value: object) -> str:
    """When it began; of two reports the newest counts, so it must be a time. Empty in reports of before it was told."""
    text = _text(value, "started")
    try:
        # strptime alone would take 2026-1-2T3:4:5Z too, which sorts as a text elsewhere than as a time.
        known = not text or datetime.strptime(text, MOMENT).strftime(MOMENT) == text
    except ValueError:
        known = False
    if not known:
        raise NoReportError(
            f"not a whole report: started is {text[:40]!r}, no time as in 2026-11-30T17:48:17Z"
        )
    return text


def _selection(written: Mapping[str, Any], results: Iterable[Mapping[str, Any]]) -> Selection:
    """What was chosen or left out; in reports of before it was told, what they say to have left out."""
    if "selection" not in written:
        return Selection(skip=tuple(each["id"] for each in results if each.get("cause_id") == "left_out"))
    told = _record(written["selection"], "selection")
    ids = {}
    for key in ("only", "skip"):
        names = told.get(key, [])
        if not isinstance(names, list):
            raise NoReportError(f"not a whole report: selection.{key} is not a list")
        ids[key] = tuple(_text(name, f"selection.{key}") for name in names)
    return Selection(**ids)


def _list(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise NoReportError(f"not a whole report: {name} is not a list of records")
    return value


def _record(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NoReportError(f"not a whole report: {name} is not a record")
    return value


def _measures(results: Iterable[Mapping[str, Any]], names: Mapping[object, str]) -> Iterator[Measure]:
    for result in results:
        values = _record(result.get("values") or {}, "values")
        for record in _list(values.get("measured", []), f"what {result['id']} measured"):
            if not is_measure(record):
                raise NoReportError(
                    f"not a whole report: what {result['id']} measured is not all numbers of GPUs"
                )
            gpu: Any = record["gpu"]
            yield Measure(
                check=str(result["id"]),
                what=_text(record.get("what"), "what was measured"),
                gpu=gpu,
                name=_text(record.get("name"), "the name of a GPU") or names.get(gpu) or "GPU",
                value=float(record["value"]),  # type: ignore[arg-type]
                unit=str(record["unit"]),
            )


def _name_of(path: Path) -> str:
    """A host's name where its report has none: the file's, or its folder's.

    >>> _name_of(Path("reports/node017.json")), _name_of(Path("node018/report.json"))
    ('node017', 'node018')
    """
    name = path.parent.name if path.stem in PLAIN_NAMES else path.stem
    return "_".join((name or path.stem).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A report that does not count, the one of the same host that counts instead, and why, in words."""

    report: HostReport
    by: HostReport
    why: str


def newest(reports: Iterable[HostReport]) -> tuple[list[HostReport], list[Replaced]]:
    """One report a host, the newest; and every other one with the one that replaces it.

    A part of a self-test proves less than a whole one, and one without the GPU less than one with it: they never
    replace it. What such a newer one found wrong counts all the same.
    Hosts of one name whose GPUs are all different are two hosts (containers are often called alike): the second keeps
    its file's name in brackets.
    """
    machines: dict[str, list[list[HostReport]]] = {}
    for report in sorted(reports, key=lambda each: each.started, reverse=True):
        same_name = machines.setdefault(report.host, [])
        same = next((each for each in same_name if _one_machine(each, report)), None)
        if same is not None:
            same.append(report)
        else:
            same_name.append([report])
    hosts: list[HostReport] = []
    replaced = []
    for same_name in machines.values():
        for at, same in enumerate(same_name):
            chosen = _chosen(same)
            replaced += [
                Replaced(report=other, by=chosen, why=_why(other, chosen))
                for other in same
                if other is not chosen
            ]
            if at:
                chosen = replace(chosen, host=f"{chosen.host}({Path(chosen.file).stem})")
            hosts.append(chosen)
    return hosts, replaced


def _one_machine(known: Sequence[HostReport], report: HostReport) -> bool:
    uuids = frozenset[str]().union(*(each.uuids for each in known))
    return not (uuids and report.uuids) or bool(uuids & report.uuids)


def _chosen(same: Sequence[HostReport]) -> HostReport:
    """Of one machine's reports, the newest first, the one that counts."""
    full = [each for each in same if not each.selection]
    base = next((each for each in full if each.device != Device.CPU.value), full[0] if full else None)
    if len(same) == 1 or base is same[0]:
        return same[0]
    newer = same[: same.index(base)] if base is not None else same
    # Of several parts of one kind the newest counts.
    parts = list({(each.selection, each.device): each for each in reversed(newer)}.values())
    bad = [each for each in parts if each.verdict in (Status.FAIL, Status.UNKNOWN)]
    worst_first = sorted(bad, key=lambda each: each.verdict is not Status.FAIL)
    if base is None:
        return worst_first[0] if worst_first else same[0]
    return base if not worst_first or base.verdict is Status.FAIL else worst_first[0]


def _why(other: HostReport, chosen: HostReport) -> str:
    if other.started < chosen.started or (other.started == chosen.started and not other.selection):
        levels = (
            (f" (level {other.level})", f" (level {chosen.level})")
            if other.level != chosen.level
            else ("", "")
        )
        return f"{other.file}{levels[0]} is older than {chosen.file}{levels[1]}"
    if other.selection:
        return f"{other.file} is a part only ({other.selection}), so {chosen.file} counts"
    if other.device != chosen.device:
        return f"{other.file} is newer, but without the GPU, so {chosen.file} counts"
    return f"{other.file} is newer, but {chosen.file} found more wrong"
