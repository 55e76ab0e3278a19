"""The token's file: kept, mended, and never the user's way to what is root's."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint import jupyter_token, paths
from entrypoint.jupyter_token import is_kept, provide

from .conftest import GID, OTHER, UID, needs_root

ME = (UID, GID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
GOOD = "0123456789abcdef"


@pytest.fixture
def path(image: Path) -> Path:
    """Where the token lies in a state folder that start has just prepared."""
    state = image / "var/lib/torchtap"
    (state / "ssh").mkdir()
    return state / "jupyter-token"


def own(path: Path, text: bytes = f"{GOOD}\n".encode(), mode: int = 0o600) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    os.chown(path, *ME)
    return path


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.parent.iterdir()} - {"ssh"}


def token_of(path: Path, given: str = "") -> str:
    provide(path, given, ME)
    found = path.lstat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (*ME, 0o600)
    return path.read_text().removesuffix("\n")


def test_a_new_token_is_long_and_not_the_same_twice(path: Path) -> None:
    first = token_of(path)
    path.unlink()
    assert re.fullmatch("[0-9a-f]{48}", first)
    assert token_of(path) != first
    assert names(path) == {"jupyter-token"}


def test_a_kept_token_stays_and_the_users_own_replaces_it(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own(path)
    assert token_of(path) == GOOD
    assert token_of(path, "mine") == "mine"
    assert token_of(path) == "mine"
    assert names(path) == {"jupyter-token"}
    assert capsys.readouterr().err == ""


def test_nothing_is_written_where_nothing_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume may be full."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    own(path)
    monkeypatch.setattr(paths, "write", full)
    provide(path, "", ME)
    provide(path, GOOD, ME)
    assert is_kept(path, "", ME)
    assert is_kept(path, GOOD, ME)
    assert not is_kept(path, "another", ME)
    with pytest.raises(OSError, match="No space left"):
        provide(path, "another", ME)


def a_link(path: Path) -> None:
    (path.parent.parent / "secret").write_text("secret\n")
    path.symlink_to(path.parent.parent / "secret")


def a_directory(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("kept")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: own(path, b""), "is empty"),
        (lambda path: own(path, b"\n \n"), "is empty"),
        (lambda path: own(path, os.urandom(64) + b"\xff\x00"), "holds something else than a token"),
        (lambda path: own(path, b"two\nlines\n"), "holds something else than a token"),
        (a_directory, "is a directory"),
        (a_link, "is a link"),
        (os.mkfifo, "is not a file"),
        (lambda path: own(path, mode=0o777), "was open to others (mode 0777)"),
        (lambda path: own(path, mode=0o640), "was open to others (mode 0640)"),
    ],
    ids=["empty", "blank", "binary", "two lines", "directory", "link", "pipe", "0777", "0640"],
)
def test_what_is_no_token_is_set_aside_aloud_and_a_new_one_is_made(
    path: Path, spoil: Callable[[Path], object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(path)
    before = path.lstat()
    assert not is_kept(path, "", ME)
    token = token_of(path)
    aside = path.with_name("jupyter-token.damaged-1")
    assert re.fullmatch("[0-9a-f]{48}", token)
    assert (aside.lstat().st_ino, aside.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert names(path) == {"jupyter-token", "jupyter-token.damaged-1"}
    assert capsys.readouterr().err == (
        f"WARNING jupyter: the token's file {path} {says}: a new one is made\n"
        f"        The old file is kept as {aside}. The new link: make url, or docker exec CONTAINER torchtap-url\n"
    )
    assert token_of(path) == token, "the next start finds it in order"
    assert capsys.readouterr().err == ""


def test_a_second_spoiled_file_does_not_replace_the_first(path: Path) -> None:
    own(path, b"one two")
    provide(path, "", ME)
    own(path, b"three four")
    provide(path, "", ME)
    kept = [path.with_name(f"jupyter-token.damaged-{number}").read_bytes() for number in (1, 2)]
    assert kept == [b"one two", b"three four"]


def test_the_users_own_token_is_used_in_place_of_a_spoiled_one(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own(path, b"one two")
    assert token_of(path, "mine") == "mine"
    assert "holds something else than a token: JUPYTER_TOKEN is used\n" in capsys.readouterr().err


def test_a_file_system_that_opens_every_file_to_all_keeps_its_token(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A share of Windows: a new token at every start would be no safer."""
    own(path, mode=0o777)
    monkeypatch.setattr(jupyter_token, "_modes_are_kept", lambda _: False)
    provide(path, "", ME)
    assert path.read_text() == f"{GOOD}\n"
    assert capsys.readouterr().err == ""


@needs_root
def test_a_link_in_place_of_the_token_gives_nothing_away(path: Path, image: Path) -> None:
    """Root would have copied what it alone may read into a file of the user's."""
    secret = image / "secret"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    os.chown(path.parent, *ME)
    path.symlink_to(secret)
    assert token_of(path) != "secret"
    assert secret.read_text() == "secret\n"


@needs_root
def test_a_token_that_the_user_cannot_read_is_replaced(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """start gives it to the user first, as root; where that is refused the file is of no use."""
    own(path)
    os.chown(path, OTHER, OTHER)
    assert token_of(path) != GOOD
    assert "cannot be read (Permission denied): a new one is made\n" in capsys.readouterr().err


def test_many_at_once_get_one_token(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers on one state volume, or more. Not as the user: threads of one process share who they act as."""
    me = (os.geteuid(), os.getegid())
    real = jupyter_token.look

    def slow(path: Path, owner: tuple[int, int]) -> tuple[str, str]:
        found = real(path, owner)
        time.sleep(0.02)  # meanwhile another one could look, find nothing, and make a token too
        return found

    monkeypatch.setattr(jupyter_token, "look", slow)
    threads = [threading.Thread(target=provide, args=(path, "", me)) for _ in range(8)]
    seen = set()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        seen.add(path.read_text())
    assert len(seen) == 1
    assert names(path) == {"jupyter-token"}
