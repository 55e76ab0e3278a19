"""The test process: read step by step, however it ends. Real processes, and lines of garbage."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from torchtap.selftest.child.steps import STEPS
from torchtap.selftest.facts import Child, NotDoneError, StepState
from torchtap.selftest.probe import ROOT, read_lines, run_child
from torchtap.selftest.process import Answer
from torchtap.selftest.status import Level

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
    said = child(
        "say(step='torch.import', state='start', pid=os.getpid(), at=0.0); time.sleep(600)", timeout_s=1
    )
    assert time.monotonic() - began < 4
    assert 1 <= said.step("torch.import").seconds < 4
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


# -- Steps that end the process, in the real one --------------------------------------------------------------------
ENDS = {
    "hang": ("import time; time.sleep(600)", StepState.HUNG),
    "crash": ("import ctypes; ctypes.string_at(0)", StepState.CRASHED),
    "abort": ("import os; os.abort()", StepState.CRASHED),
    "silence": ("import os; os._exit(0)", StepState.SILENT),
}


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch):
    """Run real steps, of which one ends its process; `level` says what kind of step that is."""

    def start(step: str, end: str, level: Level, wanted: list[str]) -> Child:
        plan = replace(STEPS[step], level=level, timeout_s=1.5)
        monkeypatch.setitem(STEPS, step, plan)
        module, _, function = plan.does.rpartition(".")
        boot = (
            f"import sys; sys.path.insert(0, {ROOT!r})\n"
            f"from torchtap.selftest.child import {module}, running\n"
            f"def broken(_):\n    {ENDS[end][0]}\n"
            f"{module}.{function} = broken\nrunning.main(sys.argv[1:])"
        )
        return run_child(wanted, command=[sys.executable, "-c", boot])

    return start


@pytest.mark.parametrize("end", ENDS)
def test_a_quick_step_that_ends_the_process_ends_the_test(ending, end: str):
    """Its report comes within its own time limit; what came before is kept, nothing is tried after it."""
    said = ending("nodes", end, Level.QUICK, ["torch.build", "nodes", "cuda.library"])
    assert said.done("torch.build").value
    assert said.step("nodes").state is ENDS[end][1]
    assert said.step("cuda.library").state is StepState.NOT_REACHED
    assert said.step("nodes").seconds < 8


@pytest.mark.parametrize("end", ENDS)
def test_after_a_longer_step_the_rest_is_tried_in_a_new_process(ending, end: str):
    """What does not need it; after a hang only what leaves the driver alone. Each end is told by its own words."""
    said = ending("nodes", end, Level.FULL, ["torch.build", "nodes", "cuda.library", "cuda.init"])
    assert said.done("torch.build").value
    assert said.step("nodes").state is ENDS[end][1]
    assert said.done("cuda.library").value
    assert said.step("cuda.init").state is (StepState.NOT_REACHED if end == "hang" else StepState.LEFT_OUT)
    assert said.broken_step is said.step("nodes")
    assert not said.finished
    broken = said.step("nodes").end
    assert broken is not None
    assert (end == "crash") == ("Segmentation fault" in broken.errors)


def test_two_longer_steps_that_crash_are_both_told(monkeypatch: pytest.MonkeyPatch):
    """And the loop ends."""
    for name in ("nodes", "cuda.library"):
        monkeypatch.setitem(STEPS, name, replace(STEPS[name], level=Level.FULL))
    boot = (
        f"import sys, os; sys.path.insert(0, {ROOT!r})\n"
        "from torchtap.selftest.child import driver, running\n"
        "driver.open_nodes = driver.cuda_library = lambda _: os.abort()\nrunning.main(sys.argv[1:])"
    )
    said = run_child(["nodes", "cuda.library", "cuda.init"], command=[sys.executable, "-c", boot])
    states = [said.step(name).state for name in ("nodes", "cuda.library", "cuda.init")]
    assert states == [StepState.CRASHED, StepState.CRASHED, StepState.NOT_REACHED]


def test_a_kernel_error_of_a_longer_step_takes_nothing_else_away(monkeypatch: pytest.MonkeyPatch):
    """CUDA gives the same error to every later call of that process, so the rest is tried in a new one."""
    for name in ("nodes", "cpu.matmul"):
        monkeypatch.setitem(STEPS, name, replace(STEPS[name], level=Level.FULL))
    boot = (
        f"import sys, os; sys.path.insert(0, {ROOT!r})\n"
        "from dataclasses import replace\n"
        "from torchtap.selftest.child import driver, running, steps\n"
        "from torchtap.selftest.status import Level\n"
        "steps.STEPS['nodes'] = replace(steps.STEPS['nodes'], level=Level.FULL)\n"
        "class AcceleratorError(RuntimeError): pass\n"
        "def broken(_): raise AcceleratorError(f'CUDA error in {os.getpid()}')\n"
        "driver.open_nodes, driver.cuda_library = broken, lambda _: {'pid': os.getpid()}\n"
        "driver.cuda_init = driver.cuda_library\n"
        "running.main(sys.argv[1:])"
    )
    said = run_child(["nodes", "cuda.library", "cuda.init"], command=[sys.executable, "-c", boot])
    assert (said.step("nodes").state, said.broken_step) == (StepState.ERROR, None)
    assert said.done("cuda.library").whole("pid") == said.done("cuda.init").whole("pid")
    assert str(said.done("cuda.init").whole("pid")) not in said.step("nodes").error
    assert said.finished


def test_every_gpu_that_a_step_comes_to_has_the_whole_time():
    """Four signs of life, each within the limit; then none."""
    signs = "".join(
        f"time.sleep(0.7); say(step='torch.import', state='where', where='GPU {n}');" for n in range(4)
    )
    said = child(f"say(step='torch.import', state='start');{signs} time.sleep(600)", timeout_s=1.5)
    step = said.step("torch.import")
    assert (step.state, step.where) == (StepState.HUNG, "GPU 3")
    assert said.answer.seconds > 4
