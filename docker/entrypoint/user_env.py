"""The overlay of this container, as the programs see it that people type: pip, uv, torchtap-env."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from entrypoint import overlay, paths
from entrypoint.account import change_identity
from entrypoint.overlay import Base
from entrypoint.reclaim import reclaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the user's packages are."""

    base: Base
    home: Path
    folder: Path
    used: Path | None  # what leads there for every process of this container; None: they are not used
    safe: bool  # because of TORCHTAP_SAFE=1

    @property
    def python(self) -> Path:
        """Its interpreter, by the name that is the same in every container: programs are installed with it."""
        return (self.used or self.folder) / "bin/python"


def find() -> Place | None:
    """The place; None in an image without one."""
    base = Base.read()
    if base is None:
        return None
    run, started = paths.run_directory(), paths.started() or {}
    home = Path(started.get("home") or os.environ.get("HOME") or paths.HOME)
    link = run / overlay.LINK if run and started.get("overlay") else None
    return Place(
        base=base,
        home=home,
        folder=overlay.overlays(home) / base.key,
        used=link,
        safe=bool(started) and os.environ.get("TORCHTAP_SAFE", "").strip() == "1",
    )


def mend(place: Place) -> int:
    """Where this is root: give the user what root has left in his overlay; how many files that were."""
    started = paths.started()
    if started is None or os.geteuid() != 0:
        return 0
    given = reclaim(place.base, place.folder, started["uid"], started["gid"])
    if given:
        print(f"note: {given} files of root's in {place.folder.parent} are the user's again", file=sys.stderr)
    return given


def become_user() -> None:
    """As dev, where this is root: `docker exec` makes everybody root, and root's files in the home are a nuisance.

    Root would also run what lies there.
    """
    started = paths.started()
    if started is not None and os.environ.get("HOME") in (None, "", "/"):
        os.environ["HOME"] = started["home"]  # `docker exec` as an id that has no name there
    if os.geteuid() != 0 or started is None or started["uid"] == 0:
        return
    change_identity(started["uid"], started["gid"], started.get("groups", ()))
    os.environ["HOME"] = started["home"]
