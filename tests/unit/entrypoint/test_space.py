"""When a file system counts as full."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from entrypoint.space import Full, full

USUAL = {
    "f_flag": 0,
    "f_blocks": 16,
    "f_frsize": 4096,
    "f_bavail": 16,
    "f_files": 100,
    "f_favail": 10,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"f_bavail": 0}, "all of its 64 kB are used"),
        ({"f_bavail": 3}, "all of its 64 kB are used"),
        ({"f_bavail": 4}, None),
        ({"f_favail": 0}, "it can hold no more files (inodes)"),
        ({"f_favail": 0, "f_files": 0}, None),
        ({"f_bavail": 0, "f_blocks": 0}, None),
        ({"f_bavail": 0, "f_flag": os.ST_RDONLY}, None),
    ],
    ids=[
        "room",
        "full",
        "12 kB left",
        "16 kB left",
        "no inodes",
        "no word of inodes",
        "no word of size",
        "read-only",
    ],
)
def test_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], said: str | None
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**USUAL, **changes}))
    found = full(tmp_path)
    assert (found and found.said) == said
    assert found is None or found.device == tmp_path.stat().st_dev


def test_what_is_not_there_is_not_full(tmp_path: Path) -> None:
    assert full(tmp_path / "missing") is None
    assert full(tmp_path) is None


@pytest.mark.parametrize(
    ("total", "said"),
    [(512, "512 bytes"), (1 << 20, "1 MB"), (20 << 30, "20 GB"), (3 << 40, "3 TB")],
    ids=str,
)
def test_sizes_are_said_in_words(total: int, said: str) -> None:
    assert Full(1, total).said == f"all of its {said} are used"
