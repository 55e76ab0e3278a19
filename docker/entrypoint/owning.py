"""What becomes the user's at start: a home of other ids, new volumes, and folders that the engine made for mounts."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from entrypoint import log
from entrypoint.mounts import Mount, mounts

# Volumes there serve the system, or somebody who knows what they do.
OF_THE_SYSTEM = frozenset(
    "bin boot dev etc lib lib32 lib64 libx32 opt proc root run sbin sys tmp usr var".split()  # noqa: SIM905
)
PATIENCE_S = 2.0  # then the log says what takes so long


def give_tree(folder: Path, uid: int, gid: int, of: Collection[int]) -> None:
    """Give a tree to the user; what belongs to others than `of` is left alone.

    So is what is mounted inside, such as a data set of the host: that is not the image's to give. The folder itself
    comes last: when this is cut short, the next start begins again.
    """
    inside = {str(mount.point) for mount in mounts()}
    given = refused = 0
    said = time.monotonic()
    for directory, folders, files, descriptor in os.fwalk(folder):
        here = [name for name in (*folders, *files) if os.path.join(directory, name) not in inside]
        folders[:] = [name for name in folders if name in here]
        for name in here:
            try:
                if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid in of:
                    os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
                    given += 1
            except OSError:
                refused += 1
        if time.monotonic() - said > PATIENCE_S:
            said = time.monotonic()
            log.info("home", f"{given} files of {folder} are {uid}:{gid}'s now; going on")
    if refused:
        log.warning("home", f"{refused} files in {folder} could not be given to {uid}:{gid}")
    os.chown(folder, uid, gid, follow_symlinks=False)


def new_volumes(among: Sequence[Mount], below: Path, others: Collection[Path] = ()) -> list[Path]:
    """Volumes that are root's and empty: those that the engine made just now, for a place that the image does not have.

    Volumes of the engine anywhere, and other file systems (a tmpfs, a disk) below the home; never a folder of the host,
    and none of `others`, which have a way of their own.
    """
    points = {
        mount.point
        for mount in among
        if "/volumes/" in mount.root or (not mount.is_hosts and below in mount.point.parents)
    }
    points = {point for point in points if point.parts[1:2] and point.parts[1] not in OF_THE_SYSTEM} - {
        *others
    }
    return sorted(point for point in points if _is_new(point))


def made_for_mounts(among: Sequence[Mount], below: Path) -> list[Path]:
    """Folders below the home that the engine made, as root, to mount something in them: they hold nothing else.

    `-v models:/home/dev/.cache/huggingface` in a new home leaves a ~/.cache in which nobody but root can write.
    """
    points = {mount.point for mount in among if below in mount.point.parents}
    parents = {parent for point in points for parent in point.parents if below in parent.parents} - points
    return sorted(folder for folder in parents if _holds_only(folder, points | parents))


def give_folder(folder: Path, uid: int, gid: int) -> None:
    """Give a folder that is still root's, whatever its path leads to by now. Raises OSError."""
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in folder.parts[1:]:
            deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        if os.fstat(descriptor).st_uid == 0:
            os.fchown(descriptor, uid, gid)
    finally:
        os.close(descriptor)


def _is_new(folder: Path) -> bool:
    try:
        found = folder.lstat()
        return found.st_uid == found.st_gid == 0 and not set(_names(folder)) - {"lost+found"}
    except OSError:  # a single file, say
        return False


def _holds_only(folder: Path, known: Collection[Path]) -> bool:
    try:
        return folder.lstat().st_uid == 0 and all(folder / name in known for name in _names(folder))
    except OSError:
        return False


def _names(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name
