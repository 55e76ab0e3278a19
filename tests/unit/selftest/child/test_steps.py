"""The table of steps: complete, in an order that works, and data that can be loaded."""

from __future__ import annotations

from torchtap.selftest.checks import CHECKS
from torchtap.selftest.child.running import load
from torchtap.selftest.child.steps import STEPS, with_needed


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
    read = {read.removeprefix("child:") for check in CHECKS for read in check.reads}
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
