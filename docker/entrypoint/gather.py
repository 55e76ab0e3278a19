"""Facts about this container that the plan depends on. Reads; changes nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint import certificates, inuse, jupyter_token, lastimage, owning, paths, space, threads
from entrypoint.account import IMAGE_ID, acting_as, change_identity
from entrypoint.certificates import Trust
from entrypoint.keys import Source
from entrypoint.lastimage import Image
from entrypoint.mounts import Mount, is_hosts, mounts
from entrypoint.settings import Settings
from entrypoint.space import Full
from entrypoint.threads import Processors

CAP_SYS_CHROOT, CAP_AUDIT_WRITE = 18, 29
SECRET_KEY_FILE = Path("/run/secrets/ssh_public_key")  # a Docker or Compose secret of this name
SHARED_MEMORY = Path("/dev/shm")


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
    changeable: bool = False  # by this process, which may be root
    is_directory: bool = True
    is_mounted: bool = False  # and not a part of the image, which goes with the container
    is_hosts: bool = False  # a folder of the host is mounted here, not a volume
    read_only: bool = False  # the file system is, whoever asks
    full: Full | None = None

    @property
    def described(self) -> str:
        if self.read_only:
            return "lies on a read-only file system"
        if not self.is_directory:
            return "is not a directory"
        return f"belongs to {self.uid}:{self.gid}, mode {self.mode:04o}" if self.exists else "does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a plan is made from, beside the settings and the role."""

    environment: Mapping[str, str]
    is_root: bool
    uid: int
    gid: int
    groups: tuple[int, ...]
    can_be_user: bool  # root without CAP_SETUID or CAP_SETGID cannot
    can_chroot: bool  # root without CAP_SYS_CHROOT cannot, and its sshd would end every login
    can_audit: bool  # root without CAP_AUDIT_WRITE cannot, and its sshd would end every login with a terminal
    rootless: bool  # a user namespace: root in here is somebody else outside
    current: Folder  # WORKDIR, or that of `docker run -w`
    workspace: Folder
    workspace_is_empty: bool
    workspace_is_new: (
        bool  # Docker made it just now: as root, because the host had none, or as the image has it
    )
    home: Folder
    state: Folder
    state_of_others: tuple[str, ...]  # what this user could not use there, nor replace without harm
    run: Path | None  # None: nowhere to put run-time files
    key_sources: tuple[Source, ...]
    ssh_port_free: bool
    jupyter_port_free: bool
    examples_given: bool
    trust: Trust = field(default_factory=Trust)
    processors: Processors = field(default_factory=lambda: Processors(visible=1))
    image: Image | None = None  # this one
    home_image: Image | None = None  # what used the home last; None: not known
    state_image: Image | None = None
    home_in_use: bool = False  # by another running container
    state_in_use: bool = False
    token_is_kept: bool = True  # nothing has to be written for it
    new_volumes: tuple[Path, ...] = ()  # mounted at other places, root's and empty
    made_for_mounts: tuple[Path, ...] = ()  # folders in the home that the engine made as root
    shell: str = "/bin/bash"  # SHELL, where that is in the image
    shared_memory: int | None = None  # bytes that /dev/shm holds; None: not known


