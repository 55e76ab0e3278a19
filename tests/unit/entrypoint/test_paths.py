"""Files are written whole, and what start decided is believed only where start can have written it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from entrypoint import paths

from .conftest import GID, OTHER, UID, needs_root


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_mode_is_the_one_asked_for_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0o077)
    try:
        paths.write(tmp_path / "open", "x", mode=0o644)
        paths.write(tmp_path / "closed", "x", mode=0o600)
    finally:
        os.umask(0o022)
    assert (mode_of(tmp_path / "open"), mode_of(tmp_path / "closed")) == (0o644, 0o600)


def test_a_failed_write_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="No space left"):
        paths.write(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_draft_left_by_a_crash_is_not_in_the_way(tmp_path: Path) -> None:
    """A container's processes get the same ids at every start: a draft named after one would block the next start."""
    (tmp_path / f".token.{os.getpid()}").write_text("left behind")
    paths.write(tmp_path / "token", "new")
    assert (tmp_path / "token").read_text() == "new"


def test_a_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "token").symlink_to(victim)
    paths.write(tmp_path / "token", "new")
    assert victim.read_text() == "untouched"
    assert not (tmp_path / "token").is_symlink()


@pytest.mark.parametrize(
    "raw", [b"plain", "Grüße 世界".encode(), b"\xff\xfe not UTF-8"], ids=["ASCII", "UTF-8", "undecodable"]
)
def test_text_from_the_environment_is_written_byte_for_byte(tmp_path: Path, raw: bytes) -> None:
    paths.write(tmp_path / "file", os.fsdecode(raw))
    assert (tmp_path / "file").read_bytes() == raw


@needs_root
def test_owner_is_set_before_the_file_is_there_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = tmp_path / "file", []
    replace = os.replace

    def look(draft: Path, to: Path) -> None:
        found = Path(draft).stat()
        seen.append((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)))
        replace(draft, to)

    monkeypatch.setattr(os, "replace", look)
    paths.write(target, "x", mode=0o640, owner=(UID, GID))
    assert seen == [(UID, GID, 0o640)]


def started_in(run: Path, **said: object) -> Path:
    run.mkdir(exist_ok=True)
    (run / paths.STARTED).write_text(json.dumps({"role": "dev", **said}))
    return run


def test_nothing_is_started_while_start_has_not_written(image: Path) -> None:
    assert paths.run_directory() is None
    assert paths.started() is None


def test_the_first_run_directory_with_an_answer_counts(image: Path) -> None:
    started_in(image / "tmp/torchtap", role="second")
    assert paths.started() == {"role": "second"}
    started_in(image / "run/torchtap", role="first")
    assert paths.started() == {"role": "first"}
    assert paths.run_directory() == image / "run/torchtap"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"dev"', "\udcff"], ids=repr)
def test_garbage_in_the_file_is_as_if_nothing_were_started(image: Path, text: str) -> None:
    started_in(image / "run/torchtap")
    (image / "run/torchtap" / paths.STARTED).write_bytes(os.fsencode(text))
    assert paths.started() is None


@needs_root
def test_a_run_directory_of_another_user_is_not_believed(image: Path) -> None:
    """In /tmp anyone can make the folder, and root's HEALTHCHECK would read it."""
    os.chown(started_in(image / "tmp/torchtap"), OTHER, OTHER)
    assert paths.started() is None


def test_a_linked_run_directory_is_not_believed(image: Path, tmp_path: Path) -> None:
    (image / "tmp/torchtap").symlink_to(started_in(tmp_path / "elsewhere"))
    assert paths.started() is None
