"""The SSH host key: made once, mended at every start, never exchanged in silence."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint import fingerprints, hostkey, paths
from entrypoint.plan import PlanError
from entrypoint.services import HOST_KEY

from .conftest import OTHER, needs_root

DOCKER = Path(__file__).parents[3] / "docker"
pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """The folder in the state volume; the run directory lies beside it."""
    (tmp_path / "ssh").mkdir()
    (tmp_path / "run").mkdir()
    return tmp_path / "ssh"


def provide(ssh: Path) -> str:
    """What a start does, with a new run directory; the fingerprint that clients see."""
    run = ssh.parent / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    hostkey.provide(ssh, run)
    return seen(run / HOST_KEY)


def seen(key: Path) -> str:
    """As ssh-keygen reads it from the private key alone."""
    public = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(key)], capture_output=True, text=True, check=True
    ).stdout
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", "-"], input=public, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[1]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_made_once_and_every_volume_has_its_own(ssh: Path, tmp_path: Path) -> None:
    first = provide(ssh)
    assert names(ssh) == [HOST_KEY, f"{HOST_KEY}.pub"]
    assert stat.S_IMODE((ssh / HOST_KEY).stat().st_mode) == 0o600
    assert provide(ssh) == first
    (tmp_path / "other").mkdir()
    assert provide(tmp_path / "other") != first


def test_the_public_half_lies_where_the_user_can_read_it(ssh: Path) -> None:
    shown = provide(ssh)
    public = hostkey.public_of(ssh.parent / "run")
    assert hostkey.fingerprint(public) == shown
    assert public == (ssh / f"{HOST_KEY}.pub").read_text()


def test_c31_a_key_that_others_could_read_is_closed_again(
    ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0777 on a mounted volume: sshd would not start."""
    first = provide(ssh)
    (ssh / HOST_KEY).chmod(0o777)
    assert provide(ssh) == first
    assert stat.S_IMODE((ssh / HOST_KEY).stat().st_mode) == 0o600
    assert capsys.readouterr().err == ""


@needs_root
def test_a_key_of_another_user_becomes_roots(ssh: Path) -> None:
    first = provide(ssh)
    os.chown(ssh / HOST_KEY, OTHER, OTHER)
    assert provide(ssh) == first
    assert (ssh / HOST_KEY).stat().st_uid == 0


@pytest.mark.parametrize("public", [None, "half", "ssh-ed25519 AAAA of another\n"])
def test_the_public_half_is_made_again(ssh: Path, public: str | None) -> None:
    first = provide(ssh)
    path = ssh / f"{HOST_KEY}.pub"
    path.unlink() if public is None else path.write_text(public)
    assert provide(ssh) == first
    assert hostkey.fingerprint(path.read_text()) == first


def instead(key: Path, make: Callable[[], object]) -> None:
    key.unlink()
    make()


SPOILT: dict[str, Callable[[Path], object]] = {
    "cut off": lambda key: key.write_bytes(key.read_bytes()[:150]),
    "empty": lambda key: key.write_bytes(b""),
    "something else": lambda key: key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n"),
    "with a passphrase": lambda key: subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True, capture_output=True
    ),
    "a directory": lambda key: instead(key, key.mkdir),
    "a pipe": lambda key: instead(key, lambda: os.mkfifo(key)),
    "a link": lambda key: instead(key, lambda: key.symlink_to("/etc/passwd")),
}


