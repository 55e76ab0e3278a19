"""Ends of the test process in words: whose fault it can be, what it said last, how long it was waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.selftest.scenarios import ended, left
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import good
from torchtap.selftest.facts import Facts, StepState
from torchtap.selftest.probe import read_lines
from torchtap.selftest.process import Answer
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Device


def first(facts: Facts) -> Result:
    return next(each for each in judge_all(CHECKS, facts) if each.status.value == "fail")


def at_start(**options: object) -> Facts:
    return replace(good(), child=read_lines(Answer(command=("python",), **options)))  # type: ignore[arg-type]


def test_a_short_time_out_is_said_with_its_length():
    """Never "0 s"; and not that a start answers."""
    said = first(at_start(timed_out=True, seconds=0.001))
    assert said.seen == "no answer in 0.001 s, at its start"
    assert said.cause == "the test process gave no answer in 0.001 s, at its start, which asks no GPU"
    assert first(at_start(timed_out=True, seconds=20.3)).seen == "no answer in 20 s, at its start"


@pytest.mark.parametrize(
    ("errors", "seen", "cause"),
    [
        (
            "",
            "exit code 2 at its start",
            "the test process ended too early at its start (exit code 2), without a word",
        ),
        (
            "warning\nIntel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so.\n\n",
            "exit code 2 at its start",
            "the test process ended too early at its start (exit code 2); its last words: "
            "Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so.",
        ),
    ],
)
def test_the_last_words_of_the_process_are_in_the_cause(errors: str, seen: str, cause: str):
    """Only where it said nothing is it without a word."""
    said = first(at_start(rc=2, errors=errors))
    assert (said.seen, said.cause) == (seen, cause)
    assert ("out-of-memory" in (said.remedy or "")) is not bool(errors)


def test_a_process_that_printed_too_much_has_no_exit_code():
    """It was ended for it."""
    said = first(at_start(rc=None, too_long=True))
    assert said.seen == "ended, because it printed more than 1 MiB at its start"
    assert "None" not in f"{said.cause}{said.remedy}"


@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize("rc", [-6, -4, -11])
def test_a_crash_before_any_gpu_was_asked_speaks_of_no_gpu(device: Device, rc: int):
    """With a GPU or without one by design."""
    said = first(replace(left("torch.import", Answer(command=("child",), rc=rc)), device=device))
    assert said.cause_id == "torch_crashed"
    assert said.remedy_id == "reinstall_torch"
    assert "reboot" not in (said.remedy or "")


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Answer(command=("child",), rc=-11), "torch_crashed"),
        (Answer(command=("child",), timed_out=True, seconds=60.0), "child_slow"),
    ],
)
def test_without_a_gpu_by_design_no_driver_is_blamed(answer: Answer, cause: str):
    """An LSTM on the CPU asks the driver only where there may be one."""
    facts = left("cpu.rnn", answer)
    assert first(facts).cause_id in ("child_crashed", "child_hung")
    assert first(replace(facts, device=Device.CPU)).cause_id == cause


@pytest.mark.parametrize(("rc", "name"), [(-9, "SIGKILL"), (-15, "SIGTERM"), (-1, "SIGHUP")])
def test_a_signal_from_outside_is_no_crash(rc: int, name: str):
    """Nobody sends it to itself: the out-of-memory killer, a time limit."""
    said = first(left("gpu.matmul", Answer(command=("child",), rc=rc)))
    assert said.cause == f"something else ended the test process in gpu.matmul, with {name}"


def test_a_crash_of_the_driver_still_speaks_of_the_driver():
    """With the last line that it wrote."""
    answer = Answer(command=("child",), rc=-6, errors="terminate called\nwhat():  CUDA error\n")
    said = first(ended("gpu.memory", StepState.CRASHED, answer))
    assert said.cause_id == "child_crashed"
    assert said.seen == "SIGABRT in gpu.memory (GPU 0); last line: what():  CUDA error"
