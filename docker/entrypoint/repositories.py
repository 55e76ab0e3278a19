"""Repositories directly below the workspace, for git's safe.directory, which knows exact paths only before 2.46."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

FILE = "gitconfig"  # in the run directory; /etc/gitconfig includes it
LOOKED_AT = 1000  # entries; a workspace that holds a data set must not delay the start


def found_in(workspace: Path) -> list[Path]:
    """The folders in it that have a `.git`. Act as the user: a workspace may be closed to root."""
    try:
        with os.scandir(workspace) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, LOOKED_AT))
    except OSError:
        return []
    return [workspace / name for name in names if os.path.lexists(workspace / name / ".git")]


def configuration(repositories: Iterable[Path]) -> str:
    """A file for git.

    >>> configuration([Path("/workspace/my clone")])
    '[safe]\\n\\tdirectory = "/workspace/my clone"\\n'
    """
    quoted = (
        str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for path in repositories
    )
    lines = [f'\tdirectory = "{path}"\n' for path in quoted]
    return "".join(["[safe]\n", *lines]) if lines else ""
