"""Files to reports: whole ones are read, every other is named with what is wrong."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.selftest.reports import IDS, REPORTS
from torchtap.selftest.fleet.comparing import merge
from torchtap.selftest.fleet.drawing import draw_merged
from torchtap.selftest.fleet.examples import host_reports
from torchtap.selftest.fleet.reading import (
    Bad,
    HostReport,
    NoReportError,
    find_files,
    newest,
    read,
    read_file,
    report_of,
)
from torchtap.selftest.result import Report, Selection
from torchtap.selftest.status import Status

GOOD: dict[str, Any] = next(host_reports(1))


def put(path: Path, written: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    return path


@pytest.mark.parametrize("report", REPORTS, ids=IDS)
def test_every_report_can_be_read_back(report: Report, tmp_path: Path):
    """Verdict, first cause, GPUs and versions are those that were written."""
    again = read_file(put(tmp_path / "x.json", report.to_json()))
    first = report.first
    assert again.verdict is report.verdict
    assert (again.check, again.cause_id) == ((first.id, first.cause_id) if first else (None, None))
    assert (again.host, again.started) == (report.identity.name, report.identity.started)
    assert len(again.gpus) == len(report.identity.gpus)
    assert again.versions["torchtap"] == report.torchtap


def test_what_was_measured_is_read():
    """One record a GPU and quantity."""
    measures = report_of(GOOD, Path("x.json")).measured
    assert {(each.check, each.what, each.unit) for each in measures} == {
        ("gpu.bandwidth", "", "GB/s"),
        ("gpu.speed", "bf16", "TFLOP/s"),
    }
    assert [each.gpu for each in measures[:8]] == list(range(8))
    assert measures[0].name == "NVIDIA H200"


def without(*keys: str) -> Callable[[dict[str, Any]], object]:
    return lambda report: {key: value for key, value in report.items() if key not in keys}


def with_(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda report: {**report, **changes}


BAD: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("empty", lambda _: "", "empty"),
    ("only blanks", lambda _: " \n\n", "empty"),
    ("cut off", lambda report: json.dumps(report, indent=2)[:500], "cut off: it ends in the middle, in line"),
    ("cut off at its last brace", lambda report: json.dumps(report)[:-1], "cut off"),
    ("a text", lambda _: "PASS self-test: 19 passed\n", "not JSON: Expecting value, line 1, column 1"),
    ("two reports in one file", lambda report: json.dumps(report) * 2, "not JSON: Extra data, line 1"),
    (
        "two as they are written",
        lambda report: json.dumps(report, indent=2) + "\n" + json.dumps(report, indent=2),
        "2 rep",
    ),
    ("nested without end", lambda _: "[" * 100_000, "not JSON"),
    ("a list", lambda report: [report], 'not a self-test report: it has no "schema"'),
    ("another program's", lambda _: {"tests": []}, 'not a self-test report: it has no "schema"'),
    (
        "a newer schema",
        with_(schema=2, torchtap="0.9.0"),
        r"schema 2, written by torchtap 0\.9\.0; torchtap .* reads",
    ),
    ("no schema at all", with_(schema=None), "schema None, written by torchtap"),
    ("a merged one", with_(merged=3), "a merged report; give the reports that it was made of"),
    ("without results", without("results"), "not a whole report: 'results' is missing"),
    ("without a verdict", without("verdict"), "not a whole report: 'verdict' is missing"),
    ("an unknown verdict", with_(verdict="good"), "not a whole report: 'good' is not a valid Status"),
    (
        "results of another kind",
        with_(results={"a": 1}),
        "not a whole report: results is not a list of records",
    ),
    ("results of numbers", with_(results=[1]), "not a whole report: results is not a list of records"),
    ("a result without a status", with_(results=[{"id": "x"}]), "not a whole report: 'status' is missing"),
    ("gpus of another kind", with_(gpus="8"), "not a whole report: gpus is not a list of records"),
    (
        "a verdict that does not follow",
        with_(verdict="warn"),
        "its verdict is warn, but what follows .* is pass",
    ),
    ("a pass without any result", with_(results=[]), "its verdict is pass, but what follows .* is unknown"),
    ("a host that is a text", with_(host="node017"), "not a whole report: host is not a record"),
    ("versions in a list", with_(versions=[]), "not a whole report: versions is not a record"),
    (
        "values in a list",
        with_(results=[{"id": "x", "status": "pass", "values": [1]}]),
        "not .*: values is not a record",
    ),
]


@pytest.mark.parametrize("case", BAD, ids=[case[0] for case in BAD])
def test_a_file_that_is_no_report_is_named_and_hides_no_other(
    case: tuple[str, Callable[[dict[str, Any]], object], str], tmp_path: Path
):
    """What is wrong with it; the good one beside it is read."""
    _, make, said = case
    file = put(tmp_path / "bad.json", make(GOOD))
    good = put(tmp_path / "good.json", GOOD)
    reports, bad = read([file, good])
    assert [report.file for report in reports] == [str(good)]
    assert [each.file for each in bad] == [str(file)]
    assert re.match(said, bad[0].why), bad[0].why
    assert "\n" not in bad[0].why


FAILING = json.dumps(next(each for each in host_reports(7) if each["verdict"] == "fail"), indent=2)


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(at=st.integers(0, len(FAILING) - 1), length=st.integers(0, 400), put_in=st.text(max_size=8))
def test_no_damage_makes_a_failing_host_good(tmp_path: Path, at: int, length: int, put_in: str):
    """Whatever is cut out of its report and put in: it fails, or the file is bad."""
    file = put(tmp_path / "damaged.json", FAILING[:at] + put_in + FAILING[at + length :])
    reports, bad = read([file])
    assert len(reports) + len(bad) == 1
    assert all(report.verdict is Status.FAIL for report in reports)


# As JSON writes them: json.dumps itself refuses some.
ODD = (
    *(
        "null",
        "true",
        "-1",
        "1e999",
        "NaN",
        "-Infinity",
        f"1{'0' * 400}",
        '"x"',
        '"\\ud800"',
        '"a\\nb\\u001b[2J"',
    ),
    *(
        "[]",
        "{}",
        "[1]",
        "[[]]",
        "[{}]",
        '{"a": 1}',
        '{"name": []}',
        f'"{"9" * 5000}"',
        '"9999-99-99T00:00:00Z"',
    ),
)
MARK = "\N{SNOWMAN}"


def places(written: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a report, of its lists the last item only."""
    if path:
        yield path
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(written, dict):
        items = written.items()
    elif isinstance(written, list) and written:
        items = [(len(written) - 1, written[-1])]
    for key, value in items:
        yield from places(value, (*path, key))


