"""What becomes the user's, and what never does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import owning
from entrypoint.mounts import Mount
from entrypoint.owning import give_folder, give_tree, made_for_mounts, new_volumes

from .conftest import GID, OTHER, UID, needs_root

OF = (0, 1000)


def belongs(path: Path) -> tuple[int, int]:
    return path.lstat().st_uid, path.lstat().st_gid


@pytest.fixture
def home(image: Path) -> Path:
    return image / "home/dev"


@needs_root
def test_files_of_the_named_ids_and_of_no_others_are_given(home: Path) -> None:
    owners = {"root": 0, "image": 1000, "before": 501, "other": OTHER}
    for name, owner in owners.items():
        (home / name).touch()
        os.chown(home / name, owner, owner)
    give_tree(home, UID, GID, (*OF, 501))
    assert {name: belongs(home / name) for name in owners} == {
        **dict.fromkeys(("root", "image", "before"), (UID, GID)),
        "other": (OTHER, OTHER),
    }


@needs_root
def test_a_tree_that_takes_long_says_how_far_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        (home / f"{number}/deep").mkdir(parents=True)
    monkeypatch.setattr(owning, "PATIENCE_S", 0.0)
    give_tree(home, UID, GID, OF)
    assert f"INFO    home: 3 files of {home} are {UID}:{GID}'s now; going on\n" in capsys.readouterr().err


@needs_root
def test_the_home_itself_is_given_last_so_that_a_start_cut_short_begins_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").mkdir()
    (home / "a/file").touch()
    order: list[str] = []
    chown = os.chown

    def record(path: str | Path, *arguments: int, **options: object) -> None:
        order.append(Path(path).name)
        chown(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "chown", record)
    give_tree(home, UID, GID, OF)
    assert order == ["a", "file", "dev"]


@needs_root
def test_files_that_cannot_be_given_are_counted_aloud(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        (home / name).touch()
    chown = os.chown

    def refuse(path: str | Path, *arguments: int, **options: object) -> None:
        if path in ("a", "b"):
            raise PermissionError(1, "Operation not permitted")
        chown(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "chown", refuse)
    give_tree(home, UID, GID, OF)
    assert capsys.readouterr().err == f"WARNING home: 2 files in {home} could not be given to {UID}:{GID}\n"
    assert belongs(home / "c")[:2] == belongs(home)[:2] == (UID, GID)


# ---- volumes ----
VOLUME = "/var/lib/docker/volumes/x/_data"


@pytest.fixture
def places(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories to mount at. Their first part is that of the machine's temporary folder, so it must count as no
    system folder here."""
    monkeypatch.setattr(owning, "OF_THE_SYSTEM", frozenset({"etc"}))
    for name in ("home/cache", "data", "used", "users", "hosts", "home/tmpfs", "tmpfs", "team"):
        (open_path / name).mkdir(parents=True)
    (open_path / "used/file").touch()
    (open_path / "data/lost+found").mkdir()
    (open_path / "file").touch()
    return open_path


@needs_root
def test_volumes_that_are_roots_and_empty_are_new(places: Path) -> None:
    os.chown(places / "users", UID, GID)
    os.chown(places / "team", 0, GID)
    roots = {
        "home/cache": VOLUME,
        "data": VOLUME,
        "used": VOLUME,
        "users": VOLUME,
        "team": VOLUME,
        "file": VOLUME,
        "missing": VOLUME,
        "hosts": "/srv/data",
        "home/tmpfs": "/",
        "tmpfs": "/",
    }
    among = [Mount(places / name, root) for name, root in roots.items()]
    new = {path.relative_to(places).as_posix() for path in new_volumes(among, places / "home")}
    assert new == {"home/cache", "data", "home/tmpfs"}
    assert new_volumes(among, places / "home", [places / "data", places / "home/cache"]) == [
        places / "home/tmpfs"
    ]


@pytest.mark.parametrize(
    "point", ["/", "/run", "/etc/ssh", "/var/lib/torchtap", "/tmp", "/opt/x", "/usr/local/lib"]
)
def test_volumes_of_the_system_are_never_the_users(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owning, "_is_new", lambda _: True)
    assert new_volumes([Mount(Path(point), VOLUME), Mount(Path("/data"), VOLUME)], Path("/home/dev")) == [
        Path("/data")
    ]


@needs_root
def test_c7_folders_that_the_engine_made_for_a_mount_are_known_by_holding_nothing_else(home: Path) -> None:
    """-v models:/home/dev/.cache/huggingface: ~/.cache is root's, and nobody could cache anything else."""
    (home / ".cache/huggingface").mkdir(parents=True)
    (home / ".local/share/one").mkdir(parents=True)
    (home / ".local/share/two").mkdir()
    (home / "kept/data").mkdir(parents=True)
    (home / "kept/file").touch()
    (home / "mine/data").mkdir(parents=True)
    os.chown(home / "mine", UID, GID)
    points = [".cache/huggingface", ".local/share/one", ".local/share/two", "kept/data", "mine/data"]
    among = [Mount(home / point, "/srv/x") for point in points]
    assert made_for_mounts(among, home) == [home / ".cache", home / ".local", home / ".local/share"]


@needs_root
def test_a_folder_is_given_only_while_it_is_roots_and_no_link(home: Path) -> None:
    for name in ("roots", "others", "victim"):
        (home / name).mkdir()
    os.chown(home / "others", OTHER, OTHER)
    (home / "link").symlink_to(home / "victim")
    (home / "way").symlink_to(home)
    give_folder(home / "roots", UID, GID)
    give_folder(home / "others", UID, GID)
    for name in ("link", "way/victim", "missing"):
        with pytest.raises(OSError, match=r"directory|symbolic"):
            give_folder(home / name, UID, GID)
    assert {name: belongs(home / name) for name in ("roots", "others", "victim")} == {
        "roots": (UID, GID),
        "others": (OTHER, OTHER),
        "victim": (0, 0),
    }
