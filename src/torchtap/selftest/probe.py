"""Start the test process and read what it says, however it ends."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torchtap.selftest.child.steps import limit_of, still_possible, with_needed
from torchtap.selftest.facts import START, Child, Step, StepState
from torchtap.selftest.interpreter import users_python
from torchtap.selftest.process import Answer, ask

ROOT = str(Path(__file__).resolve().parents[2])
# Not -m: that would put the current folder first on the path, and a user's own random.py there would break the test.
# What PYTHONPATH says stays: it is part of the environment that is tested.
BOOT = f"""\
import sys
sys.path[:] = [path for path in sys.path if path]
if {ROOT!r} not in sys.path:
    sys.path.insert(0, {ROOT!r})
from torchtap.selftest.child.running import main
main(sys.argv[1:])
"""


def run_child(
    steps: Iterable[str],
    *,
    timeout_s: float | None = None,
    command: Sequence[str] = (),
    on_step: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    run: Callable[..., Answer] = ask,
) -> Child:
    """Run the steps in a process of their own. Each has its own time limit, or `timeout_s` (see `steps.limit_of`).

    The limit counts from its start, and again from each GPU that it comes to. Where a longer step ends the process, or
    takes CUDA away from it, what does not depend on it is tried in a new one. `on_step` is called with each step's
    name as it starts. `stop` says that the process is to be ended. Never raises for what the process does.
    """

    command = command or (users_python(), "-c", BOOT)

    def once(names: list[str]) -> Child:
        deadline = time.monotonic() + limit_of(START, timeout_s)

        def told(line: str) -> None:
            nonlocal deadline
            said = _parse(line)
            name, state = said.get("step"), said.get("state")
            if not isinstance(name, str) or state not in ("start", "where"):
                return
            deadline = time.monotonic() + limit_of(name, timeout_s)
            if on_step is not None and state == "start":
                on_step(name)

        answer = run([*command, *names], timeout_s=math.inf, on_line=told, until=lambda: deadline, stop=stop)
        return read_lines(answer)

    wanted = with_needed(steps)
    child = last = once(wanted)
    while not last.answer.stopped:
        broken = last.broken_step
        if broken is not None:
            wanted = still_possible(wanted, child.steps, broken.name, hung=broken.state is StepState.HUNG)
        else:  # it stopped by itself before the end, or there is nothing left
            wanted = [name for name in wanted if name not in child.steps] if last.finished else []
        if not wanted:
            break
        before = len(child.steps)
        last = once(wanted)
        # The first word counts: a step that a later process had to repeat keeps its first result.
        child = replace(child, steps={**child.steps, **last.steps, **child.steps})
        if len(child.steps) == before:  # nothing new came, and nothing ever will
            break
    return child


def read_lines(answer: Answer) -> Child:
    """The steps in what the process said. Lines that are none of its own are passed over; nothing is guessed.

    >>> said = '{"step": "torch.import", "state": "start"}\\n'
    >>> read_lines(Answer(command=(), text=said, rc=-6)).step("torch.import").state.value
    'crashed'
    """
    steps: dict[str, Step] = {}
    where: dict[str, str] = {}
    running, began = "", 0.0
    finished = False
    for line in answer.text.splitlines():
        said = _parse(line)
        name, state = said.get("step"), said.get("state")
        if state == "end":
            finished = True
        elif not isinstance(name, str):
            continue
        elif state == "start":
            running, began = name, _seconds(said.get("at"))
        elif state == "where":
            where[name], began = str(said.get("where", "")), _seconds(said.get("at")) or began
        elif (step := _step(name, said, where.get(name, ""))) is not None:
            steps[name] = step
            running = "" if running == name else running
    if not running and not finished and not steps:
        running = START  # not even the first line: Python itself, or torchtap, could not start
    if running:
        steps[running] = Step(
            name=running,
            state=_end_of(answer),
            where=where.get(running, ""),
            seconds=max(0.0, answer.seconds - began),
            end=answer,
        )
    return Child(steps=steps, answer=answer, finished=finished and not running)


def _parse(line: str) -> dict[str, object]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _step(name: str, said: dict[str, object], where: str) -> Step | None:
    try:
        state = StepState(said.get("state"))
    except ValueError:
        return None
    value, error = said.get("value"), said.get("error")
    if state not in (StepState.DONE, StepState.ERROR, StepState.LEFT_OUT):
        return None
    if state is StepState.DONE and not isinstance(value, dict):
        return None
    return Step(
        name=name,
        state=state,
        value=value if isinstance(value, dict) else {},
        error=error if isinstance(error, str) else "",
        where=where,
        seconds=_seconds(said.get("seconds")),
    )


def _seconds(said: object) -> float:
    return said if isinstance(said, float) and 0 <= said < 1e9 else 0.0


def _end_of(answer: Answer) -> StepState:
    if answer.stopped:
        return StepState.STOPPED
    if answer.timed_out:
        return StepState.HUNG
    if answer.rc is not None and answer.rc < 0:
        return StepState.CRASHED
    return StepState.SILENT
