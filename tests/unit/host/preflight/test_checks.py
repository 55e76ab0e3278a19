"""Each kind of host gets its statuses and its one first cause; nothing unreadable passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host import proc
from host.gpu import HostGpus, Said, read_csv
from host.preflight.causes import CAUSES, cause_of
from host.preflight.checks import CHECKS, judge_all, told
from host.preflight.facts import Facts
from host.show import Problem
from tests.unit.host.preflight.hosts import H200, HOSTS, NVIDIA, ONE, PLAIN, QUERY, Row, engine, facts
from torchtap.selftest.status import Status

QUIET = (Status.PASS, Status.SKIP)


def said_of(found: Facts) -> tuple[str, ...]:
    results = judge_all(found)
    return tuple(
        f"{each.id} {each.status.value} {each.cause_id}" for each in results if each.status not in QUIET
    )


@pytest.mark.parametrize("row", HOSTS, ids=lambda row: row.name)
def test_a_host_is_judged(row: Row) -> None:
    assert said_of(row.facts) == row.says


def test_a_good_gpu_host_passes_what_is_asked_of_one() -> None:
    seen = {
        each.id: each.seen
        for each in judge_all(facts(engine(NVIDIA), H200, ONE))
        if each.status is Status.PASS
    }
    assert seen["gpu.pci"] == "1 NVIDIA GPU: 0000:01:00.0 (nvidia)"
    assert seen["driver.version"] == "590.48.01, new enough for cu130, cu128, cu126"
    assert seen["gpu.variant"] == "cu130 for NVIDIA H200 (9.0)"
    assert seen["engine.gpu"] == "by its runtime nvidia"
    assert seen["up.choice"] == "mode gpu, variant cu130"


def test_a_host_without_gpu_says_that_the_cpu_is_used() -> None:
    skips = {each.id: each.seen for each in judge_all(facts(engine())) if each.status is Status.SKIP}
    for check in ("gpu.pci", "driver.smi", "gpu.variant", "engine.gpu"):
        assert skips[check] == "no NVIDIA GPU here: make up uses the CPU"


def test_one_fault_is_told_once_and_what_needs_it_is_skipped() -> None:
    row = next(row for row in HOSTS if row.name == "mismatch")
    results = {each.id: each for each in judge_all(row.facts)}
    for check in ("gpu.count", "driver.version", "gpu.variant"):
        assert (results[check].status, results[check].seen) == (Status.SKIP, "needs driver.smi")


def test_the_self_test_is_told_nothing_of_ports_and_keys() -> None:
    row = next(row for row in HOSTS if row.name == "port_taken")
    ids = {each.id for each in judge_all(row.facts, for_start=False)}
    assert not ids & {"port.jupyter", "port.ssh", "ssh.key", "files.compose"}


def test_every_cause_is_reached_and_belongs_to_its_check() -> None:
    reached = set()
    for row in HOSTS:
        for line in row.says:
            check_id, _, cause = line.split()
            reached.add(cause)
            allowed = next(check for check in CHECKS if check.id == check_id).causes
            assert cause in allowed or check_id == "driver.smi" or cause == "unreadable", line
    assert set(CAUSES) - reached == set()


@pytest.mark.parametrize("row", HOSTS, ids=lambda row: row.name)
def test_every_slot_is_filled_and_there_is_something_to_do(row: Row) -> None:
    for each in judge_all(row.facts):
        if each.status in QUIET:
            continue
        assert each.cause, each
        assert each.remedy, each
        assert "?" not in each.cause + each.remedy
        assert "{" not in each.cause + each.remedy
        assert each.remedy.count("\n") <= 1


def test_ids_are_unique_and_needs_come_before() -> None:
    ids = [check.id for check in CHECKS]
    assert len({*ids}) == len(ids)
    for number, check in enumerate(CHECKS):
        assert {*check.needs} <= {*ids[:number]}
        assert all(cause_of(cause).says for cause in check.causes)


def test_a_problem_becomes_sentence_advice_and_line_to_paste() -> None:
    problem = Problem(
        "it is so",
        "Start it:  sudo systemctl start docker     (Docker Desktop: start the application)",
        "Or go on without Docker:  make up MODE=local",
    )
    assert told(problem) == {
        "what": "it is so",
        "do": "Start it (Docker Desktop: start the application). Or go on without Docker: make up MODE=local",
        "paste": "sudo systemctl start docker",
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
READ = (
    "ServerVersion",
    "OperatingSystem",
    "SecurityOptions",
    "CgroupDriver",
    "CgroupVersion",
    "ClientInfo",
    "Name",
)


@given(st.text(max_size=200), st.sampled_from([0, 1, 2, 9, 255]))
def test_garbage_from_nvidia_smi_never_passes(text: str, rc: int) -> None:
    driver, gpus = read_csv(text)
    found = HostGpus(True, driver, gpus, said=Said(QUERY, proc.Done(rc, text)))
    results = {each.id: each.status for each in judge_all(facts(engine(NVIDIA), found, ONE))}
    assert results["driver.smi"] in {Status.FAIL, Status.UNKNOWN}
    assert results["gpu.variant"] is Status.SKIP


@given(st.sampled_from(READ), JSON)
def test_garbage_in_docker_info_never_raises_and_is_no_version(key: str, value: Any) -> None:
    of = engine({**NVIDIA, key: value})
    results = {each.id: each for each in judge_all(facts(of, H200, ONE))}
    if key == "ServerVersion" and not str(value)[:1].isdecimal():
        assert results["engine.docker"].status is not Status.PASS
    if key == "CgroupDriver" and not isinstance(value, str):
        assert results["engine.cgroups"].status is Status.UNKNOWN


def test_a_gpu_that_is_missing_is_not_missed_where_the_cpu_is_asked_for() -> None:
    found = facts(engine(PLAIN), H200, ONE, env={"MODE": "cpu"})
    assert said_of(found) == ()
    assert said_of(replace(found, gpus=HostGpus())) == ()
