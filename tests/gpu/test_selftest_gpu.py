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
    assert set(skipped.values()) <= {"not_reported"}


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
