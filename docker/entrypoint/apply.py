"""Do what the plan says, in order. Everything here can be done again: a container is started many times."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

from entrypoint import (
    certificates,
    hostkey,
    inuse,
    jupyter_token,
    lastimage,
    log,
    overlay,
    owning,
    paths,
    repositories,
    sessions,
    verdict,
)
from entrypoint.account import LOWEST_EXTRA_ID, NAME, acting_as, change_identity
from entrypoint.execute import execute
from entrypoint.lay import lay
from entrypoint.plan import Plan
from entrypoint.services import finish_script, run_script
from entrypoint.stop import STOPPING

SCAN = paths.SERVICES


def apply(plan: Plan) -> None:
    """Make everything ready for the services or the command; start neither."""
    for notice in plan.notices:
        {"info": log.info, "warning": log.warning, "error": log.error}[notice.level](
            notice.subject, notice.text, *notice.more
        )
    _run_directory(plan)
    _name_the_user(plan)
    certificates.write(plan.trust, plan.run, is_root=plan.is_root)
    _home(plan)
    overlaid = lay(plan.account, plan.run, safe=plan.safe)
    _state(plan)
    if plan.workspace_to_own:
        os.chown(paths.WORKSPACE, plan.account.uid, plan.account.gid)
    _folders(plan)
    if plan.examples_to_copy:
        run_as_user(plan, ("cp", "-r", str(paths.NOTEBOOKS), str(paths.WORKSPACE)))
        with contextlib.suppress(OSError):  # the volume may be full; then they come again
            paths.write(plan.state / paths.EXAMPLES, "")
    paths.write(
        plan.run / sessions.ENVIRONMENT,
        sessions.pack(plan.environment),
        mode=0o640,
        owner=(0, plan.account.gid),
    )
    paths.write(plan.run / "path", plan.environment.get("PATH", "") + "\n")  # for /etc/profile.d/torchtap.sh
    _repositories(plan)
    if plan.authorized_keys:
        paths.write(plan.run / "authorized_keys", "".join(f"{line}\n" for line in plan.authorized_keys))
        hostkey.provide(plan.state / paths.SSH, plan.run)
    if any(service.name == "jupyter" for service in plan.services):
        owner = (plan.account.uid, plan.account.gid)
        jupyter_token.provide(plan.state / paths.TOKEN, plan.jupyter_token, owner)
        runtime = Path(plan.environment["JUPYTER_RUNTIME_DIR"])
        if runtime.parent == plan.run:  # one that the user has named is made by JupyterLab
            _own_folder(plan, runtime)
    _remember(plan)
    if plan.services:
        _scan_directory(plan)
    paths.write(
        plan.run / paths.STARTED,
        json.dumps({**_started(plan), "overlay": overlaid and str(overlaid)}, indent=2) + "\n",
    )


def run_as_user(plan: Plan, command: tuple[str, ...]) -> int:
    """Run a command as dev and wait; its exit code."""
    account = plan.account
    finished = subprocess.run(
        command,
        env=dict(plan.environment),
        cwd=plan.working_directory,
        user=account.uid if plan.is_root else None,
        group=account.gid if plan.is_root else None,
        extra_groups=account.groups if plan.is_root else None,
        check=False,
    )
    return finished.returncode


def become(plan: Plan, command: tuple[str, ...], *, as_user: bool = True) -> None:
    """Turn this process into the command. Raises OSError when it cannot be run."""
    if as_user and plan.is_root:
        change_identity(plan.account.uid, plan.account.gid, plan.account.groups)
    os.chdir(plan.working_directory)
    execute(command[0], command, plan.environment)


def supervise(plan: Plan) -> None:
    """Turn this process into s6-svscan. It is root, and finds its programs by name: not in the user's overlay."""
    _hold(plan)
    safe = {**plan.environment, "PATH": overlay.path_of_root(plan.environment.get("PATH", os.defpath))}
    rooted = dataclasses.replace(plan, environment=safe)
    become(rooted, ("s6-svscan", "-c", "32", "-t", "0", str(plan.run / SCAN)), as_user=False)