@pytest.mark.parametrize("how", SPOILT)
def test_c31_a_damaged_key_is_kept_aside_and_the_change_is_said(
    ssh: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = provide(ssh)
    SPOILT[how](ssh / HOST_KEY)
    before = (ssh / HOST_KEY).lstat().st_ino
    assert provide(ssh) != first
    assert (ssh / f"{HOST_KEY}.damaged-1").lstat().st_ino == before
    error = capsys.readouterr().err
    assert error.startswith(
        f"ERROR   ssh: the host key in {ssh} cannot be used; a new one is made, and clients will call it changed\n"
    )
    assert f"kept as {ssh}/{HOST_KEY}.damaged-1. On each client: ssh-keygen -R" in error
    SPOILT[how](ssh / HOST_KEY)
    provide(ssh)
    assert names(ssh) == [HOST_KEY, f"{HOST_KEY}.damaged-1", f"{HOST_KEY}.damaged-2", f"{HOST_KEY}.pub"]


def test_a_key_that_is_gone_is_said_too(ssh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = provide(ssh)
    (ssh / HOST_KEY).unlink()
    assert provide(ssh) != first
    assert "The old one is gone. On each client" in capsys.readouterr().err


def test_what_a_start_left_that_was_cut_short_goes(ssh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ssh / ".new-1234").write_text("half")
    (ssh / f".{HOST_KEY}.pub.abcd").write_text("half")
    (ssh / "mine").write_text("a file of the user's")
    provide(ssh)
    assert names(ssh) == ["mine", HOST_KEY, f"{HOST_KEY}.pub"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("locks", [True, False], ids=["with locks", "a file system without locks"])
def test_containers_that_start_at_once_on_one_volume_have_one_key(ssh: Path, locks: bool) -> None:
    code = (
        "import fcntl, sys; from pathlib import Path; from entrypoint import hostkey\n"
        f"if not {locks}: fcntl.flock = lambda *_: (_ for _ in ()).throw(OSError(95, 'no locks'))\n"
        "run = Path(sys.argv[1]); run.mkdir(); hostkey.provide(Path(sys.argv[2]), run)\n"
    )
    runs = [ssh.parent / f"run{number}" for number in range(6)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(run), str(ssh)],
            env={**os.environ, "PYTHONPATH": str(DOCKER)},
            stderr=subprocess.PIPE,
        )
        for run in runs
    ]
    assert [process.communicate()[1] for process in started] == [b""] * len(runs)
    assert len({hostkey.public_of(run) for run in runs} | {(ssh / f"{HOST_KEY}.pub").read_text()}) == 1
    assert {hostkey.fingerprint(hostkey.public_of(run)) for run in runs} == {seen(ssh / HOST_KEY)}


def test_a_volume_that_takes_nothing_does_not_lock_the_user_out(
    ssh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = hostkey._keygen

    def full(*words: str) -> subprocess.CompletedProcess[str]:
        if words[-1].startswith(f"{ssh}/.new-"):
            return subprocess.CompletedProcess(words, 1, "", "Saving key failed: No space left on device\n")
        return real(*words)

    monkeypatch.setattr(hostkey, "_keygen", full)
    assert provide(ssh).startswith("SHA256:")
    assert names(ssh) == []
    assert capsys.readouterr().err == (
        f"ERROR   ssh: the host key cannot be kept in {ssh}: Saving key failed: No space left on device\n"
        "        This start has a key of its own, which clients will call changed. "
        "Make room in the state volume\n"
    )


def test_a_damaged_key_stays_in_its_place_where_no_other_can_be_made(
    ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(ssh)
    (ssh / HOST_KEY).write_text("damaged")
    monkeypatch.setattr(
        hostkey,
        "_keygen",
        lambda *words: subprocess.CompletedProcess(words, 255, "", "No user exists for uid 5\n"),
    )
    with pytest.raises(PlanError) as raised:
        provide(ssh)
    assert str(raised.value) == "the host key cannot be made: No user exists for uid 5"
    assert raised.value.remedy == ("To do without SSH, start with the role jupyter",)
    assert (ssh / HOST_KEY).read_text() == "damaged"
    assert names(ssh) == [HOST_KEY, f"{HOST_KEY}.pub"]


# ---- torchtap-fingerprints ----
@pytest.fixture
def started(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A container in which sshd was started; its key's fingerprint."""
    shown = provide(ssh)
    run = ssh.parent / "run"
    (run / paths.STARTED).write_text("{}")
    monkeypatch.setattr(paths, "RUN_CANDIDATES", (run,))
    return shown


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ([], "[127.0.0.1]:2222"),
        (["gpu-host"], "[gpu-host]:2222"),
        (["gpu-host", "22"], "gpu-host"),
        (["::1", "9000"], "[::1]:9000"),
    ],
)
def test_fingerprint_and_the_line_for_known_hosts(
    started: str, capsys: pytest.CaptureFixture[str], words: list[str], where: str, tmp_path: Path
) -> None:
    assert fingerprints.main(words) == 0
    shown, line = capsys.readouterr().out.splitlines()
    assert shown == started
    assert line.split()[0] == where
    known = tmp_path / "known_hosts"
    known.write_text(line + "\n")
    found = subprocess.run(
        ["ssh-keygen", "-l", "-F", where, "-f", str(known)], capture_output=True, text=True, check=True
    )
    assert started in found.stdout


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["-h"], 0), (["--all"], 2), (["a", "b"], 2), (["a", "1", "2"], 2)]
)
def test_usage_of_fingerprints(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert fingerprints.main(words) == code
    said = capsys.readouterr()
    assert (said.err if code else said.out).startswith("usage: torchtap-fingerprints [HOST [PORT]]\n")


def test_without_sshd_there_is_nothing_to_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "RUN_CANDIDATES", (tmp_path,))
    assert fingerprints.main([]) == 1
    (tmp_path / paths.STARTED).write_text("{}")
    assert fingerprints.main([]) == 1
    said = "torchtap-fingerprints: sshd was not started in this container; its log says why\n"
    assert capsys.readouterr().err == said * 2
