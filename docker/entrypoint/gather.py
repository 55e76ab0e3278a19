"""Facts about this container that the plan depends on. Reads; changes nothing."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint import paths
from entrypoint.account import IMAGE_ID
from entrypoint.keys import Source
from entrypoint.settings import Settings

SECRET_KEY_FILE = Path("/run/secrets/ssh_public_key")  # a Docker or Compose secret of this name


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A directory as the user of this container will find it."""

    path: Path
    exists: bool
    uid: int = 0
    gid: int = 0
    mode: int = 0
    readable: bool = False  # by the identity that services and commands get
    writable: bool = False

    @property
    def described(self) -> str:
        return f"belongs to {self.uid}:{self.gid}, mode {self.mode:04o}" if self.exists else "does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a plan is made from, beside the settings and the role."""

    environment: Mapping[str, str]
    is_root: bool
    uid: int
    gid: int
    groups: tuple[int, ...]
    workspace: Folder
    workspace_is_new: bool  # Docker made it just now, as root, because the host had none
    home: Folder
    state: Folder
    run: Path | None  # None: nowhere to put run-time files
    key_sources: tuple[Source, ...]
    ssh_port_free: bool


def gather(environment: Mapping[str, str], settings: Settings) -> Facts:
    """Look at the process, the mounted folders and the key sources."""
    is_root = os.geteuid() == 0
    uid, gid = identity(settings, paths.WORKSPACE) if is_root else (os.geteuid(), os.getegid())
    groups = tuple(group for group in os.getgroups() if group not in (0, gid))
    home = look_at(paths.HOME, uid, gid, groups)
    return Facts(
        environment=environment,
        is_root=is_root,
        uid=uid,
        gid=gid,
        groups=groups,
        workspace=look_at(paths.WORKSPACE, uid, gid, groups),
        workspace_is_new=is_root and _is_new(paths.WORKSPACE),
        home=home,
        state=look_at(paths.STATE, uid, gid, groups),
        run=next((path for path in paths.RUN_CANDIDATES if _can_be_made(path)), None),
        key_sources=key_sources(settings, home.path),
        ssh_port_free=_port_is_free(settings.ssh_port),
    )


def identity(settings: Settings, workspace: Path) -> tuple[int, int]:
    """User and group id of dev: as set, else the owner's of a mounted workspace, else the image's."""
    owner = (IMAGE_ID, IMAGE_ID)
    try:
        found = workspace.stat()
    except OSError:
        pass
    else:
        if found.st_uid != 0:  # Docker makes a missing host folder as root; that says nothing about the user
            owner = (found.st_uid, found.st_gid)
    uid = owner[0] if settings.uid is None else settings.uid
    gid = (owner[1] if settings.uid is None else uid) if settings.gid is None else settings.gid
    return uid, gid


def look_at(path: Path, uid: int, gid: int, groups: tuple[int, ...]) -> Folder:
    """A folder, and what `uid` may do in it."""
    try:
        found = path.stat()
    except OSError:
        return Folder(path=path, exists=False)
    readable, writable = _access(path, uid, gid, groups)
    return Folder(
        path=path,
        exists=True,
        uid=found.st_uid,
        gid=found.st_gid,
        mode=stat.S_IMODE(found.st_mode),
        readable=readable,
        writable=writable,
    )


def key_sources(settings: Settings, home: Path) -> tuple[Source, ...]:
    """Every place that may hold public keys, in order."""
    files = [SECRET_KEY_FILE, home / ".ssh" / "authorized_keys"]
    if settings.ssh_public_key_file:
        files.insert(0, Path(settings.ssh_public_key_file))
    return (
        Source("SSH_PUBLIC_KEY", settings.ssh_public_key or None),
        *(Source(str(path), _text(path)) for path in files),
    )


def _is_new(folder: Path, uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Root's own and empty. Not under a user namespace (rootless engines): there, root's files are the user's."""
    try:
        whole = uid_map.read_text().split() == ["0", "0", "4294967295"]
        return whole and folder.stat().st_uid == 0 and not any(folder.iterdir())
    except OSError:
        return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _access(path: Path, uid: int, gid: int, groups: tuple[int, ...]) -> tuple[bool, bool]:
    """(readable, writable), asked of the kernel as that user: modes say nothing of ACLs, NFS or read-only mounts."""
    if os.geteuid() != 0:
        return os.access(path, os.R_OK | os.X_OK), os.access(path, os.W_OK | os.X_OK)
    child = os.fork()
    if child == 0:
        answer = 4
        try:
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            answer = os.access(path, os.R_OK | os.X_OK) + 2 * os.access(path, os.W_OK | os.X_OK)
        finally:
            os._exit(answer)
    answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return answer in (1, 3), answer in (2, 3)


def _can_be_made(path: Path) -> bool:
    return os.access(path if path.is_dir() else path.parent, os.W_OK | os.X_OK)


def _port_is_free(port: int) -> bool:
    """False where this process may not listen on the port, or someone does (with --network host)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EADDRINUSE):
                return False
            raise
    return True
