"""What it means that the test process ended in the middle of a step: crashed, hung, or left.

Only a step that touches the driver speaks of the GPU. Before the first of them, and where there is no GPU by design,
it is the machine or its packages.
"""

from __future__ import annotations

import signal

from torchtap.selftest.check import Judged, failed
from torchtap.selftest.child.steps import STEPS
from torchtap.selftest.facts import START, Facts, Step, StepState
from torchtap.selftest.process import Answer
from torchtap.selftest.status import Device
from torchtap.selftest.words import waited

# No process brings these upon itself: the out-of-memory killer, a job's time limit, a person.
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU})
MAX_WORDS = 160  # characters of its last line in a cause


def judge_end(step: Step, answer: Answer, facts: Facts, name: str) -> Judged | None:
    """What the end of the process in this step means; None where it did not end in it. `name`: the step in words."""
    at = "at its start" if step.name == START else f"in {name}"
    words = last_words(answer)
    values = {"step": name, "at": at, "waited_s": waited(step.seconds), "rc": answer.rc}
    driver = _touches_driver(step, facts)
    if step.state is StepState.CRASHED:
        number = -(answer.rc or 0)
        ended = signal_name(answer.rc or 0)
        cause = "child_crashed" if driver else "torch_crashed"
        cause = "child_killed" if number in FROM_OUTSIDE else cause
        return failed(cause, _with(f"{ended} {at}", words), **values, signal=ended)
    if step.state is StepState.HUNG:
        pid = answer.stuck_pid
        stuck = f"; pid {pid} is stuck in the kernel and could not be ended" if pid is not None else ""
        seen = f"no answer in {values['waited_s']} s, {at}"
        return failed("child_hung" if driver else "child_slow", seen, **values, stuck=stuck)
    if step.state is not StepState.SILENT:
        return None
    if answer.not_started:
        python = answer.command[0]
        return failed(
            "python_broken", f"{python}: {answer.not_started}", python=python, error=answer.not_started
        )
    cause = "child_ended" if words else "child_silent"
    return failed(cause, f"{answer.ending} {at}", **values, how=answer.ending, words=words)


def last_words(answer: Answer) -> str:
    """The last line of its standard error, shortened; "" where it said nothing.

    >>> last_words(Answer(command=(), errors="Traceback\\nImportError: no such file\\n\\n"))
    'ImportError: no such file'
    """
    lines = [line.strip() for line in answer.errors.splitlines() if line.strip()]
    return lines[-1][:MAX_WORDS] if lines else ""


def signal_name(rc: int) -> str:
    """`-6` as a person says it.

    >>> signal_name(-6), signal_name(-999)
    ('SIGABRT', 'signal 999')
    """
    try:
        return signal.Signals(-rc).name
    except ValueError:
        return f"signal {-rc}"


def _with(seen: str, words: str) -> str:
    return f"{seen}; last line: {words}" if words else seen


def _touches_driver(step: Step, facts: Facts) -> bool:
    plan = STEPS.get(step.name)
    return facts.device is Device.GPU and plan is not None and (plan.asks_driver or plan.on_gpu)
