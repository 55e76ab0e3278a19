"""The folder ./selftest-report: all of one run's reports, or those of the run before, and never a mixture."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from host import project
from host.command import user_name
from host.paths import Paths
from host.show import Problem

FOLDER = "selftest-report"
# What this project writes there. Anything else in the folder is somebody's own, and stays.
OURS = frozenset({"preflight.json", "report.json", "report.txt", "junit.xml", "metrics.prom"})


@dataclass(frozen=True, slots=True)
class Draft:
    """Where this run's reports are collected, beside the folder that they will replace."""

    folder: Path
    target: Path

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def publish(self) -> list[str]:
        """Put the reports in the place of the old ones. Returns their names."""
        for file in (self.folder, *self.folder.iterdir()):
            file.chmod(0o755 if file.is_dir() else 0o644)  # a colleague may read them
            give(file)
        names = sorted(each.name for each in self.folder.iterdir())
        aside = self.folder.with_name(f"{self.folder.name}-old")
        if self.target.exists():
            self.target.rename(aside)
            for kept in aside.iterdir():
                if kept.name not in OURS:
                    kept.rename(self.folder / kept.name)
        self.folder.rename(self.target)
        shutil.rmtree(aside, ignore_errors=True)
        return names


def give(path: Path) -> None:
    """Behind sudo: make it the caller's."""
    if os.getuid() == 0 and (ids := project.owner(os.environ)):
        os.chown(path, *ids)


@contextlib.contextmanager
def draft(paths: Paths) -> Iterator[Draft]:
    """A `Draft`, taken away at the end unless it was published. Raises `Problem` before anything is tested."""
    target = paths.root / FOLDER
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        what = "a link" if target.is_symlink() else "a file"
        raise Problem(f"{FOLDER} is {what}, and the reports' folder has this name", "Move it away")
    for place in (paths.root, target):
        if place.exists() and not os.access(place, os.W_OK | os.X_OK):
            raise Problem(
                f"{place} cannot be written: it belongs to user {user_name(place)}",
                f"To make it yours:  sudo chown -R $USER {place}",
            )
    if not paths.private.exists():
        paths.private.mkdir(mode=0o700)
        give(paths.private)
    folder = Path(tempfile.mkdtemp(prefix="report-", dir=paths.private))
    try:
        yield Draft(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
