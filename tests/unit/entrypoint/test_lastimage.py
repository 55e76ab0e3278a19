"""The note that one start leaves for the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoint.lastimage import Image, changes, here, is_newer, read, write

CU130 = Image(variant="cu130", torch="2.14.1", python="3.12.3", uid=1000, gid=1000)
CU128 = Image(variant="cu128", torch="2.9.1", python="3.12.3", uid=1000, gid=1000)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a/b/last-image.json"
    write(path, CU130)
    assert read(path) == CU130
    assert [entry.name for entry in path.parent.iterdir()] == ["last-image.json"]


def test_nothing_is_written_twice_nor_where_it_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "last-image.json"
    write(path, CU130)
    before = path.stat().st_ino
    write(path, CU130)
    assert path.stat().st_ino == before
    (tmp_path / "file").touch()
    write(tmp_path / "file/below/last-image.json", CU130)
    write(tmp_path / "file", CU128)
    assert read(tmp_path / "file") == CU128


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"variant": "cu130"}',
        json.dumps({"variant": "x" * 50, "torch": "2", "python": "3", "uid": 1, "gid": 1, "schema": 1}),
        json.dumps({"variant": "a\nWARNING b", "torch": "2", "python": "3", "uid": 1, "gid": 1, "schema": 1}),
        json.dumps({"variant": "a", "torch": "2", "python": "3", "uid": -1, "gid": 1, "schema": 1}),
        json.dumps({"variant": "a", "torch": "2", "python": "3", "uid": "0", "gid": 1, "schema": 1}),
        json.dumps({"variant": "a", "torch": "2", "python": "3", "uid": True, "gid": 1, "schema": 1}),
    ],
    ids=[
        "empty",
        "cut off",
        "a list",
        "null",
        "deep",
        "little",
        "long",
        "a line end",
        "negative",
        "a word",
        "a truth",
    ],
)
def test_what_cannot_be_understood_counts_as_nothing(tmp_path: Path, text: str) -> None:
    """The user can write there: nothing of it may end the start, or get into the log."""
    path = tmp_path / "last-image.json"
    path.write_text(text)
    assert read(path) is None


def test_a_newer_form_is_known_as_newer_even_with_more_in_it(tmp_path: Path) -> None:
    path = tmp_path / "last-image.json"
    path.write_text(
        json.dumps({"variant": "a", "torch": "2", "python": "3", "uid": 1, "gid": 1, "schema": 2, "x": []})
    )
    assert is_newer(read(path))
    assert not is_newer(CU130)
    assert not is_newer(None)


def test_this_image_is_what_its_manifest_says(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(
        json.dumps({"variant": "cu130", "torch": "2.14.1", "python": "3.12.3", "cuda": "13.0"})
    )
    assert here(1000, 1000, manifest) == CU130
    assert here(1000, 1000, tmp_path / "missing") is None
    manifest.write_text("[]")
    assert here(1000, 1000, manifest) is None


OTHER_PYTHON = Image(variant="cu130", torch="2.14.1", python="3.11.2", uid=1000, gid=1000)
NEXT_PATCH = Image(variant="cu130", torch="2.14.1", python="3.12.9", uid=1000, gid=1000)
ENVIRONMENTS = "Virtual environments of your own that were made with Python 3.11 have to be made again"
EXTENSIONS = (
    "C++ and CUDA extensions that you built have to be built again; caches sort themselves by version"
)


@pytest.mark.parametrize(
    ("before", "more"),
    [
        (None, None),
        (CU130, None),
        (NEXT_PATCH, ()),
        (OTHER_PYTHON, (ENVIRONMENTS,)),
        (CU128, (EXTENSIONS,)),
    ],
    ids=["a new home", "the same", "a patch of Python", "another Python", "another torch"],
)
def test_what_a_change_means(before: Image | None, more: tuple[str, ...] | None) -> None:
    said = changes(before, CU130)
    assert (said and said[1]) == more
