"""The container's environment in every SSH session: start packs it, the forced command unpacks it.

Packed as NUL-separated NAME=VALUE, as the kernel does: sshd's SetEnv, PAM and /etc/environment are read line by
line or by a shell, and lose or, worse, run values with newlines, quotes, `$` and backticks. Nothing is evaluated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from entrypoint import paths
from entrypoint.execute import execute

ENVIRONMENT = "environment"  # in the run directory; readable by root and dev
# What sshd sets for this very session; it wins over the container's.
FROM_SSHD = ("SSH_", "TERM", "DISPLAY", "XAUTHORITY")
# Where ncurses looks for descriptions of terminals, beside the user's own.
TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo")
USUAL_TERMINAL = "xterm-256color"


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
    # A SHELL that is not in the image must not lock its user out.
    for shell in filter(None, (environment.get("SHELL"), "/bin/bash", "/bin/sh")):
        name = Path(shell).name
        with contextlib.suppress(OSError):
            execute(shell, [f"-{name}"] if command is None else [name, "-c", command], environment)
    sys.exit("session: no shell can be run here")


def _container() -> dict[str, str]:
    """What start has packed; empty where it cannot be read."""
    run = paths.run_directory()
    try:
        return unpack((run / ENVIRONMENT).read_bytes()) if run else {}
    except OSError:
        return {}
