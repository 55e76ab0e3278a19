"""Root's files in the overlay, and in what a reset could not remove, become the user's; nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import lay, overlay, paths, reclaim
from entrypoint.account import Account
from entrypoint.mounts import Mount
from entrypoint.overlay import Base

from .conftest import GID, OTHER, UID, needs_root
from .test_overlay import base, distribution, site  # noqa: F401 - base is a fixture

pytestmark = needs_root


@pytest.fixture
def folder(base: Base) -> Path:  # noqa: F811
    """A user's overlay with one package."""
    made = overlay.overlays(paths.HOME) / base.key
    overlay.make(base, made)
    distribution(site(made), "rich", "14.0")
    (site(made) / "pure").mkdir()
    for path in (paths.HOME, *paths.HOME.rglob("*")):
        os.chown(path, UID, GID, follow_symlinks=False)
    return made


def roots(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.lstat().st_uid == 0}


def reclaimed(folder: Path) -> int:
    found = Base.read()
    assert found is not None
    return reclaim.reclaim(found, folder, UID, GID)


def start(folder: Path) -> Path | None:
    link = paths.RUN_CANDIDATES[0] / "env"
    link.unlink(missing_ok=True)
    return lay.lay(Account(UID, GID, (), str(paths.HOME)), paths.RUN_CANDIDATES[0], safe=False)


@pytest.mark.parametrize("what", ["a package", "pip.conf", "bytecode"])
def test_start_gives_back_what_root_has_left(
    folder: Path,
    what: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if what == "a package":
        distribution(site(folder), "einops", "0.8.0")
    elif what == "bytecode":
        (site(folder) / "pure/__pycache__").mkdir()
        (site(folder) / "pure/__pycache__/x.pyc").touch()
    else:
        os.chown(folder / "pip.conf", 0, 0)
    count = len(roots(folder))
    assert count
    assert start(folder) == folder
    assert roots(folder) == set()
    said = capfd.readouterr().err
    assert f"INFO    packages: {count} files of root's in {folder.parent} are the user's again\n" in said
    start(folder)
    assert capfd.readouterr().err == ""


def test_what_a_reset_could_not_remove_is_gone_after_the_next_start(folder: Path) -> None:
    left = overlay.aside(folder, 12)
    (left / "lib").mkdir(parents=True)
    (left / "lib/RECORD").touch()
    os.chown(left, UID, GID)
    start(folder)
    assert not left.exists()
    assert folder.exists()


def test_links_and_files_with_another_name_are_not_given(
    folder: Path,
    open_path: Path,
) -> None:
    """The user could have made them, to be given what they lead to."""
    secret, others = open_path / "secret", open_path / "others"
    secret.touch()
    others.mkdir()
    (others / "file").touch()
    os.link(secret, site(folder) / "hard")
    (site(folder) / "soft").symlink_to(secret)
    (site(folder) / "folder").symlink_to(others)
    (site(folder) / "roots").touch()
    assert reclaimed(folder) == 1
    assert {path.stat().st_uid for path in (secret, others, others / "file")} == {0}


def test_nothing_is_given_where_the_folder_above_is_not_the_users(folder: Path) -> None:
    (site(folder) / "roots").touch()
    os.chown(folder.parent, OTHER, OTHER)
    assert reclaimed(folder) == 0


def test_a_mount_inside_is_not_given(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (site(folder) / "data").mkdir()
    (site(folder) / "data/set").touch()
    (site(folder) / "roots").touch()
    point = site(folder) / "data"
    monkeypatch.setattr(reclaim, "mounts", lambda: [Mount(point=point, root="/")])
    assert reclaimed(folder) == 1
    assert roots(folder) == {"data", "set"}
