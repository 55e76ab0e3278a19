"""Root's files in the overlay become the user's again: `docker exec CONTAINER python -m pip install X` leaves such."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from entrypoint import overlay
from entrypoint.account import acting_as
from entrypoint.mounts import mounts
from entrypoint.overlay import Base


def reclaim(base: Base, folder: Path, uid: int, gid: int) -> int:
    """Give the user what is root's in his overlay, and in what a reset could not remove; how many files that were.

    Looks closer only where one of root's is found at the places where installers put things.
    """
    if os.geteuid() != 0 or uid == 0:
        return 0
    with contextlib.suppress(OSError):
        with acting_as(uid, gid):  # a link of the user's leads where he could go himself
            parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
            names = [path.name for path in overlay.left_by_reset(folder)]
            if _has_roots(base, folder):
                names.append(folder.name)
        try:
            if os.fstat(parent).st_uid == uid:
                return sum(_give_tree(name, parent, uid, gid) for name in names)
        finally:
            os.close(parent)
    return 0


def _has_roots(base: Base, folder: Path) -> bool:
    packages = overlay.site_packages(folder, base.python)
    for place in (folder, folder / "bin", packages.parent.parent, packages.parent, packages):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            if place.lstat().st_uid == 0 or any(map(_is_roots, entries)):
                return True
    return False


def _is_roots(entry: os.DirEntry[str]) -> bool:
    """Also what Python compiled while root imported it."""
    with contextlib.suppress(OSError):
        if entry.stat(follow_symlinks=False).st_uid == 0:
            return True
        if entry.is_dir(follow_symlinks=False):
            return os.lstat(os.path.join(entry.path, "__pycache__")).st_uid == 0
    return False


def _give_tree(name: str, parent: int, uid: int, gid: int) -> int:
    inside = {str(mount.point) for mount in mounts()}
    above = os.readlink(f"/proc/self/fd/{parent}")
    given = int(_give(name, parent, uid, gid))
    for directory, folders, files, descriptor in os.fwalk(name, dir_fd=parent):
        ours = {each for each in (*folders, *files) if os.path.join(above, directory, each) not in inside}
        folders[:] = [each for each in folders if each in ours]
        given += sum(_give(each, descriptor, uid, gid) for each in ours)
    return given


def _give(name: str, parent: int, uid: int, gid: int) -> bool:
    """Give away one folder or file of root's; never a link, nor a file that has another name somewhere else."""
    with contextlib.suppress(OSError):
        if not _is_given(os.stat(name, dir_fd=parent, follow_symlinks=False)):
            return False
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        try:
            if _is_given(os.fstat(descriptor)):  # it may be another one by now
                os.fchown(descriptor, uid, gid)
                return True
        finally:
            os.close(descriptor)
    return False


def _is_given(found: os.stat_result) -> bool:
    plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return found.st_uid == 0 and (plain or stat.S_ISDIR(found.st_mode))
