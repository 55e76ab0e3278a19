"""The table of steps: complete, in an order that works, and data that can be loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchtap.selftest.checks import CHECKS
from torchtap.selftest.child.running import load
from torchtap.selftest.child.steps import STEPS, limit_of, still_possible, with_needed
from torchtap.selftest.status import Level


def test_steps_run_after_what_they_need():
    """Any selection is completed, in the order of the table."""
    order = list(STEPS)
    for name in STEPS:
        steps = with_needed([name])
        assert steps == sorted(steps, key=order.index)
        assert all(need in steps for step in steps for need in STEPS[step].after)
    assert with_needed([]) == []


def test_every_step_can_be_loaded_and_is_read_by_a_check():
    """No name that leads nowhere, no step that nobody looks at."""
    read = {read.removeprefix("child:").removeprefix("load:") for check in CHECKS for read in check.reads}
    for name, plan in STEPS.items():
        assert callable(load(plan)), name
        assert name in read, name


def test_a_step_needs_no_more_than_the_checks_that_read_it_allow():
    """A quick check reads quick steps only; what a step runs after is of no higher level than itself."""
    for check in CHECKS:
        for name in (read.removeprefix("child:") for read in check.reads if read.startswith("child:")):
            assert check.level.includes(STEPS[name].level), (check.id, name)
    for plan in STEPS.values():
        assert all(plan.level.includes(STEPS[name].level) for name in plan.after)
        assert all(plan.asks_driver or not STEPS[name].asks_driver for name in plan.after)
        assert plan.timeout_s > 0


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch):
    """Make this step one of level full."""

    def make(name: str, seconds: float = 200.0) -> None:
        plan = replace(STEPS[name], level=Level.FULL, timeout_s=seconds)
        monkeypatch.setitem(STEPS, name, plan)

    return make


def test_a_shorter_time_out_leaves_longer_steps_their_own(longer):
    """--timeout 5 is meant for the start-up; --timeout 600 for everything."""
    longer("gpu.rnn")
    assert [limit_of("gpu.rnn", asked) for asked in (None, 5, 600)] == [200, 200, 600]
    assert [limit_of("gpu.matmul", asked) for asked in (None, 5, 600)] == [60, 5, 600]


def test_after_a_longer_step_only_what_is_independent_and_safe_goes_on(longer):
    """Not what needs it; after a hang in the driver nothing that asks the driver; after a quick step nothing."""
    wanted = list(STEPS)
    ended = wanted[: wanted.index("gpu.matmul") + 1]
    assert still_possible(wanted, ended, "gpu.matmul", hung=False) == []
    longer("gpu.matmul")
    assert still_possible(wanted, ended, "gpu.matmul", hung=False)[:2] == ["gpu.cudnn", "gpu.rnn"]
    left = still_possible(wanted, ended, "gpu.matmul", hung=True)
    assert not any(STEPS[name].asks_driver for name in left)
    longer("torch.import")
    assert still_possible(wanted, ["torch.import"], "torch.import", hung=False) == [
        "nodes",
        "cuda.library",
        "cuda.init",
    ]
