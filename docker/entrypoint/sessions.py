"""The container's environment in every SSH session: start packs it, the forced command unpacks it.

Packed as NUL-separated NAME=VALUE, as the kernel does: sshd's SetEnv, PAM and /etc/environment are read line by
line or by a shell, and lose or, worse, run values with newlines, quotes, `$` and backticks. Nothing is evaluated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from entrypoint import paths, verdict
from entrypoint.execute import execute

ENVIRONMENT = "environment"  # in the run directory; readable by root and dev
# What sshd sets for this very session; it wins over the container's.
FROM_SSHD = ("SSH_", "TERM", "DISPLAY", "XAUTHORITY")
# Where ncurses looks for descriptions of terminals, beside the user's own.
TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo")
USUAL_TERMINAL = "xterm-256color"
HUSH = ".hushlogin"  # in the home: no message at login, as login(1) and sshd have it
MARGIN = 11  # of the message


def pack(environment: Mapping[str, str]) -> bytes:
    """NAME=VALUE, each ended by a NUL.

    >>> unpack(pack({"A": 'two\\nlines $(x) "', "B": "ü"}))
    {'A': 'two\\nlines $(x) "', 'B': 'ü'}
    """
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())


def unpack(packed: bytes) -> dict[str, str]:
    """The inverse of `pack`."""
    pairs = (os.fsdecode(item).partition("=") for item in packed.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def merged(container: Mapping[str, str], sshd: Mapping[str, str]) -> dict[str, str]:
    """The environment of a session: the container's, with what belongs to this connection from sshd.

    >>> merged({"PATH": "/opt/bin", "TERM": "dumb"}, {"PATH": "/bin", "TERM": "xterm", "SSH_TTY": "/dev/pts/0"})
    {'PATH': '/opt/bin', 'TERM': 'xterm', 'SSH_TTY': '/dev/pts/0'}
    """
    own = {
        name: value
        for name, value in sshd.items()
        if name.startswith(FROM_SSHD) and name != "SSH_ORIGINAL_COMMAND"
    }
    return {**container, **own}


def terminal(name: str, environment: Mapping[str, str]) -> str:
    """The client's terminal, or the usual one where nothing in the image describes it.

    tmux, less and vim refuse a terminal that they do not know, and the newer ones (kitty, ghostty, foot) understand
    what xterm does.
    """
    own = [environment.get("TERMINFO", ""), *environment.get("TERMINFO_DIRS", "").split(":")]
    own.append(f"{environment.get('HOME', '')}/.terminfo")
    if not name or "/" in name:
        return USUAL_TERMINAL
    places = (f"{folder}/{name[0]}/{name}" for folder in (*filter(None, own), *TERMINFO))
    return name if any(map(os.path.exists, places)) else USUAL_TERMINAL


def main() -> None:
    """sshd's ForceCommand: a login shell, or the command that the client asked for (scp and sftp included)."""
    container = _container()
    environment = merged(container, os.environ) if container else dict(os.environ)
    if "SSH_TTY" in environment:
        environment["TERM"] = terminal(environment.get("TERM", ""), environment)
    command = os.environ.get("SSH_ORIGINAL_COMMAND")
    if command is None and os.isatty(sys.stdout.fileno()):
        with contextlib.suppress(Exception):  # a message locks nobody out
            greet(Path(environment.get("HOME", "")))
    # A SHELL that is not in the image must not lock its user out.
    for shell in filter(None, (environment.get("SHELL"), "/bin/bash", "/bin/sh")):
        name = Path(shell).name
        with contextlib.suppress(OSError):
            execute(shell, [f"-{name}"] if command is None else [name, "-c", command], environment)
    sys.exit("session: no shell can be run here")


def greet(home: Path) -> None:
    """Print how the last self-test ended: to people at a terminal, never into the output of a command."""
    started = paths.started()
    if started is None or (home / HUSH).exists():
        return
    for line in message(verdict.at_login(started), os.get_terminal_size(sys.stdout.fileno()).columns):
        print(line)
    sys.stdout.flush()


def message(lines: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Labels and texts with a hanging margin. A line is only broken at blanks, so that commands can be pasted.

    >>> message([("do", "Reboot the host right now")], 32)
    ['do         Reboot the host right', '           now']
    """
    import textwrap

    room = max(width or 80, MARGIN + 20)
    return [
        line
        for label, text in lines
        for line in textwrap.wrap(
            f"{label:<{MARGIN}}{text}",
            room,
            subsequent_indent=" " * MARGIN,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _container() -> dict[str, str]:
    """What start has packed; empty where it cannot be read."""
    run = paths.run_directory()
    try:
        return unpack((run / ENVIRONMENT).read_bytes()) if run else {}
    except OSError:
        return {}
