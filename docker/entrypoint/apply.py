"""Do what the plan says, in order. Everything here can be done again: a container is started many times."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path

from entrypoint import log, paths, sessions
from entrypoint.account import LOWEST_EXTRA_ID, NAME
from entrypoint.plan import Plan, run_script

SCAN = "services"  # s6-svscan's directory, in the run directory


def apply(plan: Plan) -> None:
    """Make everything ready for the services or the command; start neither."""
    for notice in plan.notices:
        {"info": log.info, "warning": log.warning, "error": log.error}[notice.level](
            notice.subject, notice.text, *notice.more
        )
    _run_directory(plan)
    _name_the_user(plan)
    _home(plan)
    _state(plan)
    if plan.workspace_to_own:
        os.chown(paths.WORKSPACE, plan.account.uid, plan.account.gid)
    paths.write(
        plan.run / sessions.ENVIRONMENT,
        sessions.pack(plan.environment),
        mode=0o640,
        owner=(0, plan.account.gid),
    )
    paths.write(plan.run / "path", plan.environment.get("PATH", "") + "\n")  # for /etc/profile.d/torchtap.sh
    if plan.authorized_keys:
        paths.write(plan.run / "authorized_keys", "".join(f"{line}\n" for line in plan.authorized_keys))
        _host_key(plan.state / "ssh")
    if any(service.name == "jupyter" for service in plan.services):
        _jupyter_token(plan)
        _own_folder(plan, Path(plan.environment["JUPYTER_RUNTIME_DIR"]))
    if plan.services:
        _scan_directory(plan)
    paths.write(plan.run / paths.STARTED, json.dumps(_started(plan), indent=2) + "\n")


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
        os.setgroups([plan.account.gid, *plan.account.groups])
        os.setresgid(plan.account.gid, plan.account.gid, plan.account.gid)
        os.setresuid(plan.account.uid, plan.account.uid, plan.account.uid)
    os.chdir(plan.working_directory)
    os.execvpe(command[0], command, dict(plan.environment))


def supervise(plan: Plan) -> None:
    """Turn this process into s6-svscan."""
    become(plan, ("s6-svscan", "-c", "32", "-t", "0", str(plan.run / SCAN)), as_user=False)


def _started(plan: Plan) -> dict[str, object]:
    """What the other programs of the image have to know; nothing secret."""
    return {
        "role": plan.role,
        "services": [service.name for service in plan.services if not service.once],
        "uid": plan.account.uid,
        "gid": plan.account.gid,
        "home": str(plan.home),
        "state": str(plan.state),
        "ssh_port": plan.ssh_port,
        "stop_grace_s": plan.stop_grace_s,
    }


def _run_directory(plan: Plan) -> None:
    plan.run.mkdir(parents=True, exist_ok=True)
    if plan.is_root:
        # In the image anyone may write here, for containers started with --user; from now on only root.
        plan.run.chmod(0o755)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's empty directory for privilege separation


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
            _replace_line(Path("/etc") / name, f"{NAME}:", account.files[name])
    except OSError as error:
        if account.uid < LOWEST_EXTRA_ID:
            log.warning(
                "user",
                f"user id {account.uid} has no name here: /etc/passwd cannot be written ({error.strerror})",
                f"SSH needs one. With a read-only root use a user id of {LOWEST_EXTRA_ID} or more",
            )


def _replace_line(path: Path, beginning: str, line: str) -> None:
    """Put `line` first, in place of any that begins so: first, so that its name wins where an id has two."""
    rest = [old for old in path.read_text().splitlines(keepends=True) if not old.startswith(beginning)]
    paths.write(path, line + "".join(rest))


def _home(plan: Plan) -> None:
    plan.home.mkdir(parents=True, exist_ok=True)
    if plan.home_to_own:
        _give(plan.home, plan.account.uid, plan.account.gid)
    skeleton = Path("/etc/skel")
    if not (plan.home / ".bashrc").exists() and os.access(plan.home, os.W_OK) and skeleton.is_dir():
        for source in skeleton.iterdir():
            target = plan.home / source.name
            if source.is_file() and not target.exists():
                shutil.copyfile(source, target)
                if plan.is_root:
                    os.chown(target, plan.account.uid, plan.account.gid)


def _give(folder: Path, uid: int, gid: int) -> None:
    """Give a tree to the user; what belongs to others than root and the image's dev is left alone."""
    for directory, _, files in os.walk(folder):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            if os.lstat(path).st_uid in (0, 1000):
                os.lchown(path, uid, gid)


def _state(plan: Plan) -> None:
    plan.state.mkdir(mode=0o755, parents=True, exist_ok=True)
    ssh = plan.state / "ssh"
    ssh.mkdir(exist_ok=True)
    if not plan.is_root:
        return
    # Sticky: dev keeps the token and the last self-test here but cannot replace root's ssh folder.
    os.chown(plan.state, 0, plan.account.gid)
    plan.state.chmod(0o1775)
    os.chown(ssh, 0, 0)
    ssh.chmod(0o700)


def _host_key(folder: Path) -> None:
    """Made once, kept in the state volume. A key that others can read would stop sshd, so modes are repaired."""
    key = folder / "ssh_host_ed25519_key"
    if not key.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "torchtap", "-f", str(key)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    key.chmod(0o600)


def _jupyter_token(plan: Plan) -> None:
    """Made once, readable by the user alone, never in the log or on a command line."""
    path = plan.state / "jupyter-token"
    try:
        kept = path.read_text().strip()
    except OSError:
        kept = ""
    token = plan.jupyter_token or kept or secrets.token_hex(24)
    paths.write(path, f"{token}\n", mode=0o600, owner=(plan.account.uid, plan.account.gid))


def _own_folder(plan: Plan, folder: Path) -> None:
    """A new empty folder that only the user can enter."""
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier start of this container
    folder.mkdir(mode=0o700)
    if plan.is_root:
        os.chown(folder, plan.account.uid, plan.account.gid)


def _scan_directory(plan: Plan) -> None:
    scan = plan.run / SCAN
    shutil.rmtree(scan, ignore_errors=True)  # of an earlier start of this container
    control = scan / ".s6-svscan"
    control.mkdir(parents=True)
    _script(control / "finish", f"#!/bin/sh\nexec {paths.BIN / 'stop'}\n")
    for service in plan.services:
        folder = scan / service.name
        folder.mkdir()
        _script(folder / "run", run_script(service, plan))
        if service.once:
            _script(folder / "finish", "#!/bin/sh\nexit 125\n")  # 125: do not start it again
        # A service that does not stop must not use up the time that the user's own processes have.
        (folder / "timeout-kill").write_text(f"{int(plan.stop_grace_s * 1000 / 2)}\n")


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
