"""Steps are run one by one, and whatever they do becomes a line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchtap.selftest.child.running import Reporter
from torchtap.selftest.probe import run_child


def test_a_failing_step_stops_those_after_it_and_no_others(monkeypatch: pytest.MonkeyPatch):
    """An exception becomes a line; what needs the step is left out, the rest runs."""
    out = io.StringIO()
    reporter = Reporter(out)

    def fail(_: Reporter) -> dict[str, object]:
        raise ImportError("libcudnn.so.9: cannot open shared object file")

    monkeypatch.setattr("torchtap.selftest.child.packages.import_torch", fail)
    monkeypatch.setattr("torchtap.selftest.child.driver.open_nodes", lambda _: {"nodes": {}})
    for name in ("torch.import", "torch.build", "nodes"):
        reporter.run(name)
    ends = [line for line in map(json.loads, out.getvalue().splitlines()) if line["state"] != "start"]
    assert [(line["step"], line["state"]) for line in ends] == [
        ("torch.import", "error"),
        ("torch.build", "left out"),
        ("nodes", "done"),
    ]
    assert ends[0]["error"] == "ImportError: libcudnn.so.9: cannot open shared object file"


def test_what_libraries_print_does_not_disturb_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sitecustomize that prints, and a library that writes to descriptor 1: both go to the evidence."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, os, time\n"
        "def babble():\n"
        "    for _ in range(200):\n        os.write(1, b'noise\\n'); time.sleep(0.005)\n"
        "threading.Thread(target=babble, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = run_child(["torch.import"])
    assert said.done("torch.import").text("version")
    assert "noise" in said.answer.errors


def test_a_person_can_look_at_the_lines():
    """As the docstring says; the steps' own exceptions are known there too."""
    command = [sys.executable, "-m", "torchtap.selftest.child.running", "cuda.init"]
    said = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert said.returncode == 0
    assert [line["step"] for line in lines if line["state"] == "start"] == ["cuda.library", "cuda.init"]
    assert lines[-1] == {"state": "end"}
    assert "error" not in {line["state"] for line in lines}
