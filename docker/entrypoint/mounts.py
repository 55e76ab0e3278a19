"""What is mounted into the container, and whether a folder is the host's own or a volume.

>>> volume, home = parse(
...     "7 1 8:1 /var/lib/docker/volumes/x/_data /home/dev rw - ext4 /dev/sda rw\\n"
...     "8 1 8:1 /home/me/my\\\\040files /data rw - ext4 /dev/sda rw\\n"
... )
>>> volume.is_hosts, home.is_hosts, str(home.point), home.root
(False, True, '/data', '/home/me/my files')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo (proc(5))."""

    point: Path
    root: str  # the part of its file system that is seen here

    @property
    def is_hosts(self) -> bool:
        """A folder that the host has for its own purposes (`-v /home/me:/home/dev`), not a volume or a tmpfs.

        Engines keep volumes in folders named "volumes"; a file system mounted as a whole is a volume too.
        """
        return self.root != "/" and "/volumes/" not in self.root


def parse(mountinfo: str) -> list[Mount]:
    lines = (line.split() for line in mountinfo.splitlines())
    return [Mount(Path(_plain(words[4])), _plain(words[3])) for words in lines if len(words) > 4]


def mounts() -> list[Mount]:
    """The mounts that this process sees; none where that cannot be read."""
    try:
        return parse(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return []


def is_hosts(folder: Path, among: Sequence[Mount]) -> bool:
    """Whether a folder of the host is mounted exactly here. The last mount of several on one point is what is seen."""
    found = [mount for mount in among if mount.point == folder]
    return bool(found) and found[-1].is_hosts


def _plain(text: str) -> str:
    """Spaces, tabs, line ends and backslashes are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
