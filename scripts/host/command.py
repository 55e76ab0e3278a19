"""The frame around every command: --help prints the script's own words, a `Problem` its lines and its exit code, and
Ctrl-C is 130."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from host import show

Main = Callable[[Sequence[str]], int]
INTERRUPTED = 130
HELP = (["--help"], ["-h"])
NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})

UNWRITABLE = NOT_OURS | {errno.EIO, errno.EBADF, errno.EFBIG}


def run(main: Main) -> int:
    """Call a command's `main` with its arguments and return the exit code."""
    name = Path(sys.argv[0]).name
    if sys.argv[1:] in HELP:  # before anything is looked at, built or written
        return written(print_help, name)
    return written(main, name)


def print_help(_: Sequence[str]) -> int:
    """The script's own words."""
    print((sys.modules["__main__"].__doc__ or "").rstrip())
    return 0


def written(main: Main, name: str) -> int:
    """What `main` returns, once all that it printed is written."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        return code
    except show.Problem as trouble:
        show.problem(name, trouble)
        return trouble.code
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `make logs | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno in UNWRITABLE and not error.filename:  # about a stream, and not about a file
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)  # what is still to be written would fail once more at the end
            os.close(nowhere)
            print(f"{name}: standard output cannot be written: {error.strerror}", file=sys.stderr)
            return show.USAGE
        if error.errno not in NOT_OURS or not error.filename:
            raise
        show.problem(name, from_file_system(error))
        return show.USAGE


def from_file_system(error: OSError) -> show.Problem:
    """A file that cannot be written is the host's matter, not a fault of the program: say which, and whose it is."""
    path = Path(os.fsdecode(error.filename))
    what = f"{path}: {error.strerror}"
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    if (
        error.errno not in {errno.EACCES, errno.EPERM}
        or not there.exists()
        or there.stat().st_uid == os.geteuid()
    ):
        return show.Problem(what)
    return show.Problem(
        what, f"It belongs to user {user_name(there)}. To make it yours:  sudo chown -R $USER {there}"
    )


def user_name(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)