def _started(plan: Plan) -> dict[str, object]:
    """What the other programs of the image have to know; nothing secret."""
    return {
        "role": plan.role,
        "services": [service.name for service in plan.services if not service.once],
        "uid": plan.account.uid,
        "gid": plan.account.gid,
        "home": str(plan.home),
        "state": str(plan.state),
        "report": str(plan.report),
        "selftest": plan.selftest,
        "groups": list(plan.account.groups),
        "ssh_port": plan.ssh_port,
        "jupyter_port": plan.jupyter_port,
        "jupyter_runtime": plan.environment["JUPYTER_RUNTIME_DIR"],
        "device": plan.device,
        "stop_grace_s": plan.stop_grace_s,
    }


def _run_directory(plan: Plan) -> None:
    """Ours alone, and empty: what an earlier start left there, or somebody else in /tmp, must not be run or read."""
    with contextlib.suppress(FileExistsError):
        plan.run.mkdir(mode=0o755)
    if plan.is_root:
        # In the image anyone may write here, for containers started with --user; from now on only root.
        _take_over(plan.run, 0o755)
    for entry in plan.run.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if any(service.name == "sshd" for service in plan.services) and plan.is_root:
        paths.SSHD_EMPTY.mkdir(mode=0o755, exist_ok=True)
    with contextlib.suppress(OSError):  # a tmpfs on /run hides the one of the image
        paths.SCREENS.mkdir()
        paths.SCREENS.chmod(0o1777)


