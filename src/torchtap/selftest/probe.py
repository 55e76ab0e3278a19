"""Start the test process and read what it says, however it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torchtap.selftest.facts import START, Child, Step, StepState
from torchtap.selftest.interpreter import users_python
from torchtap.selftest.limits import CHILD_TIMEOUT_S
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
    timeout_s: float = CHILD_TIMEOUT_S,
    command: Sequence[str] = (),
    on_step: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    run: Callable[..., Answer] = ask,
) -> Child:
    """Run the steps in a process of their own, for at most `timeout_s` seconds.

    `on_step` is called with each step's name as it starts. `stop` says that the process is to be ended. Never raises
    for what the process does.
    """

    def told(line: str) -> None:
        name = _parse(line).get("step")
        if on_step is not None and isinstance(name, str) and _parse(line).get("state") == "start":
            on_step(name)

    command = command or (users_python(), "-c", BOOT)
    answer = run([*command, *steps], timeout_s=timeout_s, on_line=told, stop=stop)
    return read_lines(answer)


def read_lines(answer: Answer) -> Child:
    """The steps in what the process said. Lines that are none of its own are passed over; nothing is guessed.

    >>> said = '{"step": "torch.import", "state": "start"}\\n'
    >>> read_lines(Answer(command=(), text=said, rc=-6)).step("torch.import").state.value
    'crashed'
    """
    steps: dict[str, Step] = {}
    where: dict[str, str] = {}
    running: str | None = None
    finished = False
    for line in answer.text.splitlines():
        said = _parse(line)
        name, state = said.get("step"), said.get("state")
        if state == "end":
            finished = True
        elif not isinstance(name, str):
            continue
        elif state == "start":
            running = name
        elif state == "where":
            where[name] = str(said.get("where", ""))
        elif (step := _step(name, said, where.get(name, ""))) is not None:
            steps[name] = step
            running = None if running == name else running
    if running is None and not finished and not steps:
        running = START  # not even the first line: Python itself, or torchtap, could not start
    if running is not None:
        steps[running] = Step(name=running, state=_end_of(answer), where=where.get(running, ""))
    return Child(steps=steps, answer=answer, finished=finished and running is None)


def signal_name(rc: int) -> str:
    """`-6` as a person says it.

    >>> signal_name(-6), signal_name(-999)
    ('SIGABRT', 'signal 999')
    """
    try:
        return signal.Signals(-rc).name
    except ValueError:
        return f"signal {-rc}"


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
    value, error, seconds = said.get("value"), said.get("error"), said.get("seconds")
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
        seconds=seconds if isinstance(seconds, float) and 0 <= seconds < 1e9 else 0.0,
    )


def _end_of(answer: Answer) -> StepState:
    if answer.stopped:
        return StepState.STOPPED
    if answer.timed_out:
        return StepState.HUNG
    if answer.rc is not None and answer.rc < 0:
        return StepState.CRASHED
    return StepState.SILENT
