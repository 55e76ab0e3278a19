"""Files to reports. A bad file is named with what is wrong, and does not hide the others.

Strict: a report that is not whole proves nothing about its host. Its verdict must be the one that follows from its
results, so that an edited or half-merged file is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torchtap
from torchtap.selftest.result import SCHEMA, measured
from torchtap.selftest.status import Status, worst

MAX_BYTES = 64 << 20  # a report has some 100 KB
PREFLIGHT = "preflight.json"  # make selftest leaves it beside its report; it is of the host's side, and none
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


def find_files(paths: Iterable[Path], names: Callable[[], Iterable[str]]) -> Iterator[Path | Bad]:
    """Every file that is meant, once: files, the *.json in and below folders, and for - the names that come in, one a
    line. A folder without any is bad.
    """
    seen: set[Path] = set()
    for path in paths:
        for each in [Path(name) for name in names()] if str(path) == "-" else [path]:
            for file in _in_folder(each) if each.is_dir() else (each,):
                if isinstance(file, Bad) or file not in seen:
                    yield file
                if isinstance(file, Path):
                    seen.add(file)


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
        except NoReportError as error:
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
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, NoReportError):
            raise
        raise NoReportError(f"not a whole report: {_missing(error)}") from None


def _decode(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        raise NoReportError("empty")
    try:
        text = _alone(raw.decode("utf-8-sig"))
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
    if not isinstance(written, dict) or "schema" not in written:
        raise NoReportError('not a self-test report: it has no "schema"')
    if "merged" in written:
        raise NoReportError("a merged report; give the reports that it was made of")
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
    first = (
        next((result for result in results if result["status"] == verdict.value), {})
        if verdict is not Status.PASS
        else {}
    )
    gpus = _list(written.get("gpus", []), "gpus")
    names = {gpu.get("index"): str(gpu.get("name") or "GPU") for gpu in gpus}
    known = _record(written.get("versions", {}), "versions")
    versions = {key: text for key, text in known.items() if isinstance(text, str)}
    host = _record(written.get("host", {}), "host")
    return HostReport(
        host=str(host.get("name") or "") or _name_of(path),
        file=str(path),
        started=str(written.get("started") or ""),
        verdict=verdict,
        check=first.get("id"),
        cause_id=first.get("cause_id"),
        cause=first.get("cause"),
        remedy=first.get("remedy"),
        gpus=tuple(str(gpu.get("name") or "GPU") for gpu in gpus),
        uuids=frozenset(str(gpu["uuid"]) for gpu in gpus if gpu.get("uuid")),
        versions={
            **versions,
            **({"kernel": str(host["kernel"])} if host.get("kernel") else {}),
            "torchtap": str(written["torchtap"]),
            "level": str(written.get("level", "quick")),
        },
        measured=tuple(_measures(results, names)),
    )


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
        for record in measured(_record(result.get("values") or {}, "values")):
            gpu: Any = record["gpu"]
            yield Measure(
                check=str(result["id"]),
                what=str(record.get("what") or ""),
                gpu=gpu,
                name=str(record.get("name") or names.get(gpu) or "GPU"),
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


def newest(reports: Iterable[HostReport]) -> tuple[list[HostReport], list[tuple[HostReport, HostReport]]]:
    """One report a host, the newest; and every older one with the one that replaces it.

    Hosts of one name whose GPUs are all different are two hosts (containers are often called alike): the second keeps
    its file's name in brackets.
    """
    kept: dict[str, list[HostReport]] = {}
    replaced: list[tuple[HostReport, HostReport]] = []
    for report in sorted(reports, key=lambda each: each.started, reverse=True):
        same = kept.setdefault(report.host, [])
        by = next(
            (each for each in same if not (each.uuids and report.uuids) or each.uuids & report.uuids), None
        )
        if by is not None:
            replaced.append((report, by))
        else:
            same.append(report)
    hosts = []
    for same in kept.values():
        hosts += [
            same[0],
            *(replace(other, host=f"{other.host}({Path(other.file).stem})") for other in same[1:]),
        ]
    return hosts, replaced
