"""Doing what the plan says, in an image's folders below tmp: owners, modes, links, and doing it again."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entrypoint import apply as module
from entrypoint import owning, paths, sessions
from entrypoint.account import Account, acting_as
from entrypoint.apply import apply
from entrypoint.mounts import Mount
from entrypoint.notices import Notice
from entrypoint.plan import Plan
from entrypoint.services import Service
from entrypoint.stop import STOPPING

from .box import wait_until
from .conftest import GID, OTHER, UID, ignored_by_python, needs_root

ROOTFS = Path(__file__).parents[3] / "docker/rootfs"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"
needs_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")


@pytest.fixture
def plan(image: Path) -> Plan:
    """Role dev with a key, for a user whose ids are not the image's; nothing is where it could not be."""
    run = paths.RUN_CANDIDATES[0]
    uid, gid = (UID, GID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    (image / "bin/run-beside").symlink_to(ROOTFS / "opt/torchtap/bin/run-beside")
    return Plan(
        role="dev",
        run=run,
        account=Account(uid, gid, (), str(paths.HOME)),
        is_root=os.geteuid() == 0,
        home=paths.HOME,
        home_to_own=False,
        home_of=(0, 1000),
        state=paths.STATE,
        state_to_take=os.geteuid() == 0,
        report=paths.STATE / "selftest.json",
        folders_to_own=(),
        image=None,
        workspace_to_own=False,
        examples_to_copy=False,
        working_directory=paths.WORKSPACE,
        environment={"PATH": "/usr/bin:/bin", "A": "two\nlines ü", "JUPYTER_RUNTIME_DIR": f"{run}/jupyter"},
        authorized_keys=(KEY,),
        ssh_port=22,
        jupyter_token="",
        jupyter_port=8888,
        device="auto",
        services=(
            Service(name="sshd", argv=("sshd", "-D"), as_root=True),
            Service(name="jupyter", argv=("jupyter-lab",)),
            Service(name="selftest", argv=("after-ready",), once=True),
        ),
        command=(),
        selftest="warn",
        stop_grace_s=10.0,
        notices=(),
    )


def change(plan: Plan, **changes: object) -> Plan:
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def belongs(path: Path) -> tuple[int, int, str]:
    """Owner, group and mode, of a link itself."""
    found = path.lstat()
    return found.st_uid, found.st_gid, f"{stat.S_IMODE(found.st_mode):o}"


def give(path: Path, uid: int = UID, gid: int = GID) -> Path:
    os.chown(path, uid, gid, follow_symlinks=False)
    return path


# ---- everything ----
@needs_root
@needs_keygen
def test_files_are_there_with_owner_and_mode(plan: Plan) -> None:
    apply(plan)
    run, state = plan.run, plan.state
    expected = {
        run: (0, 0, "755"),
        run / "environment": (0, GID, "640"),
        run / "path": (0, 0, "644"),
        run / "authorized_keys": (0, 0, "644"),
        run / "extrausers/passwd": (0, 0, "644"),
        run / "jupyter": (UID, GID, "700"),
        run / "started.json": (0, 0, "644"),
        run / "services/jupyter": (0, 0, "755"),
        state: (0, GID, "1775"),
        state / "jupyter-token": (UID, GID, "600"),
        state / "ssh": (0, 0, "700"),
        state / "ssh/ssh_host_ed25519_key": (0, 0, "600"),
        paths.SSHD_EMPTY: (0, 0, "755"),
    }
    assert {path: belongs(path) for path in expected} == expected


@needs_keygen
def test_files_say_what_the_plan_says(plan: Plan) -> None:
    apply(plan)
    run = plan.run
    assert sessions.unpack((run / "environment").read_bytes()) == plan.environment
    assert (run / "path").read_text() == "/usr/bin:/bin\n"
    assert (run / "authorized_keys").read_text() == f"{KEY}\n"
    assert (run / "extrausers/passwd").read_text() == plan.account.files["passwd"]
    assert json.loads((run / "started.json").read_text()) == {
        "role": "dev",
        "services": ["sshd", "jupyter"],
        "uid": plan.account.uid,
        "gid": plan.account.gid,
        "home": str(plan.home),
        "state": str(plan.state),
        "report": str(plan.state / "selftest.json"),
        "selftest": "warn",
        "groups": [],
        "ssh_port": 22,
        "jupyter_port": 8888,
        "jupyter_runtime": f"{run}/jupyter",
        "device": "auto",
        "stop_grace_s": 10.0,
        "overlay": None,
    }


@needs_keygen
def test_the_token_is_in_no_other_file(plan: Plan, image: Path) -> None:
    apply(change(plan, jupyter_token="secret-of-the-user"))
    holding = [
        p for p in image.rglob("*") if p.is_file() and not p.is_symlink() and b"secret-of" in p.read_bytes()
    ]
    assert holding == [plan.state / "jupyter-token"]


@needs_keygen
def test_a_second_start_changes_neither_token_nor_host_key(plan: Plan) -> None:
    apply(plan)
    kept = [plan.state / "jupyter-token", *(plan.state / "ssh").iterdir()]
    before = [path.read_bytes() for path in kept]
    apply(plan)
    assert [path.read_bytes() for path in kept] == before
    assert len(kept) == 3


def test_a_command_needs_neither_keys_nor_token(plan: Plan) -> None:
    apply(change(plan, services=(), authorized_keys=(), command=("true",)))
    assert sorted(path.name for path in plan.run.iterdir()) == [
        "environment",
        "extrausers",
        "gitconfig",
        "path",
        "started.json",
    ]
    assert [path.name for path in plan.state.iterdir()] == ["ssh"]
    assert not paths.SSHD_EMPTY.exists()


def test_notices_are_logged_with_their_level(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    notices = (
        Notice("info", "a", "one"),
        Notice("warning", "b", "two", ("do this",)),
        Notice("error", "c", "3"),
    )
    apply(change(plan, services=(), authorized_keys=(), notices=notices))
    assert capsys.readouterr().err == ("INFO    a: one\nWARNING b: two\n        do this\nERROR   c: 3\n")


# ---- the run directory ----
@needs_root
def test_what_lies_in_the_run_directory_is_removed_before_anything_is_run_from_it(
    plan: Plan, image: Path
) -> None:
    """In /tmp anybody could have made it, with services of their own."""
    run = image / "tmp/torchtap"
    victim = image / "victim"
    victim.mkdir()
    (victim / "file").touch()
    (run / "services/evil").mkdir(parents=True)
    (run / "services/evil/run").touch()
    (run / "authorized_keys").write_text("evil")
    (run / "link").symlink_to(victim)
    for path in (run, *run.rglob("*")):
        give(path, OTHER, OTHER)
    environment = {**plan.environment, "JUPYTER_RUNTIME_DIR": f"{run}/jupyter"}
    apply(change(plan, run=run, environment=environment, authorized_keys=(), services=(plan.services[1],)))
    assert belongs(run) == (0, 0, "755")
    assert {path.name for path in (run / "services").iterdir()} == {".s6-svscan", "jupyter"}
    assert not (run / "authorized_keys").exists()
    assert (victim / "file").exists()
    assert not [path for path in run.rglob("*") if path.lstat().st_uid == OTHER]


@pytest.mark.parametrize("kind", ["a link", "a file"])
def test_a_run_directory_that_is_none_ends_the_start(plan: Plan, image: Path, kind: str) -> None:
    run = image / "tmp/torchtap"
    victim = image / "victim"
    victim.mkdir()
    (victim / "file").touch()
    if kind == "a link":
        run.symlink_to(victim)
    else:
        run.touch()
    if os.geteuid() != 0:
        pytest.skip("a user's own run directory has nobody else's links")
    with pytest.raises(OSError, match=str(run)):
        apply(change(plan, run=run, services=(), authorized_keys=()))
    assert (victim / "file").exists()
    assert belongs(victim)[:2] == (0, 0)


# ---- the user's name ----
PASSWD = "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:/bin/false\n"


@needs_root
def test_dev_comes_first_in_passwd_once_and_the_others_stay(plan: Plan, image: Path) -> None:
    bare = change(plan, services=(), authorized_keys=())
    apply(bare)
    apply(change(bare, account=Account(33, GID, (), "/home/dev")))
    assert (image / "etc/passwd").read_text() == f"dev:x:33:{GID}::/home/dev:/bin/bash\n{PASSWD}"
    assert (image / "etc/group").read_text() == f"dev:x:{GID}:\nroot:x:0:\nwww-data:x:33:\n"
    assert belongs(image / "etc/passwd") == (0, 0, "644")


@needs_root
def test_an_account_that_a_derived_image_locked_is_opened_for_keys(plan: Plan, image: Path) -> None:
    """`useradd dev` writes dev:! into /etc/shadow; sshd refuses such users whatever their key."""
    shadow = image / "etc/shadow"
    bare = change(plan, services=(), authorized_keys=())
    apply(bare)
    assert not shadow.exists()
    shadow.write_text("root:*:1:0:99999:7:::\ndev:!:1:0:99999:7:::\nnobody:*:1:0:99999:7:::\n")
    shadow.chmod(0o640)
    give(shadow, 0, 42)
    apply(bare)
    assert shadow.read_text().splitlines() == [
        bare.account.files["shadow"].rstrip(),
        "root:*:1:0:99999:7:::",
        "nobody:*:1:0:99999:7:::",
    ]
    assert belongs(shadow) == (0, 42, "640")


@needs_root
def test_passwd_survives_names_that_are_not_utf8(plan: Plan, image: Path) -> None:
    (image / "etc/passwd").write_bytes(b"x:x:5:5:Andr\xe9:/:/bin/sh\n")
    apply(change(plan, services=(), authorized_keys=()))
    assert (image / "etc/passwd").read_bytes().endswith(b"\nx:x:5:5:Andr\xe9:/:/bin/sh\n")


@needs_root
def test_root_is_never_renamed(plan: Plan, image: Path) -> None:
    apply(change(plan, account=Account(0, 0, (), "/home/dev"), services=(), authorized_keys=()))
    assert (image / "etc/passwd").read_text() == PASSWD


@needs_root
@pytest.mark.parametrize(("uid", "warned"), [(UID, False), (100, True)], ids=["usual id", "id below 500"])
def test_where_passwd_cannot_be_written_only_low_ids_are_warned_of(
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    uid: int,
    warned: bool,
    image: Path,
) -> None:
    def read_only(path: Path, *_: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(module, "_replace_lines", read_only)
    apply(change(plan, account=Account(uid, GID, (), "/home/dev"), services=(), authorized_keys=()))
    warning = (
        f"WARNING user: user id 100 has no name here: {image}/etc/passwd cannot be written (Read-only file system)\n"
        "        SSH needs one. With a read-only root use a user id of 500 or more\n"
    )
    assert capsys.readouterr().err == (warning if warned else "")


def test_screen_has_a_place_for_its_sockets_and_one_that_is_there_stays(plan: Plan, image: Path) -> None:
    """`--read-only --tmpfs /run` hides the image's own, and screen may not make one."""
    apply(change(plan, services=(), authorized_keys=()))
    assert (image / "run/screen").stat().st_mode & 0o7777 == 0o1777
    (image / "run/screen").chmod(0o775)
    apply(change(plan, services=(), authorized_keys=()))
    assert (image / "run/screen").stat().st_mode & 0o7777 == 0o775


# ---- home ----
def home_only(plan: Plan, **changes: object) -> Plan:
    return change(plan, services=(), authorized_keys=(), **changes)


@needs_root
def test_a_new_home_begins_with_the_skeleton_as_the_users_files(plan: Plan) -> None:
    give(plan.home)
    apply(home_only(plan))
    assert (plan.home / ".bashrc").read_text() == "# bashrc\n"
    assert {path.name: belongs(path) for path in plan.home.iterdir()} == {
        ".bashrc": (UID, GID, "644"),
        ".profile": (UID, GID, "644"),
    }


@needs_root
def test_a_home_in_use_is_left_as_it_is(plan: Plan) -> None:
    give(plan.home)
    (plan.home / ".bashrc").write_text("mine")
    apply(home_only(plan))
    assert [path.name for path in plan.home.iterdir()] == [".bashrc"]
    assert (plan.home / ".bashrc").read_text() == "mine"


@needs_root
def test_of_the_skeleton_only_what_is_not_there_is_added(plan: Plan) -> None:
    give(plan.home)
    (plan.home / ".profile").write_text("mine")
    give(plan.home / ".profile")
    apply(home_only(plan))
    assert (plan.home / ".profile").read_text() == "mine"
    assert (plan.home / ".bashrc").exists()


@needs_root
@pytest.mark.parametrize("name", [".profile", ".bashrc"])
def test_a_dangling_link_in_the_home_is_never_followed(plan: Plan, image: Path, name: str) -> None:
    """Root would have made a file anywhere, and given it to the user: /etc/ld.so.preload, say."""
    give(plan.home)
    (plan.home / name).symlink_to(image / "etc/new-file")
    apply(home_only(plan))
    assert not (image / "etc/new-file").exists()
    assert (plan.home / name).is_symlink()


@needs_root
def test_a_home_is_given_with_what_is_roots_and_the_images(plan: Plan, image: Path) -> None:
    elsewhere = image / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (plan.home / ".cache/deep").mkdir(parents=True)
    (plan.home / ".cache/deep/file").touch()
    give(plan.home / ".cache/deep", 1000, 1000)
    (plan.home / "others").touch()
    give(plan.home / "others", OTHER, OTHER)
    (plan.home / "link").symlink_to(elsewhere)
    (plan.home / "dangling").symlink_to(image / "none")
    apply(home_only(plan, home_to_own=True))
    given = [".", ".cache", ".cache/deep", ".cache/deep/file", "link", "dangling"]
    assert {name: belongs(plan.home / name)[:2] for name in given} == dict.fromkeys(given, (UID, GID))
    assert belongs(plan.home / "others")[:2] == (OTHER, OTHER)
    assert belongs(elsewhere)[:2] == belongs(elsewhere / "file")[:2] == (0, 0)


@needs_root
def test_what_is_mounted_inside_the_home_is_not_given_away(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-v /srv/data:/home/dev/data`: a data set of the host, which is root's there too."""
    (plan.home / "data/deep").mkdir(parents=True)
    (plan.home / "data/deep/set.bin").touch()
    (plan.home / ".gitconfig").touch()
    (plan.home / "mine").mkdir()
    inside = [Mount(plan.home / "data", "/srv/data"), Mount(plan.home / ".gitconfig", "/host/.gitconfig")]
    monkeypatch.setattr(owning, "mounts", lambda: inside)
    apply(home_only(plan, home_to_own=True))
    assert belongs(plan.home / "mine")[:2] == belongs(plan.home)[:2] == (UID, GID)
    kept = ["data", "data/deep", "data/deep/set.bin", ".gitconfig"]
    assert {name: belongs(plan.home / name)[:2] for name in kept} == dict.fromkeys(kept, (0, 0))


@needs_root
def test_a_home_in_tmp_is_made_as_the_user(plan: Plan, image: Path) -> None:
    home = image / "tmp/torchtap-home"
    apply(home_only(plan, home=home))
    assert belongs(home) == (UID, GID, "755")
    assert belongs(home / ".bashrc")[:2] == (UID, GID)
    apply(home_only(plan, home=home))


@needs_root
@pytest.mark.parametrize("kind", ["another user's", "a link"])
def test_a_home_in_tmp_that_somebody_else_made_ends_the_start(plan: Plan, image: Path, kind: str) -> None:
    home = image / "tmp/torchtap-home"
    if kind == "a link":
        give(image / "workspace")
        home.symlink_to(image / "workspace")
        give(home)
    else:
        home.mkdir()
        give(home, OTHER, OTHER)
    with pytest.raises(OSError, match="is there already, and not this user's"):
        apply(home_only(plan, home=home))


# ---- state ----
@needs_root
def test_a_link_in_place_of_the_ssh_folder_is_removed(plan: Plan, image: Path) -> None:
    """The state was the user's before (--user, or a folder of the host): root must not close /opt, say."""
    victim = image / "victim"
    victim.mkdir()
    give(plan.state)
    (plan.state / "ssh").symlink_to(victim)
    apply(home_only(plan))
    assert belongs(victim) == (0, 0, "755")
    assert belongs(plan.state / "ssh") == (0, 0, "700")
    assert not (plan.state / "ssh").is_symlink()


@needs_root
def test_a_users_ssh_folder_becomes_roots(plan: Plan) -> None:
    (plan.state / "ssh").mkdir(mode=0o777)
    give(plan.state / "ssh")
    apply(home_only(plan))
    assert belongs(plan.state / "ssh") == (0, 0, "700")


@needs_root
def test_the_user_cannot_replace_roots_ssh_folder(plan: Plan) -> None:
    apply(home_only(plan))
    with acting_as(UID, GID):
        (plan.state / "selftest.json").write_text("{}")  # but may write beside it
        with pytest.raises(PermissionError):
            (plan.state / "ssh").rename(plan.state / "gone")


@needs_root
def test_what_the_user_before_left_in_the_state_is_the_users_now(plan: Plan, image: Path) -> None:
    """HOST_UID was another: in a sticky folder the new user could not replace the last self-test."""
    victim = image / "victim"
    victim.touch()
    (plan.state / "selftest.json").touch()
    (plan.state / "jupyter-token").symlink_to(victim)
    for name in ("selftest.json", "jupyter-token"):
        give(plan.state / name, OTHER, OTHER)
    apply(home_only(plan))
    assert belongs(plan.state / "selftest.json")[:2] == (UID, GID)
    assert belongs(victim)[:2] == (0, 0)


@needs_root
def test_a_state_in_tmp_is_roots_and_nobody_elses(plan: Plan, image: Path) -> None:
    state = image / "tmp/torchtap-state"
    apply(home_only(plan, state=state))
    assert belongs(state) == (0, GID, "1775")
    other = image / "tmp/torchtap-other"
    other.mkdir()
    give(other, OTHER, OTHER)
    with pytest.raises(OSError, match="is there already"):
        apply(home_only(plan, state=other))


# ---- repositories ----
def test_repositories_below_the_workspace_are_named_to_git(plan: Plan, image: Path) -> None:
    for name in ("one", "two words"):
        (image / "workspace" / name / ".git").mkdir(parents=True)
    (image / "workspace/data").mkdir()
    apply(home_only(plan))
    assert (plan.run / "gitconfig").read_text() == (
        f'[safe]\n\tdirectory = "{image}/workspace/one"\n\tdirectory = "{image}/workspace/two words"\n'
    )


# ---- services ----
def test_scripts_are_links_to_a_program_of_the_image_and_well_formed(plan: Plan) -> None:
    """The run directory may be mounted noexec (docker run --tmpfs): nothing in it may have to be executable."""
    (plan.run / "services").parent.mkdir(exist_ok=True)
    module._scan_directory(plan)
    scan = plan.run / "services"
    links = {str(path.relative_to(scan)) for path in scan.rglob("*") if path.is_symlink()}
    assert links == {
        ".s6-svscan/finish",
        ".s6-svscan/SIGTERM",
        ".s6-svscan/SIGINT",
        ".s6-svscan/SIGQUIT",
        "sshd/run",
        "sshd/finish",
        "jupyter/run",
        "jupyter/finish",
        "selftest/run",
        "selftest/finish",
    }
    for name in links:
        assert (scan / name).readlink() == paths.BIN / "run-beside"
        subprocess.run(["sh", "-n", scan / f"{name}.sh"], check=True)
    assert not [p for p in scan.rglob("*.sh") if p.stat().st_mode & 0o111]
    assert (scan / "sshd/timeout-kill").read_text() == "5000\n"


@pytest.fixture
def supervised(plan: Plan, image: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start real supervision of services that note in files what becomes of them."""
    if not shutil.which("s6-svscan"):
        pytest.skip("s6 is not installed")
    image.joinpath("workspace").chmod(0o777)
    (image / "bin/stop").write_text(f"#!/bin/sh\nls {plan.run}/stopping >{image}/workspace/finished 2>&1\n")
    (image / "bin/stop").chmod(0o755)
    server = "trap 'sleep 0.3; : >ended; exit' TERM; echo x >>began; while :; do sleep 0.05; done"
    services = (
        Service(name="jupyter", argv=("sh", "-c", server)),
        Service(name="selftest", argv=("sh", "-c", "echo x >>tested"), once=True),
    )
    module._scan_directory(change(plan, services=services))
    running: list[subprocess.Popen[bytes]] = []

    def start(*prefix: str) -> subprocess.Popen[bytes]:
        command = [*prefix, "s6-svscan", "-c", "32", "-t", "0", str(plan.run / "services")]
        running.append(subprocess.Popen(command, cwd=plan.working_directory, start_new_session=True))
        wait_until((image / "workspace/began").exists, "the service does not run")
        return running[0]

    yield start
    for process in running:
        process.kill()
        process.wait()


@needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda n: n.name)
def test_a_stop_is_noted_then_services_end_then_the_rest_is_stopped(
    supervised: Callable[[], subprocess.Popen[bytes]], plan: Plan, image: Path, number: signal.Signals
) -> None:
    svscan = supervised()
    wait_until((image / "workspace/tested").exists, "the once service has not run")
    time.sleep(0.2)
    svscan.send_signal(number)
    assert svscan.wait(10) == 0
    assert (image / "workspace/ended").exists()
    assert (image / "workspace/finished").read_text() == f"{plan.run}/{STOPPING}\n"
    noted, finished = (plan.run / STOPPING).stat().st_mtime, (image / "workspace/finished").stat().st_mtime
    assert 0.3 <= finished - noted < 5, "noted when the signal came, not when the services had ended"
    assert (image / "workspace/tested").read_text() == "x\n", "run once"


@needs_root
def test_a_second_signal_does_not_move_the_note(
    supervised: Callable[[], subprocess.Popen[bytes]], plan: Plan
) -> None:
    svscan = supervised()
    svscan.terminate()
    wait_until((plan.run / STOPPING).exists, "not noted")
    noted = (plan.run / STOPPING).stat().st_mtime_ns
    time.sleep(0.1)
    svscan.terminate()
    svscan.wait(10)
    assert (plan.run / STOPPING).stat().st_mtime_ns == noted


@needs_root
def test_services_start_and_stop_where_the_run_directory_is_noexec(
    supervised: Callable[..., subprocess.Popen[bytes]], plan: Plan, image: Path
) -> None:
    folder = str(plan.run)
    mount = f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,noexec '{folder}'"
    prefix = ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts cannot be made here")
    svscan = supervised(*prefix)
    svscan.terminate()
    assert svscan.wait(10) == 0
    assert (image / "workspace/finished").exists()


# ---- becoming ----
WHO = """
import json, os
print(json.dumps([os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.getcwd(), dict(os.environ)]))
"""


def in_a_child(act: Callable[[], object]) -> tuple[str, int]:
    """What a child process that does this prints, and its exit code."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write, 1)
            act()
        finally:
            os._exit(99)
    os.close(write)
    with os.fdopen(read) as output:
        said = output.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@needs_root
def test_a_command_becomes_dev_for_good(plan: Plan) -> None:
    give(plan.working_directory)
    environment = {**plan.environment, "LC_ALL": "C.UTF-8"}  # else Python adds a variable of its own
    mine = change(plan, account=Account(UID, GID, (OTHER,), "/"), environment=environment)
    said, code = in_a_child(lambda: module.become(mine, ("/usr/bin/python3", "-IS", "-c", WHO)))
    assert code == 0
    uids, gids, groups, where, seen = json.loads(said)
    assert (uids, gids, groups) == ([UID] * 3, [GID] * 3, sorted([GID, OTHER]))
    assert where == str(plan.working_directory)
    assert seen == environment


def test_a_command_starts_with_signals_as_they_are_by_default(plan: Plan) -> None:
    own = change(plan, account=Account(os.getuid(), os.getgid(), (), "/"))
    said, _ = in_a_child(lambda: module.become(own, ("grep", "SigIgn", "/proc/self/status")))
    assert ignored_by_python(said) == []


@needs_root
def test_supervision_stays_root(plan: Plan, image: Path) -> None:
    (image / "bin/s6-svscan").write_text('#!/bin/sh\necho "$(id -u) $(pwd) $@"\n')
    (image / "bin/s6-svscan").chmod(0o755)
    mine = change(plan, environment={"PATH": f"{image}/bin:/usr/bin:/bin"})
    said, code = in_a_child(lambda: module.supervise(mine))
    assert code == 0
    assert said == f"0 {plan.working_directory} -c 32 -t 0 {plan.run}/services\n"


@needs_root
def test_a_command_that_is_waited_for_runs_as_dev(plan: Plan, capfd: pytest.CaptureFixture[str]) -> None:
    mine = change(plan, account=Account(UID, GID, (OTHER,), "/"))
    assert module.run_as_user(mine, ("sh", "-c", "id -u; id -g; pwd; exit 7")) == 7
    assert capfd.readouterr().out.split() == [str(UID), str(GID), str(plan.working_directory)]


@needs_root
def test_a_workspace_and_examples_are_the_users(plan: Plan) -> None:
    (paths.NOTEBOOKS / "01.ipynb").write_text("{}")
    apply(home_only(plan, workspace_to_own=True, examples_to_copy=True))
    assert belongs(paths.WORKSPACE)[:2] == (UID, GID)
    assert belongs(paths.WORKSPACE / "notebooks/01.ipynb")[:2] == (UID, GID)
    assert (plan.state / paths.EXAMPLES).exists(), "once"


# ---- without root ----
@needs_root
def test_a_user_that_is_not_root_can_apply_all_of_it_too(plan: Plan, image: Path, tmp_path: Path) -> None:
    """docker run --user 12345:54321"""
    # The real one refuses a user without a name, which libnss-extrausers gives in the image.
    fake = image / "bin/ssh-keygen"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -f ]; do shift; done\necho key >"$2"; echo pub >"$2.pub"\n')
    fake.chmod(0o755)
    mine = change(
        plan,
        is_root=False,
        home=image / "tmp/torchtap-home",
        state=image / "tmp/torchtap-state",
        environment={**plan.environment, "PATH": f"{image}/bin:/usr/bin:/bin"},
    )

    def act() -> None:
        os.environ["PATH"] = mine.environment["PATH"]
        os.setgroups([])
        os.setresgid(GID, GID, GID)
        os.setresuid(UID, UID, UID)
        apply(mine)
        apply(mine)
        os.write(1, b"done\n")
        os._exit(0)

    said, code = in_a_child(act)
    assert (said, code) == ("done\n", 0)
    assert belongs(mine.run / "environment") == (UID, GID, "640")
    assert belongs(mine.state / "jupyter-token") == (UID, GID, "600")
    assert belongs(mine.home / ".bashrc")[:2] == (UID, GID)
    assert (image / "etc/passwd").read_text() == PASSWD
    assert not paths.SSHD_EMPTY.exists()


def test_nothing_is_put_into_a_home_that_the_user_brought(plan: Plan, image: Path) -> None:
    own = image / "alice"
    own.mkdir()
    if os.geteuid() == 0:
        give(own, OTHER, OTHER)
    apply(change(plan, home=own, home_is_the_users=True, services=(), authorized_keys=()))
    assert list(own.iterdir()) == []