def _take_over(folder: Path, mode: int, gid: int = 0) -> None:
    """Make a directory root's. Raises OSError when it is not one: a link would lead to somebody else's."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(descriptor, 0, gid)
        os.fchmod(descriptor, mode)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        os.close(descriptor)


def _name_the_user(plan: Plan) -> None:
    """Give the user's id its name: for every program through libnss-extrausers, and in /etc/passwd where that can be
    written, so that `docker exec -u dev` works and ids that extrausers does not serve have a name too."""
    account = plan.account
    folder = plan.run / "extrausers"  # /var/lib/extrausers is a link to it
    folder.mkdir(exist_ok=True)
    for name, text in account.files.items():
        paths.write(folder / name, text)
    if not plan.is_root or account.uid == 0:
        return
    try:
        for name in ("passwd", "group"):
            _replace_lines(paths.ACCOUNTS / name, account.files[name])
        _unlock(paths.ACCOUNTS / "shadow", account.files["shadow"])
    except OSError as error:
        if account.uid < LOWEST_EXTRA_ID:
            log.warning(
                "user",
                f"user id {account.uid} has no name here: {paths.ACCOUNTS}/passwd cannot be written ({error.strerror})",
                f"SSH needs one. With a read-only root use a user id of {LOWEST_EXTRA_ID} or more",
            )


def _unlock(shadow: Path, line: str) -> None:
    """`useradd dev` in a derived image leaves an account that is locked, and sshd lets nobody in."""
    if shadow.exists() and re.search(f"^{NAME}:".encode(), shadow.read_bytes(), re.MULTILINE):
        _replace_lines(shadow, line)


def _replace_lines(path: Path, text: str) -> None:
    """Put the user's lines in place of earlier ones. Its own comes first, so that its name wins where an id has two;
    those of its further groups last, so that theirs do not."""
    ours = (f"{NAME}:".encode(), f"{NAME}-".encode())
    first, *others = text.encode().splitlines(keepends=True)
    rest = [old for old in path.read_bytes().splitlines(keepends=True) if not old.startswith(ours)]
    found = path.stat()
    mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
    paths.write(path, b"".join((first, *rest, *others)), mode=mode, owner=owner)


def _home(plan: Plan) -> None:
    if plan.home_is_the_users:
        return
    account = plan.account
    if plan.home != paths.HOME:
        with acting_as(account.uid, account.gid):
            _private(plan.home)
    elif plan.home_to_own:
        owning.give_tree(plan.home, account.uid, account.gid, plan.home_of)
    # As the user, and only what is not there: root would follow a link that the user has put into the home.
    with acting_as(account.uid, account.gid), contextlib.suppress(OSError):
        if not os.path.lexists(plan.home / ".bashrc"):
            for source in filter(Path.is_file, paths.SKELETON.iterdir()):
                if not os.path.lexists(plan.home / source.name):
                    paths.write(plan.home / source.name, source.read_bytes())


def _private(folder: Path) -> None:
    """A directory of whoever acts. In /tmp somebody else may have been faster: then raises OSError."""
    try:
        folder.mkdir(mode=0o755)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise FileExistsError(
                errno.EEXIST, "is there already, and not this user's", str(folder)
            ) from None


def _state(plan: Plan) -> None:
    ssh = plan.state / paths.SSH
    if plan.state != paths.STATE:
        _private(plan.state)
    if plan.is_root:
        if plan.state_to_take:
            # Sticky: dev keeps the token and the last self-test here but cannot replace root's ssh folder.
            _take_over(plan.state, 0o1775, plan.account.gid)
        if ssh.is_symlink():
            ssh.unlink()
        # Of an earlier start with another user id.
        for name in (paths.TOKEN, paths.REPORT, verdict.last_good(Path(paths.REPORT))):
            with contextlib.suppress(FileNotFoundError):
                os.chown(plan.state / name, plan.account.uid, plan.account.gid, follow_symlinks=False)
    ssh.mkdir(mode=0o700, exist_ok=True)
    if plan.is_root:
        _take_over(ssh, 0o700)


def _folders(plan: Plan) -> None:
    """Volumes at other places, and folders that the engine made in the home."""
    for folder in plan.folders_to_own:
        try:
            owning.give_folder(folder, plan.account.uid, plan.account.gid)
        except OSError as error:
            log.warning("volumes", f"{folder} could not be given to the user: {error.strerror}")


def _remember(plan: Plan) -> None:
    """For the next start, perhaps of another image or for another user."""
    if plan.image is None:
        return
    places = [
        (plan.state, paths.STATE, lastimage.IN_STATE, False),
        (plan.home, paths.HOME, lastimage.IN_HOME, True),
    ]
    for used, usual, name, as_user in places:
        if used != usual:
            continue
        with acting_as(plan.account.uid, plan.account.gid) if as_user else contextlib.nullcontext():
            if not lastimage.is_newer(lastimage.read(used / name)):
                lastimage.write(used / name, plan.image)


def _hold(plan: Plan) -> None:
    """Other containers see by it that these volumes are in use, as long as s6 lives: it inherits the descriptors."""
    for folder, usual, descriptor in ((plan.state, paths.STATE, 8), (plan.home, paths.HOME, 9)):
        if folder == usual:
            inuse.hold(folder, descriptor)


def _repositories(plan: Plan) -> None:
    with acting_as(plan.account.uid, plan.account.gid):
        found = repositories.found_in(paths.WORKSPACE)
    paths.write(plan.run / repositories.FILE, repositories.configuration(found))


def _own_folder(plan: Plan, folder: Path) -> None:
    """A new empty folder that only the user can enter."""
    folder.mkdir(mode=0o700)
    if plan.is_root:
        os.chown(folder, plan.account.uid, plan.account.gid)


def _scan_directory(plan: Plan) -> None:
    scan = plan.run / SCAN
    control = scan / ".s6-svscan"
    control.mkdir(parents=True)
    _script(control / "finish", f"#!/bin/sh\nexec {paths.BIN / 'stop'}\n")
    # Before anything stops, when that began: the time that the services take counts.
    note = shlex.quote(str(plan.run / STOPPING))
    for name in ("SIGTERM", "SIGINT", "SIGQUIT"):
        _script(control / name, f"#!/bin/sh\n[ -e {note} ] || : >{note}\nexec s6-svscanctl -t .\n")
    for service in plan.services:
        folder = scan / service.name
        folder.mkdir()
        _script(folder / "run", run_script(service, plan))
        _script(folder / "finish", finish_script(service, plan))
        # A service that does not stop must not use up the time that the user's own processes have.
        (folder / "timeout-kill").write_text(f"{int(plan.stop_grace_s * 1000 / 2)}\n")


def _script(path: Path, text: str) -> None:
    """A script that s6 can run although the run directory may be mounted noexec, as `docker run --tmpfs` does."""
    path.with_name(f"{path.name}.sh").write_text(text)
    path.symlink_to(paths.BIN / "run-beside")
