"""The test process is the Python that people get; in the image the one that start has linked."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import good
from torchtap.selftest.interpreter import BASE, users_python
from torchtap.selftest.probe import run_child
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Status


def started(run: Path) -> Path:
    run.mkdir()
    (run / "started.json").write_text("{}")
    return run


def test_outside_the_image_it_is_this_one(tmp_path: Path):
    """Whatever lies in somebody's /tmp."""
    run = started(tmp_path / "run")
    (run / "env").symlink_to(tmp_path)
    assert users_python(sys.prefix, [str(run)]) == sys.executable


def test_in_the_image_it_is_the_users(tmp_path: Path):
    """Also where it is broken: that is what the self-test has to find."""
    run = started(tmp_path / "run")
    (run / "env").symlink_to(tmp_path / "nothing")
    assert users_python(BASE, [str(tmp_path / "none"), str(run)]) == f"{run}/env/bin/python"


def test_in_the_image_without_packages_of_ones_own_it_is_this_one(tmp_path: Path):
    """TORCHTAP_SAFE=1, or before start has finished."""
    assert users_python(BASE, [str(started(tmp_path / "run"))]) == sys.executable
    assert users_python(BASE, [str(tmp_path / "none")]) == sys.executable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_run_directory_of_somebody_else_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Anyone can make a folder in /tmp."""
    run = started(tmp_path / "run")
    (run / "env").symlink_to(tmp_path)
    os.chown(run, 23_456, 23_456)
    assert users_python(BASE, [str(run)]) == sys.executable


def test_an_interpreter_that_is_not_there_ends_in_a_finding():
    """Not in a traceback: which one, why, and the line that mends it."""
    said = run_child(["torch.import"], command=["/nowhere/env/bin/python"])
    found = {each.id: each for each in judge_all(CHECKS, replace(good(), child=said))}["torch.build"]
    assert (found.status, found.cause_id) == (Status.FAIL, "python_broken")
    assert found.cause == "/nowhere/env/bin/python cannot be started: No such file or directory"
    assert (found.remedy or "").endswith("\ntorchtap-env reset")
