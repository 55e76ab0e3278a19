"""Disk space is asked before anything large is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from host import disk
from host.show import Problem


def test_too_little_says_how_much_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=12_340_000_000))
    with pytest.raises(Problem) as caught:
        disk.need(tmp_path, 15_000_000_000, "building x", "Free some")
    assert caught.value.what == f"too little disk: building x needs 15.0 GB, {tmp_path} has 12.3 GB free"
    assert caught.value.do == ("Free some",)
    disk.need(tmp_path, 12_000_000_000, "building x")


def test_a_folder_that_is_still_to_be_made_counts_as_its_parent(tmp_path: Path) -> None:
    there, later = disk.free_bytes(tmp_path), disk.free_bytes(tmp_path / "a" / "b")
    assert there is not None
    assert later is not None
    assert abs(there - later) < 1_000_000_000


def test_what_cannot_be_asked_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert disk.free_bytes(Path("/x")) is None
    disk.need(Path("/x"), 10**15, "anything")