def replaced_at(written: Any, path: Sequence[str | int], odd: str) -> str:
    """The report as a text with something odd at one place."""
    again = json.loads(json.dumps(written))
    at = again
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = MARK
    return json.dumps(again, ensure_ascii=False).replace(f'"{MARK}"', odd)


@pytest.mark.parametrize("odd", ODD, ids=[odd[:20] for odd in ODD])
@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_nothing_odd_at_any_place_takes_the_table_away(verdict: str, odd: str, tmp_path: Path):
    """Of a good and of a failing report: it is read or named, the hosts beside it stay, and no failing one passes."""
    base = GOOD if verdict == "pass" else json.loads(FAILING)
    for result in base["results"]:  # so that a failing check and one that measured are each the last in turn
        result["values"] = {key: value for key, value in result["values"].items() if key == "measured"}
    beside = [replace(report_of(GOOD, Path("b.json")), host="beside", uuids=frozenset({"u"}))]
    failing = next(each for each in base["results"] if each["status"] == verdict)
    reports = [base, {**base, "results": [*base["results"], failing]}]
    texts = {replaced_at(each, path, odd) for each in reports for path in places(each)}
    assert len(texts) > 70
    for text in texts:
        read_back, bad = read([put(tmp_path / "odd.json", text)])
        assert len(read_back) + len(bad) == 1
        merged = merge([*beside, *read_back], bad)
        json.loads(json.dumps(merged.to_dict()))
        drawn = io.StringIO()
        draw_merged(merged, Console(file=drawn, width=80), verbose=True)
        assert "beside" in drawn.getvalue()
        assert verdict == "pass" or merged.verdict in (Status.FAIL, Status.UNKNOWN), text[:300]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"started": "zzzz"}, "started is 'zzzz', no time as in 2026-11-30T17:48:17Z"),
        ({"started": "9999-99-99T00:00:00Z"}, "started is '9999-99-99T00:00:00Z', no time"),
        ({"started": "2026-1-2T3:4:5Z"}, "no time"),
        ({"started": "2026-11-30T17:48:17+99:00"}, "no time"),
        ({"started": 5}, "started is not a text"),
        ({"started": False}, "started is not a text"),
        ({"level": "banana"}, "'banana' is not a valid Level"),
        ({"device": "tpu"}, "'tpu' is not a valid Device"),
        ({"selection": "none"}, "selection is not a record"),
        ({"selection": {"only": "gpu.ecc"}}, "selection.only is not a list"),
        ({"host": {"name": 5}}, "the host's name is not a text"),
        ({"host": {"name": "9" * 5000}}, "the host's name has 5,000 characters"),
        ({"torchtap": ["1"]}, "torchtap is not a text"),
    ],
)
def test_a_report_is_read_strictly(changes: dict[str, object], said: str):
    """What is not of the schema is named, and not taken for something else."""
    with pytest.raises(ValueError, match=re.escape(said)):
        report_of({**GOOD, **changes}, Path("x.json"))


