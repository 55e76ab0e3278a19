"""Files that a command writes: checked before anything runs, written whole or not at all.

A device, a pipe or an open stream is no file that may be replaced: it is written to.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

READER_WAIT_S = 60.0
LOOK_EVERY_S = 0.1


class UnwritableError(ValueError):
    """A path that an option names cannot be written. The message is one line for the user."""


def check_writable(option: str, path: Path, example: str) -> None:
    """Refuse a path that cannot be written. `example`: a file's name, for where a folder was given.

    Raises `UnwritableError`.
    """
    try:
        there = _status(path)
        if there is not None and stat.S_ISDIR(there.st_mode):
            raise UnwritableError(f"{option} {path} is a folder; give a file in it, as in {path / example}")
        if there is not None and stat.S_ISSOCK(there.st_mode):
            raise UnwritableError(f"{option} {path} is a socket; give a file")
        if there is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if there is None or stat.S_ISREG(there.st_mode):
            with tempfile.TemporaryFile(dir=_behind_links(path).parent):
                pass
    except OSError as error:
        raise UnwritableError(f"{option} {path} cannot be written: {error.strerror}") from None


def make_folder(option: str, path: Path) -> None:
    """A folder for files that are written later, its parents too. Raises `UnwritableError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UnwritableError(f"{option} {path} is a file; give a folder") from None
    except OSError as error:
        raise UnwritableError(f"{option} {path} cannot be made: {error.strerror}") from None


def write(option: str, path: Path, text: str) -> None:
    """All of it or nothing where it is a file: a reader never sees half a report. Raises `UnwritableError`."""
    try:
        there = _status(path)
        if there is not None and (stream := _stream_at(there)) is not None:
            stream.write(text)
            stream.flush()
        elif there is not None and not stat.S_ISREG(there.st_mode):
            with os.fdopen(_open(option, path), "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        else:
            _replace(_behind_links(path), text, there)
    except OSError as error:
        raise UnwritableError(f"{option} {path} cannot be written: {error.strerror}") from None


def _open(option: str, path: Path) -> int:
    """A device or a pipe, opened to be written to. A pipe that nobody reads is waited for, and not for ever.

    Raises `OSError` and `UnwritableError`.
    """
    ends = time.monotonic() + READER_WAIT_S
    told = False
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        else:
            os.set_blocking(handle, True)
            return handle
        if time.monotonic() >= ends:
            raise UnwritableError(f"{option} {path} cannot be written: nobody reads this pipe")
        if not told and sys.stderr is not None:
            told = True
            sys.stderr.write(
                f"self-test: waiting up to {READER_WAIT_S:.0f} s for a reader of {option} {path}\n"
            )
            sys.stderr.flush()
        time.sleep(LOOK_EVERY_S)


def path_of(option: str, text: str | None) -> Path | None:
    """The path that was given to an option; `Path("-")` for - alone, which is a stream. Raises `UnwritableError`.

    >>> path_of("--output", "-"), path_of("--output", None)
    (PosixPath('-'), None)
    """
    if text is None or text == "-":
        return None if text is None else Path("-")
    if not text:
        raise UnwritableError(f"{option} has an empty name; give one, or leave the option out")
    path = Path(text)
    return path if str(path) != "-" else Path.cwd() / path  # ./- is a file of that name


def _status(path: Path) -> os.stat_result | None:
    """What stands at the path, links followed; None where nothing does."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _behind_links(path: Path) -> Path:
    """The file that is meant: replacing a link would leave the file it points to as it was."""
    return Path(os.path.realpath(path))


def _stream_at(there: os.stat_result) -> TextIO | None:
    """The stream of this command that goes to the same place, as --output /dev/stdout does."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(OSError):
            if stream is not None and os.path.samestat(there, os.fstat(number)):
                return stream
    return None


def _replace(path: Path, text: str, there: os.stat_result | None) -> None:
    """Put a whole new file in the place of `path`, as readable as the old one. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".torchtap-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        if there is not None:
            with suppress(OSError):  # only root may give a file to its old owner
                os.chown(temporary, there.st_uid, there.st_gid)
        # A new one is for other users of the machine too: the login message, a fleet's collector.
        Path(temporary).chmod(0o644 if there is None else stat.S_IMODE(there.st_mode))
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
