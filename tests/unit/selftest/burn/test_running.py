"""A load from beginning to end: real processes with the CPU in place of a GPU, and processes that end in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import torchtap
from tests.unit.selftest.burn.test_sampler import script
from torchtap.selftest import runner
from torchtap.selftest.burn import running
from torchtap.selftest.burn.running import burn
from torchtap.selftest.burn.sampler import POWER, TEMPERATURE, Sampler
from torchtap.selftest.burn.saying import Scene, say_scene
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import good
from torchtap.selftest.facts import StepState
from torchtap.selftest.kernel_log import KernelLog, read_text
from torchtap.selftest.process import Answer
from torchtap.selftest.runner import judge_all, run, waits_for_load
from torchtap.selftest.status import Device, Level, Status

NUMBERS = {"index": 0, "name": "NVIDIA H200", "type": "bfloat16", "products": 7, "checked": 700, "wrong": 0}
PROGRESS = {"elapsed": 3.0, "gpus": [{**NUMBERS, "tflops": 700.0, "course": []}]}


def of_processes(pid: int) -> set[int]:
    """Every process that descends from `pid`."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def saying(*lines: Mapping[str, object], **end: Any) -> Callable[..., Answer]:
    """A test process that says these lines of the step gpu.burn and ends so."""

    def ask(command: Sequence[str], *, on_line: Callable[[str], bool], **_: object) -> Answer:
        every: list[Mapping[str, object]] = [{"state": "start"}, *lines]
        said = [json.dumps({"step": "gpu.burn", **line}) for line in every]
        kept = [line for line in said if not on_line(line)]
        return Answer(command=tuple(command), text="\n".join(kept), **{"rc": 0, "seconds": 9.0, **end})

    return ask


def load(ask: Callable[..., Answer], **options: object):
    return burn(Device.GPU, 600, smi_timeout_s=1, run=ask, log=KernelLog, **options)  # type: ignore[arg-type]


def test_a_real_load_of_the_cpu_comes_to_its_end():
    """Every product right, and told while it runs."""
    said: list[str] = []
    burned = burn(Device.CPU, 1.5, smi_timeout_s=1, on_step=said.append)
    assert burned.step.state is StepState.DONE
    (cpu,) = burned.step.records("gpus")
    assert cpu.whole("products") > 0
    assert cpu.whole("wrong") == 0
    assert any(line.startswith("burn 0:0") and "0 wrong values; CPU: " in line for line in said)
    assert burned.watch is None
    assert '"progress"' not in burned.child.answer.text  # kept once, not once a second


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ({"rc": -6}, StepState.CRASHED),
        ({"rc": None, "timed_out": True}, StepState.HUNG),
        ({"rc": None, "stopped": True}, StepState.STOPPED),
        ({"rc": 3}, StepState.SILENT),
    ],
)
def test_the_numbers_up_to_an_early_end_are_kept(end: dict[str, object], state: StepState):
    """A crash after hours must not take them along."""
    burned = load(saying({"state": "progress", "value": PROGRESS}, **end))
    assert burned.step.state is state
    assert burned.step.value == PROGRESS
    assert "700" in burned.describe()


def test_lines_of_progress_that_are_garbage_are_passed_over():
    """Neither taken for numbers nor shown."""
    said: list[str] = []
    values: list[Any] = [7, None, [], {"gpus": "x"}, {"elapsed": "y", "gpus": [3]}]
    lines = [{"state": "progress", "value": each} for each in values]
    burned = load(saying(*lines, rc=-6), on_step=said.append)
    assert burned.step.state is StepState.CRASHED
    assert said == ["preparing the load"]


def test_only_what_was_written_to_the_kernel_log_meanwhile_counts():
    """Old errors are the business of kernel.log."""
    old = "<4>[   1.5] NVRM: Xid (PCI:0000:41:00): 79, old\n"
    new = "<4>[   9.5] NVRM: Xid (PCI:0000:41:00): 94, new\n"
    logs = iter([read_text(old, now=5.0), read_text(old + new, now=10.0)])
    burned = burn(Device.GPU, 600, smi_timeout_s=1, run=saying(rc=0), log=lambda: next(logs))
    assert [event.xid for event in burned.xids] == [94]
    closed = burn(
        Device.GPU, 600, smi_timeout_s=1, run=saying(), log=lambda: KernelLog(problem="not permitted")
    )
    assert (closed.xids, closed.log_problem) == ((), "not permitted")


def test_the_level_burn_loads_this_cpu_and_passes(monkeypatch: pytest.MonkeyPatch):
    """From `run` to the report; minutes as asked."""
    monkeypatch.setattr(runner, "BURN_MINUTES_RANGE", (0.0, 1.0))
    report = run("cpu", level="burn", minutes=0.02, only=["burn.numbers"])
    by_id = {result.id: result for result in report.results}
    assert by_id["burn.numbers"].status is Status.PASS
    measured: Any = by_id["burn.numbers"].values["measured"]
    assert [each["unit"] for each in measured] == ["TFLOP/s"]
    assert measured[0]["value"] > 0
    assert by_id["burn.numbers"].seconds > 1


