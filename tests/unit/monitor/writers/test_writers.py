"""Writers: what they write, and what happens to a training when they fail or are slow."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchtap.monitor import watch
from torchtap.monitor.writers import Csv, JsonLines, TensorBoard, WriterWarning, read_run

PROGRAM = """
import os, signal, sys, time
import torch
from torch import nn
from torchtap.monitor import watch
from torchtap.monitor.writers import JsonLines

net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
w = watch(net, optimizer, writers=[JsonLines(sys.argv[1])])
for step in range(20):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def train(writers: Any, steps: int = 12, **options: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, optimizer, writers=writers, **options) as w:
        for _ in range(steps):
            loss = net(torch.ones(3, 2)).square().sum()
            w.log(loss=loss)
            loss.backward()
            optimizer.step()
    return w


def test_a_run_folder(tmp_path):
    w = train([JsonLines(tmp_path / "run")])
    about, steps = read_run(tmp_path / "run")
    assert (about["schema"], about["model"], about["layers"][1]) == (1, "Sequential", ["1", "ReLU"])
    assert [each["step"] for each in steps] == list(range(12))
    assert steps[0]["scalars"]["lr"] == 0.1
    output = next(t for t in steps[0]["tensors"] if (t["layer"], t["direction"]) == ("1", "output"))
    assert output["rms"] == pytest.approx(float(w.series("1")["rms"][0]))
    assert output["zeros"] is not None
    assert next(t for t in steps[3]["tensors"] if t["layer"] == "0")["zeros"] is None
    assert [each["name"] for each in steps[10]["parameters"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert steps[1]["parameters"] == []


def test_a_csv_file(tmp_path):
    train([Csv(tmp_path / "run.csv")], steps=2)
    with (tmp_path / "run.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 7  # three outputs, three gradients, the input
    assert {line["step"] for line in lines} == {"0", "1"}
    assert float(lines[0]["loss"]) > 0


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    train([TensorBoard(tmp_path)], steps=3)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [each.step for each in events.Scalars("output/rms/1")] == [0, 1, 2]
    assert "parameter/update/0.weight" in events.Tags()["scalars"]
    assert "loss" in events.Tags()["scalars"]


def test_an_old_run_is_not_overwritten(tmp_path):
    train([JsonLines(tmp_path)], steps=1)
    before = (tmp_path / "steps.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="holds a run already"):
        train([JsonLines(tmp_path)], steps=1)
    assert (tmp_path / "steps.jsonl").read_bytes() == before


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_what_ends_without_closing_has_all_steps(tmp_path, end):
    subprocess.run([sys.executable, "-c", PROGRAM + end, str(tmp_path)], timeout=120)
    assert len(read_run(tmp_path)[1]) == 20


def test_what_is_killed_has_whole_lines(tmp_path):
    wait = f"while sum(1 for _ in open({str(tmp_path / 'steps.jsonl')!r})) < 20: time.sleep(0.01)\n"
    program = f"{PROGRAM}{wait}os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert [each["step"] for each in read_run(tmp_path)[1]] == list(range(20))


def test_a_line_that_was_not_finished_is_left_out(tmp_path):
    train([JsonLines(tmp_path)], steps=2)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 2, "sca')
    assert [each["step"] for each in read_run(tmp_path)[1]] == [0, 1]


def test_another_schema_is_refused(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": 7}))
    with pytest.raises(ValueError, match="schema 7, and this Torchtap reads 1"):
        read_run(tmp_path)


def test_a_full_disk_ends_the_writer_and_not_the_training(tmp_path):
    class Full(Csv):
        def start(self, about):
            super().start(about)
            self.close()
            self._open = Path("/dev/full").open("w")  # noqa: SIM115  as Csv keeps it
            self._lines = csv.DictWriter(self._open, self._lines.fieldnames)

    with pytest.warns(WriterWarning, match=r"Csv\(.*\) failed at step 0: .*No space left"):
        w = train([Full(tmp_path / "a.csv"), JsonLines(tmp_path / "run")])
    assert w.steps == 12
    assert len(read_run(tmp_path / "run")[1]) == 12


class Slow:
    """Waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.steps: list[int] = []

    def start(self, about):
        pass

    def write(self, record):
        self.go.wait(20)
        self.steps.append(record.step)

    def close(self):
        pass


class Failing(Slow):
    """Never writes."""

    def write(self, record):
        raise OSError("no space left")


def test_what_a_slow_writer_cannot_take_is_dropped_and_counted(monkeypatch):
    monkeypatch.setattr("torchtap.monitor.writers.background.CAPACITY", 4)
    slow = Slow()
    net = nn.Linear(1, 1)
    w = watch(net, writers=[slow])
    for _ in range(10):
        net(torch.ones(1, 1)).sum().backward()
        w.step()
    slow.go.set()
    with pytest.warns(WriterWarning, match=r"[56] steps were not written"):
        w.close()
    assert slow.steps == sorted(slow.steps)
    assert len(slow.steps) in (4, 5)


def test_a_writer_that_is_stuck_with_a_full_queue_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("torchtap.monitor.writers.background.CAPACITY", 2)
    monkeypatch.setattr("torchtap.monitor.writers.background._LONGEST_S", 0.3)
    slow = Slow()
    net = nn.Linear(1, 1)
    w = watch(net, writers=[slow])
    for _ in range(6):
        net(torch.ones(1, 1)).sum().backward()
        w.step()
    with pytest.warns(WriterWarning, match=r"did not end in 0 s; 2 steps wait"):
        w.close()
    slow.go.set()
    assert w._background is not None
    w._background._thread.join(10)
    assert slow.steps == [0, 1, 2]


def test_where_warnings_are_errors_one_failing_writer_does_not_end_the_others(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train([Failing(), JsonLines(tmp_path / "run")])
    assert len(read_run(tmp_path / "run")[1]) == 12


def test_with_block_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr("torchtap.monitor.writers.background.CAPACITY", 2)
    slow = Slow()
    threading.Timer(0.2, slow.go.set).start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train([slow], block=True)
    assert slow.steps == list(range(12))


def test_after_an_exception_in_the_training_all_is_written(tmp_path):
    net = nn.Linear(1, 1)
    w = watch(net, writers=[JsonLines(tmp_path)])

    def training() -> None:
        with w:
            net(torch.ones(1, 1)).sum().backward()
            w.step()
            raise KeyError

    with pytest.raises(KeyError):
        training()
    assert len(read_run(tmp_path)[1]) == 1
    assert not [each for each in threading.enumerate() if each.name == "torchtap writer"]