@pytest.mark.parametrize("value", [None, "775", math.nan, math.inf, 10**400, True, []])
def test_a_measured_value_that_is_no_number_is_said(value: object, tmp_path: Path):
    """It is not dropped without a word, and takes no table away."""
    result = {**GOOD["results"][-1], "values": {"measured": [{"gpu": 0, "value": value, "unit": "GB/s"}]}}
    file = put(tmp_path / "x.json", {**GOOD, "results": [*GOOD["results"][:-1], result]})
    reports, bad = read([file])
    assert reports == []
    assert bad[0].why == "not a whole report: what gpu.speed measured is not all numbers of GPUs"


def test_a_report_in_a_log_is_found(tmp_path: Path):
    """`docker logs` and `kubectl logs` mix both streams; what stands around it is not the report's."""
    text = f"WARNING ssh: not started {{}}\n{json.dumps(GOOD, indent=2)}\nended\n"
    assert read_file(put(tmp_path / "log.json", text)).host == GOOD["host"]["name"]


def test_what_is_no_file_is_never_waited_for(tmp_path: Path):
    """A pipe without a writer, a device without an end, a missing file, one of other bytes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    files = [tmp_path / "pipe", Path("/dev/zero"), tmp_path / "gone", tmp_path / "bytes"]
    _, bad = read(files)
    assert [each.why for each in bad] == [
        "not a file",
        "not a file",
        "cannot be read: No such file or directory",
        "not JSON: not UTF-8",
    ]


def test_a_report_that_is_too_large_is_not_read(tmp_path: Path):
    """Some other file that was caught by a pattern."""
    with (tmp_path / "core.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(NoReportError, match="not a self-test report: 65 MiB"):
        read_file(tmp_path / "core.json")


def test_folders_names_and_files_are_found_once(tmp_path: Path):
    """Below a folder too, as --report leaves them; - takes names from standard input."""
    files = [put(tmp_path / name, GOOD) for name in ("a.json", "n1/report.json", "n2/report.json")]
    put(tmp_path / "n1" / "report.txt", "text")
    put(tmp_path / "n1" / "preflight.json", "{}")  # make selftest leaves it beside its report
    put(tmp_path / "none" / "preflight.json", "{}")
    found = list(
        find_files([tmp_path, files[0], Path("-"), tmp_path / "none"], lambda: [str(files[1]), "x.json"])
    )
    assert found == [*files, Path("x.json"), Bad(file=str(tmp_path / "none"), why=found[-1].why)]  # type: ignore[union-attr]
    assert "a folder without reports" in found[-1].why  # type: ignore[union-attr]


def test_a_report_without_a_host_is_called_by_its_file_or_folder(tmp_path: Path):
    """Reports of before the host was written; report.json says nothing itself."""
    older = {key: value for key, value in GOOD.items() if key not in ("host", "gpus", "versions", "started")}
    assert read_file(put(tmp_path / "node 9.json", older)).host == "node_9"
    assert read_file(put(tmp_path / "node10" / "report.json", older)).host == "node10"


def of(host: str, started: str, *uuids: str, file: str = "") -> HostReport:
    return HostReport(
        host=host, file=file or started, started=started, verdict=Status.PASS, uuids=frozenset(uuids)
    )


def test_the_newest_report_of_a_host_wins_and_the_others_are_told():
    """By when they began, not by the order of the files."""
    reports = [
        of("a", "2026-01-02", "u1"),
        of("a", "2026-01-03", "u1", "u2"),
        of("a", "2026-01-01"),
        of("b", ""),
    ]
    hosts, replaced = newest(reports)
    assert [(each.host, each.started) for each in hosts] == [("a", "2026-01-03"), ("b", "")]
    assert [(each.report.started, each.by.started) for each in replaced] == [
        ("2026-01-02", "2026-01-03"),
        ("2026-01-01", "2026-01-03"),
    ]


def test_two_hosts_of_one_name_are_both_kept():
    """Containers are often called alike; their GPUs tell them apart."""
    hosts, replaced = newest([of("vm", "2", "u1", file="r/a.json"), of("vm", "1", "u2", file="r/b.json")])
    assert [each.host for each in hosts] == ["vm", "vm(b)"]
    assert replaced == []


# Who counts: (file, verdict, what was chosen, device), the oldest first; then the file that counts.
PART = Selection(only=("torch.build",))
OTHER_PART = Selection(skip=("gpu.pcie",))
COUNTS: list[tuple[str, list[tuple[str, Status, Selection, str]], str]] = [
    ("a part never replaces", [("a", Status.FAIL, Selection(), "gpu"), ("b", Status.PASS, PART, "gpu")], "a"),
    ("nor does --skip", [("a", Status.FAIL, Selection(), "gpu"), ("b", Status.PASS, OTHER_PART, "gpu")], "a"),
    (
        "nor one without the GPU",
        [("a", Status.FAIL, Selection(), "gpu"), ("b", Status.PASS, Selection(), "cpu")],
        "a",
    ),
    (
        "a newer whole one does",
        [("a", Status.FAIL, Selection(), "gpu"), ("b", Status.PASS, Selection(), "gpu")],
        "b",
    ),
    ("over a part too", [("a", Status.FAIL, PART, "gpu"), ("b", Status.PASS, Selection(), "gpu")], "b"),
    (
        "a part may show a fault",
        [("a", Status.PASS, Selection(), "gpu"), ("b", Status.FAIL, PART, "gpu")],
        "b",
    ),
    (
        "which another part does not hide",
        [
            ("a", Status.PASS, Selection(), "gpu"),
            ("b", Status.FAIL, PART, "gpu"),
            ("c", Status.PASS, OTHER_PART, "gpu"),
        ],
        "b",
    ),
    (
        "but the same part again does",
        [
            ("a", Status.PASS, Selection(), "gpu"),
            ("b", Status.FAIL, PART, "gpu"),
            ("c", Status.PASS, PART, "gpu"),
        ],
        "a",
    ),
    (
        "of parts alone the worst",
        [("a", Status.FAIL, PART, "gpu"), ("b", Status.PASS, OTHER_PART, "gpu")],
        "a",
    ),
    (
        "of good parts the newest",
        [("a", Status.PASS, PART, "gpu"), ("b", Status.PASS, OTHER_PART, "gpu")],
        "b",
    ),
]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("reports", "counts"), [case[1:] for case in COUNTS], ids=[case[0] for case in COUNTS]
)
def test_a_part_of_a_self_test_hides_no_whole_one(
    reports: list[tuple[str, Status, Selection, str]], counts: str, backwards: bool
):
    """Whichever is read first; every other one is told with the reason."""
    made = [
        replace(of("n7", f"2026-01-0{at}", file=file), verdict=verdict, selection=selection, device=device)
        for at, (file, verdict, selection, device) in enumerate(reports, 1)
    ]
    (host,), others = newest(made[::-1] if backwards else made)
    assert host.file == counts
    assert {each.report.file for each in others} == {file for file, *_ in reports} - {counts}
    assert all(each.by is host and each.report.file in each.why and counts in each.why for each in others)


def test_what_was_chosen_is_read():
    """--only and --skip; of reports that do not tell it, what they say to have left out."""
    chosen = {**GOOD, "selection": {"only": ["gpu.ecc"], "skip": []}}
    assert report_of(chosen, Path("x.json")).selection == Selection(only=("gpu.ecc",))
    older = without("selection")(GOOD)
    assert isinstance(older, dict)
    assert not report_of(older, Path("x.json")).selection
    left = {**GOOD["results"][0], "status": "skip", "cause_id": "left_out"}
    older = {**older, "results": [left, *older["results"][1:]]}
    assert report_of(older, Path("x.json")).selection == Selection(skip=(left["id"],))
