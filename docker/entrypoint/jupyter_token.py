"""JupyterLab's token: made once, kept, readable by the user alone; never in the log or on a command line."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import stat
from pathlib import Path

from entrypoint import log, paths
from entrypoint.account import acting_as
from entrypoint.inuse import alone

Owner = tuple[int, int]


def provide(path: Path, given: str, owner: Owner) -> None:
    """Let `path` hold the given token, else the kept one, else a new one. Two containers on one volume get one token.

    What lies there and is no token is kept beside it, under another name.
    """
    with alone(path.parent / paths.SSH):
        kept, wrong = look(path, owner)
        if wrong:
            _set_aside(path, wrong, given)
        elif kept and given in ("", kept):
            return  # nothing is written: the volume may be full
        paths.write(path, f"{given or secrets.token_hex(24)}\n", mode=0o600, owner=owner)


def replace_lost(path: Path) -> None:
    """Make a new one where the file is gone: somebody removed it, and a JupyterLab without a token must not start.

    For the user, between two starts of the service. Raises OSError.
    """
    if os.path.lexists(path):
        return
    paths.write(path, f"{secrets.token_hex(24)}\n", mode=0o600)
    log.warning(
        "jupyter",
        f"the token's file {path} was gone: a new one is made",
        "The new link: make url, or docker exec CONTAINER torchtap-url",
    )


def is_kept(path: Path, given: str, owner: Owner) -> bool:
    """Whether `provide` would have nothing to write."""
    kept, wrong = look(path, owner)
    return bool(kept) and not wrong and given in ("", kept)


def look(path: Path, owner: Owner) -> tuple[str, str]:
    """(the token, what is wrong with the file); both empty where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return "", ""
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFLNK: "is a link", stat.S_IFDIR: "is a directory"}
        return "", kinds.get(stat.S_IFMT(found.st_mode), "is not a file")
    try:
        with acting_as(*owner):  # between the look and this, the user could put a link there
            token = paths.read(path).decode("ascii", errors="replace").strip()
    except OSError as error:
        return "", f"cannot be read ({error.strerror})"
    if not token:
        return "", "is empty"
    if not re.fullmatch("[!-~]+", token):
        return "", "holds something else than a token"
    if found.st_mode & 0o077 and _modes_are_kept(path.parent):
        return "", f"was open to others (mode {stat.S_IMODE(found.st_mode):04o})"
    return token, ""


def _modes_are_kept(folder: Path) -> bool:
    """False on a share of Windows, say, where every file is open to all and a new token would be, too."""
    draft = folder / f".mode.{os.urandom(8).hex()}"
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        mode = draft.lstat().st_mode
        draft.unlink()
    except OSError:
        return True
    return not mode & 0o077


def _set_aside(path: Path, wrong: str, given: str) -> None:
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    path.rename(aside)
    new = "JUPYTER_TOKEN is used" if given else "a new one is made"
    log.warning(
        "jupyter",
        f"the token's file {path} {wrong}: {new}",
        f"The old file is kept as {aside}. The new link: make url, or docker exec CONTAINER torchtap-url",
    )
