"""The test process: read step by step, however it ends. Real processes, and lines of garbage."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from torchtap.selftest.facts import NotDoneError, StepState
from torchtap.selftest.probe import read_lines, run_child
from torchtap.selftest.process import Answer

SAY = "import json, os, sys, time\ndef say(**line): print(json.dumps(line), flush=True)\n"


def child(code: str, timeout_s: float = 20):
    return run_child(["torch.import"], timeout_s=timeout_s, command=[sys.executable, "-c", SAY + code])


def test_the_real_process_answers_step_by_step():
    """What needs no GPU, and the steps are heard as they start."""
    heard: list[str] = []
    answered = run_child(["torch.build", "cpu.matmul"], on_step=heard.append)
    assert answered.finished
    assert heard == ["torch.import", "torch.build", "cpu.matmul"]
    assert answered.done("torch.import").text("version")
    assert answered.done("cpu.matmul").records("gpus")[0].whole("wrong") == 0


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A user's own random.py or torch.py beside the notebook must not break the self-test."""
    for name in ("random.py", "json.py", "torch.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file')\n")
    monkeypatch.chdir(tmp_path)
    assert run_child(["torch.import"]).done("torch.import").text("version")


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("os.abort()", StepState.CRASHED),
        ("os.kill(os.getpid(), 11)", StepState.CRASHED),
        ("time.sleep(600)", StepState.HUNG),
        ("os._exit(0)", StepState.SILENT),
        ("os._exit(3)", StepState.SILENT),
        ("raise SystemExit", StepState.SILENT),
    ],
)
def test_the_step_in_which_it_ends_is_known(end: str, state: StepState):
    """What was found before stays; what came after was not reached."""
    said = child(
        "say(step='torch.import', state='start'); say(step='torch.import', state='done', value={'version': '1'})\n"
        f"say(step='gpu.matmul', state='start'); say(step='gpu.matmul', state='where', where='GPU 3'); {end}",
        timeout_s=2,
    )
    assert said.done("torch.import").text("version") == "1"
    assert (said.step("gpu.matmul").state, said.step("gpu.matmul").where) == (state, "GPU 3")
    assert said.step("gpu.rnn").state is StepState.NOT_REACHED
    assert said.broken_step is not None
    assert not said.finished
    with pytest.raises(NotDoneError):
        said.done("gpu.rnn")


@pytest.mark.parametrize("code", ["pass", "print('hello')", "import no_such_module", "os.abort()"])
def test_a_process_that_never_begins_is_broken_at_its_start(code: str):
    """No line of its own at all."""
    said = child(code)
    assert said.broken_step is not None
    assert said.broken_step.name == "its start"
    assert said.step("torch.import").state is said.broken_step.state


def test_a_hang_costs_the_time_out_and_no_more():
    """And the process is gone after it."""
    began = time.monotonic()
    said = child("say(step='torch.import', state='start', pid=os.getpid()); time.sleep(600)", timeout_s=1)
    assert time.monotonic() - began < 4
    pid = json.loads(said.answer.text)["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "[]",
        "null",
        "{",
        '{"step": 3, "state": "done", "value": {}}',
        '{"step": "torch.import", "state": "well", "value": {}}',
        '{"step": "torch.import", "state": "done", "value": "fine"}',
        '{"step": "torch.import", "state": "done"}',
        '{"step": "torch.import", "state": "crashed", "value": {}}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_none_of_its_own_proves_nothing(line: str):
    """Only a whole result of a known form counts."""
    said = read_lines(Answer(command=(), text=line + '\n{"state": "end"}\n', rc=0))
    assert said.step("torch.import").state is not StepState.DONE


@pytest.mark.parametrize("seconds", ["1e999", "1" * 400, '"long"', "null", "-3", "NaN"])
def test_an_odd_duration_is_no_error(seconds: str):
    """Time is only shown."""
    text = f'{{"step": "torch.import", "state": "done", "value": {{}}, "seconds": {seconds}}}\n'
    assert read_lines(Answer(command=(), text=text, rc=0)).step("torch.import").seconds >= 0


def test_an_exception_in_a_step_is_its_result():
    """The text is kept, and the next steps go on."""
    said = read_lines(
        Answer(
            command=(),
            text='{"step": "torch.cuda", "state": "start"}\n'
            '{"step": "torch.cuda", "state": "error", "error": "RuntimeError: no", "seconds": 0.1}\n{"state": "end"}\n',
            rc=0,
        )
    )
    assert (said.step("torch.cuda").state, said.step("torch.cuda").error) == (
        StepState.ERROR,
        "RuntimeError: no",
    )
    assert said.finished
