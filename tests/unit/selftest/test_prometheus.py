"""Metrics by the rules of Prometheus' text format, read by a strict parser of this file's own."""

from __future__ import annotations

import re

import pytest

from tests.unit.selftest.reports import EXAMPLES, IDS, REPORTS, nasty
from torchtap.selftest.prometheus import UNITS, to_prometheus
from torchtap.selftest.result import Report, Result, measured
from torchtap.selftest.status import Status
from torchtap.selftest.words import printable

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
NUMBER = re.compile(r"[-+]?(\d+(\.\d+)?([eE][-+]?\d+)?|Inf)|NaN")
BASE_UNITS = ("seconds", "bytes", "bytes_per_second", "flop_per_second", "celsius", "watts", "hertz", "ratio")
Sample = tuple[str, dict[str, str], float]


def parse(text: str) -> list[Sample]:
    """Every sample. Raises `AssertionError` for what node_exporter or promtool would refuse."""
    assert text.endswith("\n")
    assert "\r" not in text
    samples: list[Sample] = []
    described: dict[str, set[str]] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            found = re.fullmatch(rf"# (HELP|TYPE) ({NAME.pattern}) (.+)", line)
            assert found, line
            kind, name, rest = found.groups()
            if kind == "HELP":
                assert name not in described, f"{name} stands in two blocks"
                described[name], current = set(), name
                assert rest.endswith(".")
            assert name == current
            assert kind not in described[name]
            described[name].add(kind)
            assert kind == "HELP" or rest == "gauge"
            continue
        found = re.fullmatch(rf"({NAME.pattern})(?:\{{(.*)\}})? ({NUMBER.pattern})", line)
        assert found, line
        name, inside, value = found[1], found[2], found[3]
        assert name == current, f"{name} outside its block"
        assert described[name] == {"HELP", "TYPE"}
        labels: dict[str, str] = {}
        at = 0
        while inside and at < len(inside):
            pair = LABEL.match(inside, at)
            assert pair, line
            assert pair[1] not in labels
            labels[pair[1]] = re.sub(r"\\(.)", lambda c: {"n": "\n"}.get(c[1], c[1]), pair[2])
            at = pair.end()
        samples.append((name, labels, float(value)))
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
    assert len(set(keys)) == len(keys), "a series twice"
    return samples


@pytest.mark.parametrize("report", REPORTS, ids=IDS)
def test_every_report_is_in_the_text_format(report: Report):
    """Names, labels, numbers; one block a name; no series twice; base units in the names."""
    samples = parse(to_prometheus(report))
    assert all(name.startswith("torchtap_selftest_") for name, _, _ in samples)
    statuses = {
        labels["check"]: labels["status"] for name, labels, _ in samples if name.endswith("_check_status")
    }
    assert statuses == {result.id: result.status.value for result in report.results}
    by_name = {name: value for name, labels, value in samples if not labels}
    assert by_name["torchtap_selftest_ready"] == (report.exit_code == 0)
    assert by_name["torchtap_selftest_duration_seconds"] == report.seconds
    assert by_name["torchtap_selftest_timestamp_seconds"] == 1796060897


def test_a_verdict_names_its_first_cause():
    """And the remedy, so that an alert can say what to do."""
    (labels,) = [
        each for name, each, _ in parse(to_prometheus(EXAMPLES["a lost GPU"])) if name.endswith("_verdict")
    ]
    assert labels == {"verdict": "fail", "check": "gpu.state", "cause": "gpu_lost", "remedy": "reboot_host"}


def test_measured_values_come_in_base_units_with_their_gpu():
    """GB/s become bytes per second; the uuid tells which card it was."""
    values = {
        "measured": [{"gpu": 0, "name": "NVIDIA H200", "what": "bf16", "value": 770.5, "unit": "TFLOP/s"}]
    }
    result = Result(id="gpu.speed", status=Status.PASS, seen="", values=values)
    report = Report(
        results=(result,), device="gpu", seconds=1, torchtap="0", identity=EXAMPLES["all is well"].identity
    )
    (sample,) = [each for each in parse(to_prometheus(report)) if "measured" in each[0]]
    uuid = "GPU-11111111-2222-3333-4444-555555555500"
    assert sample == (
        "torchtap_selftest_measured_flop_per_second",
        {"check": "gpu.speed", "what": "bf16", "gpu": "0", "uuid": uuid},
        770.5e12,
    )


@pytest.mark.parametrize(
    ("value", "unit", "name", "base"),
    [
        (4312.0, "GB/s", "bytes_per_second", 4.312e12),
        (770.5, "TFLOP/s", "flop_per_second", 7.705e14),
        (68, "C", "celsius", 68),
        (670, "W", "watts", 670),
        (1830, "MHz", "hertz", 1.83e9),
        (2, "MiB", "bytes", 2097152),
        (90, "%", "ratio", 0.9),
        (1.5, "ms", "seconds", 0.0015),
    ],
)
def test_a_unit_becomes_its_base_unit(value: float, unit: str, name: str, base: float):
    """By the factor that belongs to it."""
    values = {"measured": [{"gpu": 0, "value": value, "unit": unit}]}
    result = Result(id="x.y", status=Status.PASS, seen="", values=values)
    samples = parse(to_prometheus(Report(results=(result,), device="gpu", seconds=1, torchtap="0")))
    (found,) = [each for each in samples if "_measured_" in each[0]]
    assert found[0] == f"torchtap_selftest_measured_{name}"
    assert found[2] == pytest.approx(base)


def test_every_unit_that_a_check_measures_in_is_in_the_table():
    """Of level burn, which has all of them."""
    units = {
        str(record["unit"]) for each in EXAMPLES["the level burn"].results for record in measured(each.values)
    }
    assert {"GB/s", "TFLOP/s", "C", "W", "MHz", "MiB"} <= units <= set(UNITS)


def test_a_unit_that_is_not_in_the_table_keeps_its_name_as_a_label():
    """Nothing that was measured is lost."""
    values = {"measured": [{"gpu": 0, "value": 3, "unit": "furlongs"}]}
    report = Report(
        results=(Result(id="gpu.x", status=Status.PASS, seen="", values=values),),
        device="gpu",
        seconds=1,
        torchtap="0",
    )
    samples = parse(to_prometheus(report))
    assert ("torchtap_selftest_measured", {"check": "gpu.x", "gpu": "0", "unit": "furlongs"}, 3.0) in samples
    assert {base for base, _ in UNITS.values()} == set(BASE_UNITS)


NO_NUMBERS: tuple[object, ...] = (float("nan"), float("inf"), None, [], "4")
BAD_RECORDS: list[object] = [
    *(None, "x", 3, [None], [{}], [{"gpu": 0}], [{"gpu": 0, "value": 4}]),
    [{"gpu": None, "value": 1, "unit": "s"}],
    *([{"gpu": 0, "value": value, "unit": "s"}] for value in NO_NUMBERS),
]


@pytest.mark.parametrize("records", BAD_RECORDS)
def test_records_that_are_not_whole_are_no_values(records: object):
    """A number that is none would spoil the whole file for its reader."""
    assert measured({"measured": records}) == []


def test_labels_are_escaped_and_come_back_as_they_were():
    """Quotes, backslashes and line ends; an empty label is left out."""
    infos = [labels for name, labels, _ in parse(to_prometheus(nasty())) if name.endswith("_gpu_info")]
    kept = "<a>&amp;]]> \"quoted\" 'it' back\\slash {x} | new\nline "
    assert kept in infos[0]["name"]
    assert printable(infos[0]["name"], keep="\n") == infos[0]["name"]
    assert infos[1] == {}