def gather(environment: Mapping[str, str], settings: Settings) -> Facts:
    """Look at the process, the mounted folders and the key sources."""
    is_root = os.geteuid() == 0
    uid, gid = identity(settings, paths.WORKSPACE) if is_root else (os.geteuid(), os.getegid())
    groups = tuple(group for group in os.getgroups() if group not in (0, gid))
    can_be_user = not is_root or _can_become(uid, gid, groups)
    seen = mounts()

    home = home_folder(environment, is_root=is_root)

    def look(path: Path) -> Folder:
        return look_at(path, uid, gid, groups, seen)

    with acting_as(uid, gid) if can_be_user else contextlib.nullcontext():
        home_image = lastimage.read(paths.HOME / lastimage.IN_HOME)
        state_image = lastimage.read(paths.STATE / lastimage.IN_STATE)
    others = (paths.WORKSPACE, paths.HOME, paths.STATE)
    state_in_use = inuse.by_others(paths.STATE)
    workspace, is_empty = look(paths.WORKSPACE), _is_empty(paths.WORKSPACE)
    # The image's own, or a new volume, which takes its owner from there.
    is_images = not workspace.is_hosts and workspace.uid == IMAGE_ID != uid and workspace.changeable
    is_images = is_images and _holds_nothing_but(paths.WORKSPACE, [mount.point for mount in seen])
    return Facts(
        environment=environment,
        is_root=is_root,
        uid=uid,
        gid=gid,
        groups=groups,
        can_be_user=can_be_user,
        can_chroot=not is_root or has_capability(CAP_SYS_CHROOT),
        can_audit=not is_root or has_capability(CAP_AUDIT_WRITE),
        rootless=_is_rootless(),
        current=look(_current()),
        workspace=workspace,
        workspace_is_empty=is_empty,
        workspace_is_new=is_root and (is_images or (not _is_rootless() and _is_new(paths.WORKSPACE))),
        home=look(home),
        state=look(paths.STATE),
        state_of_others=_of_others(paths.STATE, uid, in_use=state_in_use)
        if state_in_use or not is_root
        else (),
        run=next((path for path in paths.RUN_CANDIDATES if _can_be_made(path)), None),
        key_sources=key_sources(settings, home, uid, gid) if can_be_user else (),
        ssh_port_free=_port_is_free(settings.ssh_port),
        jupyter_port_free=_port_is_free(settings.jupyter_port),
        examples_given=os.path.lexists(paths.STATE / paths.EXAMPLES),
        trust=certificates.read(),
        processors=threads.processors(),
        image=lastimage.here(uid, gid),
        home_image=home_image,
        state_image=state_image,
        home_in_use=inuse.by_others(paths.HOME),
        state_in_use=state_in_use,
        token_is_kept=can_be_user
        and jupyter_token.is_kept(paths.STATE / paths.TOKEN, settings.jupyter_token, (uid, gid)),
        new_volumes=tuple(owning.new_volumes(seen, paths.HOME, others)) if is_root else (),
        made_for_mounts=tuple(owning.made_for_mounts(seen, paths.HOME)) if is_root else (),
        shell=_shell(environment.get("SHELL", "")),
        shared_memory=_size(SHARED_MEMORY),
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


def home_folder(environment: Mapping[str, str], *, is_root: bool) -> Path:
    """The image's, unless this user came with a home of his own.

    Apptainer and Podman's keep-id run the container as the user of the host, mount his home where it lies there, and
    set HOME. Docker sets HOME to / for an id without a name.
    """
    given = Path(environment.get("HOME", ""))
    if is_root or not given.is_absolute() or len(given.parts) < 3:
        return paths.HOME
    return given if os.path.isdir(given) and os.access(given, os.W_OK | os.X_OK) else paths.HOME


def look_at(path: Path, uid: int, gid: int, groups: tuple[int, ...], seen: Sequence[Mount] = ()) -> Folder:
    """A folder, and what `uid` may do in it."""
    try:
        found = path.stat()
    except OSError:
        return Folder(path=path, exists=False)
    is_directory = stat.S_ISDIR(found.st_mode)
    readable, writable = _access(path, uid, gid, groups) if is_directory else (False, False)
    return Folder(
        path=path,
        exists=True,
        uid=found.st_uid,
        gid=found.st_gid,
        mode=stat.S_IMODE(found.st_mode),
        readable=readable,
        writable=writable,
        changeable=is_directory and os.access(path, os.W_OK | os.X_OK),
        is_directory=is_directory,
        is_mounted=any(mount.point == path for mount in seen),
        is_hosts=is_hosts(path, seen),
        read_only=bool(os.statvfs(path).f_flag & os.ST_RDONLY),
        full=space.full(path),
    )


def key_sources(settings: Settings, home: Path, uid: int, gid: int) -> tuple[Source, ...]:
    """Every place that may hold public keys, in order."""
    variable = Source("SSH_PUBLIC_KEY", settings.ssh_public_key or None, one_line=True)
    named = [_file(Path(name), asked_for=True) for name in filter(None, [settings.ssh_public_key_file])]
    for name in filter(None, [settings.ssh_public_key_dir]):
        named += _directory(Path(name))
    with acting_as(uid, gid):  # what the user could link to there is not root's to read
        own = _file(home / ".ssh" / "authorized_keys")
    return (variable, *named, _file(SECRET_KEY_FILE), own)


def _directory(path: Path) -> list[Source]:
    """Its `*.pub` and `authorized_keys`, as in ~/.ssh. Others, such as private keys, are not even opened."""
    try:
        owner = path.stat()
        with acting_as(
            owner.st_uid, owner.st_gid
        ):  # where a user can put links, they show no more than to that user
            names = sorted(entry.name for entry in path.iterdir())
            keys = [name for name in names if name.endswith(".pub") or name == "authorized_keys"]
            found = [_file(path / name, asked_for=True) for name in keys]
    except OSError as error:
        known = {errno.ENOENT: "does not exist", errno.ENOTDIR: "is not a directory"}
        why = known.get(error.errno or 0, f"cannot be read ({error.strerror})")
        return [Source(str(path), None, why, asked_for=True)]
    return found or [Source(str(path), None, "holds no *.pub and no authorized_keys", asked_for=True)]


def _file(path: Path, *, asked_for: bool = False) -> Source:
    try:
        raw = paths.read(path)
    except OSError as error:
        known = {errno.ENOENT: "does not exist", errno.EINVAL: "is not a file", errno.EISDIR: "is not a file"}
        why = known.get(error.errno or 0, f"cannot be read ({error.strerror})")
        return Source(str(path), None, why, asked_for)
    # `ssh-keygen ... > key.pub` in PowerShell writes UTF-16.
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return Source(str(path), raw.decode(encoding, errors="replace"))


def _current() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return paths.WORKSPACE


def _of_others(state: Path, uid: int, *, in_use: bool) -> tuple[str, ...]:
    """What another user has left in the state folder. It is sticky: only root and the owner may replace that.

    Root hands it over to the user of this start, but not while another running container uses it. ssh is root's then.
    """
    names = (
        (paths.TOKEN, paths.REPORT)
        if in_use and os.geteuid() == 0
        else (paths.SSH, paths.TOKEN, paths.REPORT)
    )
    try:
        found = {path.name: path.lstat().st_uid for path in state.iterdir()}
    except OSError:
        return ()
    return tuple(name for name in names if found.get(name, uid) != uid)


def _is_rootless(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether ids in here are others outside. Unknown counts as yes: then nothing is given away."""
    try:
        return uid_map.read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return True


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def _holds_nothing_but(folder: Path, mounted: Sequence[Path]) -> bool:
    try:
        return all(entry in mounted for entry in folder.iterdir())
    except OSError:
        return False


def _is_new(folder: Path) -> bool:
    """Root's own, empty, and not closed to changes. One of another group is somebody's, who set it up for a team."""
    try:
        found = folder.stat()
        return found.st_uid == found.st_gid == 0 and os.access(folder, os.W_OK) and _is_empty(folder)
    except OSError:
        return False


def _access(path: Path, uid: int, gid: int, groups: tuple[int, ...]) -> tuple[bool, bool]:
    """(readable, writable), asked of the kernel as that user: modes say nothing of ACLs, NFS or read-only mounts."""
    if os.geteuid() != 0:
        return os.access(path, os.R_OK | os.X_OK), os.access(path, os.W_OK | os.X_OK)
    answer = _asked_as(
        uid, gid, groups, lambda: os.access(path, os.R_OK | os.X_OK) + 2 * os.access(path, os.W_OK | os.X_OK)
    )
    return answer in (1, 3), answer in (2, 3)


def _can_become(uid: int, gid: int, groups: tuple[int, ...]) -> bool:
    return _asked_as(uid, gid, groups, lambda: 0) == 0


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has it, by its number in linux/capability.h. Unknown counts as yes."""
    try:
        held = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    except OSError:
        return True
    return held is None or bool(int(held[1], 16) >> number & 1)


def _asked_as(uid: int, gid: int, groups: tuple[int, ...], ask: Callable[[], int]) -> int:
    """The answer (0 to 3) that a child gets once it has become this user; something else where it could not."""
    child = os.fork()
    if child == 0:
        answer = 4
        try:
            change_identity(uid, gid, groups)
            answer = ask()
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _shell(asked: str) -> str:
    """Apptainer brings the host's SHELL along; terminals of JupyterLab and tmux cannot begin with a missing one."""
    return asked if os.path.isabs(asked) and os.access(asked, os.X_OK) else "/bin/bash"


def _size(folder: Path) -> int | None:
    """Bytes that its file system holds in all."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _can_be_made(run: Path) -> bool:
    """Whether start can have its files in this directory, which root takes over from whoever made it."""
    try:
        found = run.lstat()
    except OSError:
        return os.access(run.parent, os.W_OK | os.X_OK)
    mine = os.geteuid() == 0 or found.st_uid in (0, os.geteuid())
    return stat.S_ISDIR(found.st_mode) and mine and os.access(run, os.W_OK | os.X_OK)


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
