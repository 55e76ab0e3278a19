"""Whether a file system has room for what start and JupyterLab must write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LEAST = 16 << 10  # bytes: a token, a key, a setting


@dataclass(frozen=True, slots=True)
class Full:
    """A file system without room."""

    device: int  # st_dev: several folders may lie on one
    total: int  # bytes
    of_files: bool = False  # there is room, but no more files may be made

    @property
    def said(self) -> str:
        """
        >>> Full(1, 65536).said, Full(1, 20 << 30).said
        ('all of its 64 kB are used', 'all of its 20 GB are used')
        >>> Full(1, 65536, of_files=True).said
        'it can hold no more files (inodes)'
        """
        if self.of_files:
            return "it can hold no more files (inodes)"
        size, unit = float(self.total), "bytes"
        for larger in ("kB", "MB", "GB", "TB"):
            if size < 1024:
                break
            size, unit = size / 1024, larger
        return f"all of its {size:.0f} {unit} are used"


def full(folder: Path) -> Full | None:
    """None where there is room, or the file system does not say."""
    try:
        seen, device = os.statvfs(folder), folder.stat().st_dev
    except OSError:
        return None
    if seen.f_flag & os.ST_RDONLY or not seen.f_blocks:  # network and object stores often know of no size
        return None
    total = seen.f_blocks * seen.f_frsize
    if seen.f_bavail * seen.f_frsize < LEAST:
        return Full(device, total)
    return Full(device, total, of_files=True) if seen.f_files and not seen.f_favail else None
