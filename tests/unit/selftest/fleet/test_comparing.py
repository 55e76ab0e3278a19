"""Groups, slow GPUs, drift, the verdict over a fleet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from torchtap.selftest.fleet.comparing import Merged, host_list, merge
from torchtap.selftest.fleet.examples import example
from torchtap.selftest.fleet.reading import Bad, HostReport, Measure
from torchtap.selftest.result import Selection
from torchtap.selftest.status import Status


def host(
    name: str, verdict: Status = Status.PASS, *, speeds: Sequence[float] = (), **more: Any
) -> HostReport:
    unit = more.pop("unit", "GB/s")
    measures = [
        Measure(check="gpu.bandwidth", what="", gpu=at, name="NVIDIA H200", value=speed, unit=unit)
        for at, speed in enumerate(speeds)
    ]
    return HostReport(
        host=name,
        file=f"{name}.json",
        started="",
        verdict=verdict,
        measured=tuple(measures),
        **{"versions": {}, **more},
    )


def test_equal_hosts_stand_together_the_worst_first():
    """By verdict, first cause and GPUs; of each verdict the largest group first."""
    failed: dict[str, Any] = {"check": "gpu.ecc", "cause_id": "ecc_uncorrected"}
    reports = [
        *(host(f"n{at}", gpus=("A", "A")) for at in (1, 10, 9)),
        host("n2", Status.FAIL, **failed),
        host("n3", Status.WARN, check="gpu.pcie", cause_id="pcie_narrow"),
        *(host(f"n{at}", Status.FAIL, check="gpu.state", cause_id="gpu_lost") for at in (4, 5)),
        host("n6", Status.UNKNOWN),
        host("n7", gpus=("A",)),
    ]
    groups = [(each.verdict.value, each.cause_id, each.hosts) for each in merge(reports).groups]
    assert groups == [
        ("fail", "gpu_lost", ("n4", "n5")),
        ("fail", "ecc_uncorrected", ("n2",)),
        ("unknown", None, ("n6",)),
        ("warn", "pcie_narrow", ("n3",)),
        ("pass", None, ("n1", "n9", "n10")),
        ("pass", None, ("n7",)),
    ]


@pytest.mark.parametrize(
    ("speed", "status"),
    [
        (130.0, None),
        (91.0, None),
        (90.0, None),
        (89.9, Status.WARN),
        (75.0, Status.WARN),
        (74.9, Status.FAIL),
        (0.0, Status.FAIL),
    ],
)
def test_a_gpu_is_compared_with_the_median_of_its_equals(speed: float, status: Status | None):
    """More than a tenth below warns, more than a quarter fails; faster is no fault."""
    merged = merge([host("a", speeds=(100.0, 100.0)), host("b", speeds=(100.0, speed))])
    assert [each.status for each in merged.slow] == ([] if status is None else [status])
    assert merged.verdict is (status or Status.PASS)
    for slow in merged.slow:
        assert (slow.host, slow.measure.gpu, slow.median, slow.equals) == ("b", 1, 100.0, 4)


def test_only_rates_of_equal_gpus_are_compared_and_only_where_a_median_says_something():
    """Degrees and watts are no rates; of two GPUs neither can be the odd one; another name is no equal."""
    assert merge([host("a", speeds=(40.0, 40.0, 90.0, 10.0), unit="C")]).slow == ()
    assert merge([host("a", speeds=(100.0, 10.0))]).slow == ()
    other = Measure(check="gpu.bandwidth", what="", gpu=0, name="Tesla T4", value=10.0, unit="GB/s")
    assert (
        merge(
            [
                host("a", speeds=(100.0,) * 3),
                HostReport(
                    host="b", file="", started="", verdict=Status.PASS, versions={}, measured=(other,)
                ),
            ]
        ).slow
        == ()
    )
    assert merge([host("a", speeds=(0.0,) * 3)]).slow == ()


def test_a_rate_to_another_gpu_is_compared_with_the_same_pair_elsewhere():
    """GPUs behind one switch are faster to each other than across; on every host alike."""

    def pairs(name: str, far: float) -> HostReport:
        rates = {(0, 1): 50.0, (2, 1): far}
        measures = [
            Measure(check="gpu.peers", what=f"to GPU {to}", gpu=gpu, name="A", value=rate, unit="GB/s")
            for (gpu, to), rate in rates.items()
        ]
        return HostReport(
            host=name, file="", started="", verdict=Status.PASS, versions={}, measured=tuple(measures)
        )

    assert merge([pairs("a", 20.0), pairs("b", 20.0), pairs("c", 20.0)]).slow == ()
    (slow,) = merge([pairs("a", 20.0), pairs("b", 20.0), pairs("c", 10.0)]).slow
    assert (slow.host, slow.measure.gpu, slow.equals) == ("c", 2, 3)


def test_versions_that_differ_from_the_majority_are_told_with_their_hosts():
    """Where no value is the most frequent, all are told; what is not known does not differ."""
    old, new = {"driver": "580.1"}, {"driver": "590.1"}
    merged = merge([host("a", versions=new), host("b", versions=new), host("c", versions=old), host("d")])
    (drift,) = merged.drift
    assert (drift.what, drift.most, drift.hosts, drift.others) == ("driver", "590.1", 2, {"580.1": ("c",)})
    assert merged.verdict is Status.WARN
    (tie,) = merge([host("a", versions=new), host("b", versions=old)]).drift
    assert (tie.most, tie.others) == (None, {"590.1": ("a",), "580.1": ("b",)})
    (gpus,) = merge(
        [host("a", gpus=("A",) * 8), host("b", gpus=("A",) * 8), host("c", gpus=("A",) * 7)]
    ).drift
    assert (gpus.what, gpus.most, gpus.others) == ("gpus", "8 x A", {"7 x A": ("c",)})


@pytest.mark.parametrize(
    ("merged", "verdict", "code"),
    [
        (merge([host("a")]), "pass", 0),
        (merge([host("a"), host("b", Status.WARN)]), "warn", 0),
        (merge([host("a"), host("b", Status.FAIL)]), "fail", 1),
        (merge([host("a"), host("b", Status.UNKNOWN)]), "unknown", 1),
        (merge([host("a")], [Bad(file="b.json", why="empty")]), "unknown", 1),
        (merge([host("a", Status.FAIL)], [Bad(file="b.json", why="empty")]), "fail", 1),
        (merge([], [Bad(file="b.json", why="empty")]), "unknown", 2),
        (merge([]), "unknown", 2),
    ],
)
def test_a_file_that_cannot_be_read_leaves_its_host_unknown(merged: Merged, verdict: str, code: int):
    """It never counts as good; without any report nothing could be merged."""
    assert (merged.verdict.value, merged.exit_code) == (verdict, code)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["a"], "a"),
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n8", "n9", "n10", "n11"], "n[8-9],n[10-11]"),
        (["n001", "n002", "x", "n003"], "n[001-002],x,n003"),
        (["vm", "vm(b)"], "vm,vm(b)"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
    ],
)
def test_names_are_written_as_slurm_reads_them(names: list[str], short: str):
    """Nothing is lost: opened again it is the same names."""
    assert host_list(names) == short
    opened = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", short):
        prefix, _, inside = part.rstrip("]").partition("[")
        for run in inside.split(",") if inside else [""]:
            first, _, last = run.partition("-")
            opened += (
                [f"{prefix}{at:0{len(first)}d}" for at in range(int(first), int(last or first) + 1)]
                if run
                else [prefix]
            )
    assert opened == names


def test_the_json_of_a_merge_has_everything_in_a_stable_order():
    """Its own keys; every host with its file."""
    written = example().to_dict()
    assert list(written) == [
        *(
            "schema",
            "merged",
            "torchtap",
            "verdict",
            "counts",
            "groups",
            "slow",
            "drift",
            "replaced",
            "bad",
            "hosts",
        )
    ]
    assert (written["merged"], written["verdict"]) == (60, "fail")
    assert written["counts"] == {"pass": 57, "warn": 2, "fail": 1, "unknown": 0}
    assert len(written["hosts"]) == 60  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (Status.PASS, Status.UNKNOWN),
        (Status.WARN, Status.UNKNOWN),
        (Status.UNKNOWN, Status.UNKNOWN),
        (Status.FAIL, Status.FAIL),
    ],
)
def test_a_host_with_a_part_of_a_self_test_only_has_not_passed(verdict: Status, shown: Status):
    """A part may show a fault, and proves no host."""
    merged = merge([host("a", verdict, selection=Selection(only=("torch.build",)))])
    assert (merged.verdict, merged.exit_code, merged.counts[shown]) == (shown, 1, 1)
    if verdict in (Status.PASS, Status.WARN):
        assert merged.groups[0].cause_id == "part_only"
        assert "--only torch.build" in str(merged.groups[0].cause)


def test_a_quick_report_replaces_a_full_one_not_in_silence():
    """The level of both is told where it differs."""
    old = replace(host("a", Status.FAIL, level="full"), started="2026-01-01T00:00:00Z", file="a.json")
    new = replace(host("a"), started="2026-01-02T00:00:00Z", file="b.json")
    (each,) = merge([old, new]).replaced
    assert each.why == "a.json (level full) is older than b.json (level quick)"
