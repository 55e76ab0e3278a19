"""torch.compile: exactly what is computed without it, in a cache that is gone afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from torchtap.selftest.facts import StepState
from torchtap.selftest.probe import run_child


@pytest.mark.slow
def test_a_function_is_compiled_for_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the real process; it leaves nothing behind."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said = run_child(["cpu.compile"]).done("cpu.compile").records("gpus")
    assert [(record.whole("index"), record.whole("checked"), record.whole("wrong")) for record in said] == [
        (-1, 256, 0)
    ]
    assert [file.name for file in tmp_path.iterdir() if "torchtap" in file.name] == []


@pytest.mark.slow
def test_without_a_compiler_the_words_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are what the check looks for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    step = run_child(["cpu.compile"]).step("cpu.compile")
    assert step.state is StepState.ERROR
    assert "No working C++ compiler found" in step.error
