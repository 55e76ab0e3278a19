"""Stopping in the middle: what was found stays, what was not reached is unknown, and nothing passes by it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import GOOD_STEPS, child_answer, good
from torchtap.selftest.facts import StepState
from torchtap.selftest.interrupt import interruptible
from torchtap.selftest.probe import read_lines
from torchtap.selftest.runner import judge_all, run
from torchtap.selftest.status import Level, Status, worst

FULL = tuple(check for check in CHECKS if Level.FULL.includes(check.level))


@pytest.mark.parametrize("last", ["", *GOOD_STEPS])
def test_wherever_it_is_stopped_only_what_was_found_is_judged(last: str):
    """Before nvidia-smi answered, and in every step: nothing passes that does not in the whole, the rest is unknown."""
    names = list(GOOD_STEPS)
    done = {name: GOOD_STEPS[name] for name in names[: names.index(last)]} if last else {}
    answer = replace(child_answer(done, dies_in=last, rc=None), timed_out=False, stopped=True)
    facts = replace(good(), interrupted=True, child=read_lines(answer) if last else None)
    if not last:
        facts = replace(facts, smi=None)
    assert not last or facts.child is None or facts.child.step(last).state is StepState.STOPPED
    results = judge_all(FULL, facts)
    for result in results:
        assert result.status in (Status.PASS, Status.SKIP) or result.cause_id == "interrupted", result
    assert worst(result.status for result in results) is Status.UNKNOWN
    passing = {result.id for result in results if result.status is Status.PASS}
    assert passing <= {result.id for result in judge_all(FULL, good()) if result.status is Status.PASS}
    assert not passing & (GOOD_STEPS.keys() - done.keys())  # a check that is named like its step


def test_a_run_that_is_stopped_at_once_proves_nothing():
    """Neither nvidia-smi nor the test process is begun: what the host gives a process is all that is known."""
    report = run("cpu", stop=lambda: True)
    assert {result.id for result in report.results if result.status is Status.PASS} <= {
        "host.shm",
        "host.limits",
    }
    assert {each.cause_id for each in report.results if not each.id.startswith("host.")} == {
        *("interrupted", "needs", "by_design")
    }
    assert (report.verdict, report.exit_code) == (Status.UNKNOWN, 1)


def test_a_signal_is_noted_and_the_handlers_come_back():
    """Also one that is ignored stays ignored: nohup."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            assert not interrupt()
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupt()
            assert interrupt.exit_code == 143
            os.kill(os.getpid(), signal.SIGHUP)  # after another one it is no impatience
            assert interrupt.exit_code == 143
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
