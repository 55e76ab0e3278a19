"""Facts, from real folders and real identities; nothing is changed by looking."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import gather as module
from entrypoint import paths
from entrypoint.account import acting_as
from entrypoint.gather import Folder, gather, home_folder, identity, key_sources, look_at
from entrypoint.keys import Source
from entrypoint.mounts import Mount
from entrypoint.settings import Settings

from .conftest import GID, OTHER, UID, needs_root

DOCKER = Path(__file__).parents[3] / "docker"
ME = (os.geteuid(), os.getegid())


def settings(**values: str) -> Settings:
    return Settings.read(values)


# ---- who dev is ----
@needs_root
@pytest.mark.parametrize(
    ("owner", "variables", "ids"),
    [
        ((0, 0), {}, (1000, 1000)),
        ((4321, 8765), {}, (4321, 8765)),
        ((4321, 0), {}, (4321, 0)),
        ((4321, 8765), {"HOST_UID": "1234"}, (1234, 1234)),
        ((4321, 8765), {"HOST_GID": "99"}, (4321, 99)),
        ((4321, 8765), {"HOST_UID": "1234", "HOST_GID": "99"}, (1234, 99)),
        ((0, 0), {"HOST_GID": "99"}, (1000, 99)),
        ((4321, 8765), {"HOST_UID": "0"}, (0, 0)),
    ],
    ids=[
        "nobody said anything: the image's",
        "the workspace's owner",
        "whatever its group",
        "HOST_UID, and the group of that number",
        "HOST_GID alone",
        "both",
        "HOST_GID for the image's user",
        "root, if it has to be",
    ],
)
def test_ids_of_dev(
    image: Path, owner: tuple[int, int], variables: dict[str, str], ids: tuple[int, int]
) -> None:
    os.chown(paths.WORKSPACE, *owner)
    assert identity(settings(**variables), paths.WORKSPACE) == ids


def test_without_a_workspace_dev_is_the_images(tmp_path: Path) -> None:
    assert identity(settings(), tmp_path / "none") == (1000, 1000)


# ---- what a user may do in a folder ----
@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "groups", "readable", "writable"),
    [
        ((UID, OTHER), 0o700, (), True, True),
        ((UID, OTHER), 0o500, (), True, False),
        ((UID, OTHER), 0o077, (), False, False),
        ((OTHER, GID), 0o770, (), True, True),
        ((OTHER, GID), 0o750, (), True, False),
        ((OTHER, OTHER), 0o770, (OTHER,), True, True),
        ((OTHER, OTHER), 0o755, (), True, False),
        ((OTHER, OTHER), 0o777, (), True, True),
        ((0, 0), 0o700, (), False, False),
        ((0, 0), 0o744, (), False, False),
        ((0, 0), 0o770, (), False, False),
    ],
    ids=[
        "own",
        "own, closed to writing",
        "own, closed to oneself",
        "the group's",
        "the group's, to read",
        "by a supplementary group",
        "others', to read",
        "open to all",
        "root's",
        "root's, to list but not to enter",
        "of root's group, which dev is not in",
    ],
)
def test_the_kernel_is_asked_as_that_user(
    open_path: Path,
    owner: tuple[int, int],
    mode: int,
    groups: tuple[int, ...],
    readable: bool,
    writable: bool,
) -> None:
    folder = open_path / "folder"
    folder.mkdir()
    os.chown(folder, *owner)
    folder.chmod(mode)
    seen = look_at(folder, UID, GID, groups)
    assert (seen.readable, seen.writable) == (readable, writable)
    assert (seen.uid, seen.gid, seen.mode, seen.changeable) == (*owner, mode, True)


@pytest.mark.parametrize("kind", ["a dangling link", "a file"])
def test_what_is_in_the_place_of_a_folder_cannot_be_used(tmp_path: Path, kind: str) -> None:
    """A home that a derived image made a link to a disk which is not mounted, say."""
    place = tmp_path / "place"
    if kind == "a file":
        place.touch(mode=0o777)
    else:
        place.symlink_to(tmp_path / "none")
    seen = look_at(place, *ME, ())
    assert (seen.readable, seen.writable, seen.changeable) == (False, False, False)
    assert seen.described == ("is not a directory" if kind == "a file" else "does not exist")


def test_a_mount_and_the_hosts_folder_are_known(tmp_path: Path) -> None:
    volume, hosts = Mount(tmp_path, "/var/lib/docker/volumes/x/_data"), Mount(tmp_path, "/home/me")
    seen = [look_at(tmp_path, *ME, (), among) for among in ([], [volume], [hosts])]
    assert [(f.is_mounted, f.is_hosts) for f in seen] == [(False, False), (True, False), (True, True)]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    seen = look_at(tmp_path / "none", UID, GID, ())
    assert seen == Folder(path=tmp_path / "none", exists=False)
    assert seen.described == "does not exist"


def test_a_folder_is_described_with_owner_and_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o1750)
    assert look_at(tmp_path, *ME, ()).described == f"belongs to {ME[0]}:{ME[1]}, mode 1750"


@needs_root
def test_a_read_only_mount_is_seen_as_such(open_path: Path) -> None:
    """Nobody may write there, root included, whatever owner and mode say."""
    code = (
        "from pathlib import Path; from entrypoint.gather import look_at\n"
        f"s = look_at(Path({str(open_path)!r}), 0, 0, ())\n"
        "print(s.readable, s.writable, s.changeable, s.read_only, s.described)"
    )
    folder = str(open_path)
    script = f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}' && exec \"$@\""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(DOCKER)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mounts cannot be made here: {done.stderr.strip()}")
    assert done.stdout == "True False False True lies on a read-only file system\n"


# ---- where keys may be ----
@pytest.fixture
def home(image: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "SECRET_KEY_FILE", image / "run/secrets/ssh_public_key")
    (image / "home/dev/.ssh").mkdir()
    return image / "home/dev"


def sources(home: Path, **variables: str) -> tuple[Source, ...]:
    return key_sources(settings(**variables), home, *ME)


def test_all_places_are_looked_at_in_order(home: Path, image: Path) -> None:
    (image / "run/secrets").mkdir()
    (image / "run/secrets/ssh_public_key").write_text("secret\n")
    (home / ".ssh/authorized_keys").write_text("own\n")
    (image / "keys").write_text("file\n")
    found = sources(home, SSH_PUBLIC_KEY="variable", SSH_PUBLIC_KEY_FILE=str(image / "keys"))
    assert [source.text for source in found] == ["variable", "file\n", "secret\n", "own\n"]
    assert [source.name for source in found] == [
        "SSH_PUBLIC_KEY",
        str(image / "keys"),
        str(image / "run/secrets/ssh_public_key"),
        str(home / ".ssh/authorized_keys"),
    ]


def test_where_nothing_is_it_says_so(home: Path) -> None:
    assert [(source.text, source.absent) for source in sources(home)] == [
        (None, "is not set"),
        (None, "does not exist"),
        (None, "does not exist"),
    ]


def test_a_folder_in_place_of_the_file_is_said(home: Path, image: Path) -> None:
    """Docker makes one for `-v FILE:/keys` when the host has no such file."""
    found = sources(home, SSH_PUBLIC_KEY_FILE=str(image / "home"))[1]
    assert found == Source(str(image / "home"), None, "is not a file", asked_for=True)


def test_a_directory_gives_its_public_keys_and_no_other_file_is_opened(home: Path, image: Path) -> None:
    """As ~/.ssh of the host is: private keys beside the public ones."""
    folder = image / "keys"
    folder.mkdir()
    for name in ("b.pub", "a.pub", "authorized_keys", "id_ed25519", "config", "known_hosts"):
        (folder / name).write_text(f"text of {name}\n")
    found = sources(home, SSH_PUBLIC_KEY_DIR=str(folder))[1:-2]
    assert [source.name for source in found] == [
        f"{folder}/{n}" for n in ("a.pub", "authorized_keys", "b.pub")
    ]
    assert found[0].text == "text of a.pub\n"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "does not exist"),
        ("file", "is not a directory"),
        ("empty", "holds no *.pub and no authorized_keys"),
    ],
)
def test_a_directory_without_keys_is_said(home: Path, image: Path, kind: str, says: str) -> None:
    folder = image / "keys"
    if kind == "file":
        folder.touch()
    elif kind == "empty":
        folder.mkdir()
    found = sources(home, SSH_PUBLIC_KEY_DIR=str(folder))[1]
    assert found == Source(str(folder), None, says, asked_for=True)


@needs_root
def test_a_link_in_a_users_directory_of_keys_shows_root_nothing(home: Path, open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_text("root:hash\n")
    secret.chmod(0o600)
    folder = open_path / "keys"
    folder.mkdir()
    (folder / "a.pub").symlink_to(secret)
    os.chown(folder, UID, GID)
    found = sources(home, SSH_PUBLIC_KEY_DIR=str(folder))[1]
    assert (found.text, found.absent) == (None, "cannot be read (Permission denied)")


def test_a_pipe_in_place_of_the_file_does_not_hold_up_the_start(home: Path) -> None:
    os.mkfifo(home / ".ssh/authorized_keys")
    assert sources(home)[-1].absent == "is not a file"


def test_a_device_without_end_is_not_read(home: Path) -> None:
    (home / ".ssh/authorized_keys").symlink_to("/dev/zero")
    assert sources(home)[-1].absent == "is not a file"


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe" + "Grüße".encode("utf-16-le"), b"\xfe\xff" + "Grüße".encode("utf-16-be"), "Grüße".encode()],
    ids=["UTF-16, as PowerShell writes it", "UTF-16, big end first", "UTF-8"],
)
def test_text_is_decoded(home: Path, raw: bytes) -> None:
    (home / ".ssh/authorized_keys").write_bytes(raw)
    assert sources(home)[-1].text == "Grüße"


@needs_root
def test_a_link_in_the_home_shows_root_nothing(home: Path, open_path: Path) -> None:
    """Wrong lines of a key file are printed in the log, so a link would show what root alone may read."""
    secret = open_path / "secret"
    secret.write_text("root:hash\n")
    secret.chmod(0o600)
    (home / ".ssh/authorized_keys").symlink_to(secret)
    found = key_sources(settings(), home, UID, GID)[-1]
    assert (found.text, found.absent) == (None, "cannot be read (Permission denied)")


# ---- the run directory, the state, the port ----
def make(run: Path, kind: str) -> None:
    if kind == "a link":
        run.symlink_to("/")
    elif kind == "a file":
        run.write_text("")
    elif kind != "not there":
        run.mkdir()


@pytest.mark.parametrize(
    ("kind", "usable"), [("not there", True), ("a directory", True), ("a link", False), ("a file", False)]
)
def test_a_run_directory_is_made_or_taken(image: Path, kind: str, usable: bool) -> None:
    make(image / "tmp/torchtap", kind)
    assert module._can_be_made(image / "tmp/torchtap") is usable


@needs_root
@pytest.mark.parametrize(
    ("owner", "usable"), [(UID, True), (0, False), (OTHER, False)], ids=["own", "root's", "another user's"]
)
def test_a_user_takes_only_a_run_directory_that_it_can_have(image: Path, owner: int, usable: bool) -> None:
    make(image / "tmp/torchtap", "a directory")
    os.chown(image / "tmp/torchtap", owner, owner)
    with acting_as(UID, GID):
        # os.access asks for the real user, which is root's here; so is the kernel's answer then.
        assert module._can_be_made(image / "tmp/torchtap") is (usable or owner == 0)
    assert module._can_be_made(image / "tmp/torchtap"), "root takes it over"


@needs_root
def test_what_another_user_left_in_the_state_is_seen(image: Path) -> None:
    for name in (paths.TOKEN, "lost+found", "notes"):
        (paths.STATE / name).touch()
    (paths.STATE / paths.SSH).mkdir(mode=0o700)
    with acting_as(UID, GID):
        assert module._of_others(paths.STATE, UID, in_use=False) == (paths.SSH, paths.TOKEN)
    assert module._of_others(paths.STATE, UID, in_use=True) == (paths.TOKEN,)
    os.chown(paths.STATE / paths.SSH, UID, GID)
    os.chown(paths.STATE / paths.TOKEN, UID, GID)
    with acting_as(UID, GID):
        assert module._of_others(paths.STATE, UID, in_use=False) == ()
    assert module._of_others(paths.STATE, UID, in_use=True) == ()


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert not module._port_is_free(port)
    assert module._port_is_free(port)


@pytest.mark.parametrize(
    ("uid_map", "rootless"),
    [
        ("         0          0 4294967295\n", False),
        ("         0       1000          1\n         1     100000      65536\n", True),
        (None, True),
    ],
    ids=["the whole range", "a user namespace", "unknown"],
)
def test_a_rootless_engine_is_recognised(tmp_path: Path, uid_map: str | None, rootless: bool) -> None:
    if uid_map is not None:
        (tmp_path / "uid_map").write_text(uid_map)
    assert module._is_rootless(tmp_path / "uid_map") is rootless


# ---- all together ----
@needs_root
def test_root_gathers_for_the_owner_of_the_workspace(
    image: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(paths.WORKSPACE, UID, GID)
    (image / "elsewhere").mkdir()
    monkeypatch.chdir(image / "elsewhere")
    monkeypatch.setattr(os, "getgroups", lambda: [0, GID, 44])
    before = sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_uid) for p in image.rglob("*"))
    facts = gather({"A": "1"}, settings(SSH_PUBLIC_KEY="k"))
    assert (facts.is_root, facts.can_be_user, facts.uid, facts.gid) == (True, True, UID, GID)
    assert facts.environment == {"A": "1"}
    assert facts.current.path == image / "elsewhere"
    assert (facts.workspace.readable, facts.workspace.writable) == (True, True)
    assert not facts.workspace_is_new
    assert (facts.home.path, facts.home.writable, facts.home.changeable) == (home, False, True)
    assert facts.run == image / "run/torchtap"
    assert facts.key_sources[0].text == "k"
    assert facts.groups == (44,), "root's own group is not dev's, and the user's is known"
    assert sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_uid) for p in image.rglob("*")) == before


@needs_root
@pytest.mark.parametrize(
    ("owner", "content", "new"),
    [((0, 0), (), True), ((0, 0), ("train.py",), False), ((UID, UID), (), False), ((0, GID), (), False)],
    ids=["root's and empty", "root's with a file", "a user's", "root's for a team"],
)
def test_a_workspace_that_docker_made_is_new(
    image: Path, home: Path, owner: tuple[int, int], content: tuple[str, ...], new: bool
) -> None:
    os.chown(paths.WORKSPACE, *owner)
    for name in content:
        (paths.WORKSPACE / name).touch()
    assert gather({}, settings()).workspace_is_new is (new and not module._is_rootless())


@needs_root
@pytest.mark.parametrize(
    ("uid", "content", "hosts", "new"),
    [(UID, (), False, True), (UID, ("x",), False, False), (UID, (), True, False), (1000, (), False, False)],
    ids=["another id", "with a file", "a folder of the host", "the image's id"],
)
def test_an_empty_workspace_of_the_image_is_new_for_another_id(
    image: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    content: tuple[str, ...],
    hosts: bool,
    new: bool,
) -> None:
    """A volume that was never used has the image's owner, whatever HOST_UID is."""
    os.chown(paths.WORKSPACE, 1000, 1000)
    for name in content:
        (paths.WORKSPACE / name).touch()
    root = "/home/me/project" if hosts else "/var/lib/docker/volumes/x/_data"
    monkeypatch.setattr(module, "mounts", lambda: [Mount(paths.WORKSPACE, root)])
    assert gather({}, settings(HOST_UID=str(uid))).workspace_is_new is new


