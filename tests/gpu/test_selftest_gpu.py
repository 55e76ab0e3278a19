"""The self-test on a real GPU. Skipped where there is none; figures are printed with -s."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from torchtap import selftest
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.report import draw
from torchtap.selftest.result import Report
from torchtap.selftest.status import Level, Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not list(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists(), reason="gpu"
    ),
]


@pytest.fixture(scope="module")
def report() -> Report:
    """One run for all tests."""
    report = selftest.run("gpu")
    draw(report, Console(highlight=False), verbose=True)
    return report


def test_a_working_gpu_is_good(report: Report):
    """Pass or warn; a failure is shown with its cause."""
    bad = [(each.id, each.cause) for each in report.results if each.status in (Status.FAIL, Status.UNKNOWN)]
    assert bad == []
    assert report.exit_code == 0


def test_every_check_is_judged_on_a_real_gpu(report: Report):
    """Only what this board does not report may be skipped."""
    assert [result.id for result in report.results] == [
        check.id for check in CHECKS if check.level is Level.QUICK
    ]
    skipped = {result.id: result.cause_id for result in report.results if result.status is Status.SKIP}
    assert set(skipped.values()) <= {"not_reported", "not_applicable"}


def test_the_gpu_is_no_simulation(report: Report):
    """The marker is not in the real libcuda."""
    assert {result.id: result.status for result in report.results}["gpu.simulated"] is Status.PASS


def test_numbers_are_compared_on_every_gpu(report: Report):
    """Each computing check compared thousands of values, and none was wrong."""
    by_id = {result.id: result for result in report.results}
    for name in ("gpu.matmul", "gpu.cudnn", "gpu.rnn"):
        assert by_id[name].values["wrong"] == 0
        checked = by_id[name].values["checked"]
        assert isinstance(checked, int)
        assert checked > 8000


def test_torch_sees_what_nvidia_smi_lists(report: Report):
    """The same GPUs by name."""
    by_id = {result.id: result for result in report.results}
    assert re.match(r"\d+ GPUs?: ", by_id["driver.smi"].seen)
    assert by_id["torch.cuda"].values["usable"] == by_id["torch.cuda"].values["listed"]


def test_it_takes_at_most_fifteen_seconds(report: Report):
    """The hard limit; the aim is eight."""
    assert report.seconds <= 15


# -- Level full -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def full() -> Report:
    """One run of the level full, with its figures: `pytest -m gpu -s tests/gpu/test_selftest_gpu.py`."""
    report = selftest.run("gpu", level="full")
    draw(report, Console(highlight=False), verbose=True)
    for result in report.results:
        for record in result.values.get("measured", ()):  # type: ignore[attr-defined]
            print(result.id, record)  # noqa: T201
    return report


def test_a_working_gpu_is_good_at_level_full(full: Report):
    """A rate below its reference, or below its equals', would be seen here."""
    bad = [(each.id, each.cause) for each in full.results if each.status in (Status.FAIL, Status.UNKNOWN)]
    assert bad == []


def test_only_what_cannot_be_known_is_skipped_at_level_full(full: Report):
    """One GPU has no equals, a kernel log may be closed, a GPU may have no reference; nothing else is missing."""
    assert {result.id for result in full.results} == {
        check.id for check in CHECKS if Level.FULL.includes(check.level)
    }
    skipped = {result.id: result.cause_id for result in full.results if result.status is Status.SKIP}
    assert set(skipped.values()) <= {
        *("not_reported", "not_applicable", "not_permitted", "no_reference", "log_closed")
    }, skipped


def test_everything_that_measures_has_a_record_of_every_gpu(full: Report):
    """What the table of a fleet and Prometheus read."""
    by_id = {result.id: result for result in full.results}
    count = by_id["torch.cuda"].values["usable"]
    for name in ("gpu.memory", "gpu.bandwidth", "gpu.transfer", "gpu.speed"):
        measured = by_id[name].values["measured"]
        assert isinstance(measured, list), name
        assert len({record["gpu"] for record in measured}) == count, name
        assert all(record["value"] > 0 for record in measured), name


def test_level_full_takes_minutes(full: Report):
    """On one GPU; eight take longer, one after another."""
    count = {result.id: result for result in full.results}["torch.cuda"].values["usable"]
    assert isinstance(count, int)
    assert full.seconds <= 120 + 120 * count
