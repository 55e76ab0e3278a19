"""The name dev for any id, and acting as that user."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from entrypoint.account import NAME, Account, acting_as, change_identity

from .conftest import GID, OTHER, UID, needs_root


@pytest.mark.parametrize(
    ("uid", "gid", "home"),
    [
        (1000, 1000, "/home/dev"),
        (12345, 54321, "/tmp/torchtap-home-12345"),
        (0, 0, "/home/dev"),
        (2**31 - 2, 100, "/home/dev"),
    ],
)
def test_files_name_the_user(uid: int, gid: int, home: str) -> None:
    files = Account(uid, gid, (44,), home).files
    assert files == {
        "passwd": f"dev:x:{uid}:{gid}::{home}:/bin/bash\n",
        "group": f"dev:x:{gid}:\ndev-44:x:44:dev\n",
        "shadow": "dev:*:19000:0:99999:7:::\n",
    }


@pytest.mark.skipif(not shutil.which("pwck"), reason="pwck is not installed")
def test_files_are_well_formed(tmp_path: Path) -> None:
    for name, text in Account(12345, 54321, (), str(tmp_path)).files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["pwck", "-r", "-q", str(tmp_path / "passwd"), str(tmp_path / "shadow")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "invalid" not in done.stdout + done.stderr


def test_shadow_has_no_password_and_is_not_locked() -> None:
    """sshd refuses users whose field begins with an exclamation mark, even with a key."""
    assert Account(1, 1, (), "/").files["shadow"].split(":")[:2] == [NAME, "*"]


@needs_root
def test_files_made_meanwhile_are_the_users(open_path: Path) -> None:
    open_path.chmod(0o777)
    with acting_as(UID, GID):
        (open_path / "mine").touch()
    (open_path / "roots").touch()
    assert [((open_path / n).stat().st_uid, (open_path / n).stat().st_gid) for n in ("mine", "roots")] == [
        (UID, GID),
        (0, 0),
    ]


@needs_root
def test_what_root_alone_may_read_stays_closed(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    with pytest.raises(PermissionError), acting_as(UID, GID):
        secret.read_text()
    assert secret.read_text() == "x", "root again"


def fail() -> None:
    raise ZeroDivisionError


@needs_root
def test_an_exception_ends_it_too() -> None:
    with pytest.raises(ZeroDivisionError), acting_as(UID, GID):
        fail()
    assert (os.geteuid(), os.getegid()) == (0, 0)


@needs_root
def test_within_it_nobody_else_can_be_acted_as() -> None:
    """Root's rights are gone meanwhile, so an inner one changes nothing."""
    with acting_as(UID, GID), acting_as(UID + 1, GID):
        assert os.geteuid() == UID


@needs_root
def test_who_becomes_the_user_keeps_the_groups_of_group_add() -> None:
    child = os.fork()
    if child == 0:
        change_identity(UID, GID, [OTHER])
        well = (
            os.getresuid() == (UID,) * 3
            and os.getresgid() == (GID,) * 3
            and set(os.getgroups()) == {GID, OTHER}
        )
        os._exit(not well)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