@needs_root
def test_a_working_directory_that_was_removed_is_the_workspace(
    image: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image / "gone").mkdir()
    monkeypatch.chdir(image / "gone")
    (image / "gone").rmdir()
    assert gather({}, settings()).current.path == paths.WORKSPACE
    monkeypatch.chdir(image)


@pytest.mark.parametrize(
    ("status", "held"),
    [
        ("Name:\tx\nCapPrm:\t0\nCapEff:\t00000000a80425fb\nCapBnd:\t0\n", True),
        ("CapEff:\t00000000a80025fb\n", False),
        ("Name:\tx\n", True),
        (None, True),
    ],
    ids=["Docker's own set", "without SYS_CHROOT", "no such line", "unknown"],
)
def test_a_capability_is_read_from_the_kernels_own_list(
    tmp_path: Path, status: str | None, held: bool
) -> None:
    if status is not None:
        (tmp_path / "status").write_text(status)
    assert module.has_capability(module.CAP_SYS_CHROOT, tmp_path / "status") is held


@needs_root
def test_root_without_the_capability_to_change_its_user_is_recognised(image: Path) -> None:
    """docker run --cap-drop ALL"""
    code = (
        "import json; from entrypoint.gather import gather; from entrypoint.settings import Settings\n"
        "f = gather({}, Settings.read({})); print(json.dumps([f.is_root, f.can_be_user, f.key_sources]))"
    )
    command = ["setpriv", "--bounding-set=-setuid,-setgid", "--inh-caps=-setuid,-setgid"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(DOCKER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == [True, False, []]


# ---- a home that the user brings along ----
@pytest.mark.parametrize(
    ("given", "is_root", "taken"),
    [
        ("alice", False, True),
        ("alice", True, False),
        ("nowhere", False, False),
        ("file", False, False),
        ("/", False, False),
        ("/root", False, False),
        ("", False, False),
        ("relative", False, False),
    ],
)
def test_home_of_a_user_who_comes_with_one(image: Path, given: str, is_root: bool, taken: bool) -> None:
    """By Apptainer, or --user with -e HOME=...: the folder of the host, at its own path, if it can be written."""
    own = image / "data/alice"
    own.mkdir(parents=True)
    (image / "data/file").touch()
    home = given if given in ("/", "/root", "", "relative") else str(image / "data" / given)
    assert home_folder({"HOME": home}, is_root=is_root) == (own if taken else paths.HOME)


@pytest.mark.parametrize(
    ("asked", "shell"),
    [
        ("/bin/sh", "/bin/sh"),
        ("/usr/bin/fish-of-the-host", "/bin/bash"),
        ("", "/bin/bash"),
        ("sh", "/bin/bash"),
    ],
)
def test_a_shell_that_is_not_in_the_image_is_replaced(image: Path, asked: str, shell: str) -> None:
    assert gather({"SHELL": asked}, settings()).shell == shell
