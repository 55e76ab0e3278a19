"""Whether another running container uses the same volume: locks on the folder itself, which the kernel drops at last.

A lock needs no file, so it works in a volume that is full. All containers of one host see the same locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Other containers wait meanwhile. False on file systems without locks (some network ones), where nobody waits."""
    descriptor = _open(folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def by_others(folder: Path) -> bool:
    """Whether another container holds this folder now. What cannot be found out counts as no."""
    try:
        descriptor = _open(folder)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def hold(folder: Path, descriptor: int) -> None:
    """Hold the folder as long as this process, or one that inherits this descriptor, lives."""
    with contextlib.suppress(OSError):
        opened = _open(folder)
        os.dup2(opened, descriptor, inheritable=True)
        os.close(opened)
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
