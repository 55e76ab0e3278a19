"""Locks on folders: who else is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from entrypoint.inuse import alone, by_others, hold

SPARE = 60  # a descriptor that nothing here uses


def descriptors() -> list[str]:
    return [entry.name for entry in Path("/proc/self/fd").iterdir()]


def test_a_folder_that_is_held_is_in_use_until_the_last_holder_ends(tmp_path: Path) -> None:
    assert not by_others(tmp_path)
    hold(tmp_path, SPARE)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[SPARE])
    try:
        assert by_others(tmp_path)
        os.close(SPARE)
        assert by_others(tmp_path), "what was started from here still holds it"
    finally:
        child.communicate(b"\n")
    assert not by_others(tmp_path)


def test_two_can_hold_it(tmp_path: Path) -> None:
    hold(tmp_path, SPARE)
    hold(tmp_path, SPARE + 1)
    os.close(SPARE)
    assert by_others(tmp_path)
    os.close(SPARE + 1)
    assert not by_others(tmp_path)


def test_nothing_is_left_in_the_folder_nor_any_descriptor_open(tmp_path: Path) -> None:
    before = descriptors()
    with alone(tmp_path):
        assert by_others(tmp_path)
    assert not by_others(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def test_a_folder_that_is_none_counts_as_free(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("missing", "link"):
        assert not by_others(tmp_path / name)
        hold(tmp_path / name, SPARE)