def test_the_load_is_not_begun_where_what_it_needs_has_failed():
    """Ten minutes on a GPU that cannot multiply once are wasted."""
    fine = replace(good(), burn=None)
    assert waits_for_load(CHECKS, fine, set())
    assert not waits_for_load([check for check in CHECKS if check.level is not Level.BURN], fine, set())
    assert not waits_for_load(CHECKS, replace(fine, interrupted=True), set())
    assert not waits_for_load(CHECKS, fine, {check.id for check in CHECKS if check.level is Level.BURN})
    assert fine.child is not None
    broken = {
        **fine.child.steps,
        "gpu.matmul": replace(fine.child.steps["gpu.matmul"], state=StepState.CRASHED),
    }
    assert not waits_for_load(CHECKS, replace(fine, child=replace(fine.child, steps=broken)), set())


@pytest.mark.parametrize(
    ("cell", "status", "cause"),
    [
        ("60", "pass", None),
        ("$([ $gpu = 0 ] && [ $n -gt 5 ] && echo '[GPU is lost]' || echo 60)", "fail", "load_gpu_lost"),
    ],
)
def test_a_load_and_its_readings_are_judged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str, status: str, cause: str | None
):
    """A test process that tells of a GPU, a real nvidia-smi script beside it, and the checks over both."""
    smi = script(tmp_path, gpus="0", cells={"temperature.gpu": cell})
    monkeypatch.setattr(running, "Sampler", partial(Sampler, every_s=0.01))
    count = tmp_path / "n"
    said: list[str] = []

    def ask(command: Sequence[str], *, on_line: Callable[[str], bool], **_: object) -> Answer:
        value = {"elapsed": 600.0, "gpus": [NUMBERS | {"tflops": 700.0, "course": [700.0] * 20}]}
        deadline = time.monotonic() + 30
        while int(count.read_text() or 0) < 16 and time.monotonic() < deadline:
            on_line(json.dumps({"step": "gpu.burn", "state": "progress", "value": value}))
            time.sleep(0.02)
        done = json.dumps({"step": "gpu.burn", "state": "done", "value": value})
        return Answer(command=tuple(command), text=done, rc=0, seconds=600.0)

    burned = burn(
        Device.GPU,
        600,
        smi=str(smi),
        smi_timeout_s=10,
        run=ask,
        log=lambda: KernelLog(now=1.0),
        on_step=said.append,
    )
    results = {each.id: each for each in judge_all(CHECKS, replace(good(), burn=burned))}
    assert (results["burn.lost"].status.value, results["burn.lost"].cause_id) == (status, cause)
    assert results["burn.numbers"].status is Status.PASS
    assert said[-1].startswith("burn 10:00 of 10:00, 0 wrong values; GPU 0: 700 TFLOP/s, 60 C")
    if cause is None:
        bad = {
            name
            for name, each in results.items()
            if name.startswith("burn.") and each.status is not Status.PASS
        }
        assert bad == set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_a_load_leaves_a_report_and_no_process(
    tmp_path: Path, number: signal.Signals, code: int
):
    """The numbers until then, their cause, and the exit code; by process ids, nothing stays."""
    start = "from torchtap.selftest import progress; progress.LOG_EVERY_S = 0; from torchtap.cli import main; main()"
    options = ["--level", "burn", "--device", "cpu", "--minutes", "5", "--only", "burn.numbers"]
    process = subprocess.Popen(
        [sys.executable, "-c", start, "selftest", *options, "--output", tmp_path / "report.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(torchtap.__file__).parents[1])},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("self-test: burn 0:0"):
            break
    running = of_processes(process.pid)
    assert running
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert "load_interrupted: the load was interrupted after" in out
    results = {each["id"]: each for each in json.loads((tmp_path / "report.json").read_text())["results"]}
    assert results["burn.numbers"]["status"] == "unknown"
    assert results["burn.numbers"]["values"]["products"] > 0
    assert results["cpu.matmul"]["status"] == "pass"
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]


def test_the_line_that_is_shown_fits_a_terminal():
    """One or two GPUs each by itself, more of them as a range; nothing odd where a reading is missing."""
    gpus = [{"index": n, "tflops": 700.0 + n, "wrong": n // 7, "products": 5} for n in range(8)]
    now = {n: {TEMPERATURE: 60.0 + n, POWER: 690.0} for n in range(8)}
    line = say_scene(Scene(3725, 7200, gpus, now))
    assert line == ("burn 1:02:05 of 2:00:00, 1 wrong value; 8 GPUs: 700 to 707 TFLOP/s, 60 to 67 C, 690 W")
    two = say_scene(Scene(61, 600, gpus[:2], {}))
    assert two == "burn 1:01 of 10:00, 0 wrong values; GPU 0: 700 TFLOP/s; GPU 1: 701 TFLOP/s"
    assert say_scene(Scene(0, 600, [{"index": 0, "tflops": 0.0}], {})) == "filling the memory"
