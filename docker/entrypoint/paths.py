"""Where things lie in the container."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

WORKSPACE = Path("/workspace")
HOME = Path("/home/dev")
STATE = Path("/var/lib/torchtap")
VENV = Path("/opt/torchtap/venv")
BIN = Path("/opt/torchtap/bin")
SSHD_CONFIG = Path("/etc/torchtap/sshd_config")
# Run-time files: the first that can be written. The second serves a read-only root with a tmpfs on /tmp alone.
RUN_CANDIDATES = (Path("/run/torchtap"), Path("/tmp/torchtap"))
STARTED = (
    "started.json"  # in the run directory: what start decided, for health, session, stop and torchtap-url
)


def started() -> dict[str, Any] | None:
    """What start decided in this container, or None while it has not."""
    for run in RUN_CANDIDATES:
        try:
            found: dict[str, Any] = json.loads((run / STARTED).read_text())
        except (OSError, ValueError):
            continue
        return found
    return None


def write(path: Path, text: str | bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Write a file whole: a reader sees the old one or the new one, and a crash leaves the old one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            os.fchmod(file.fileno(), mode)
            if owner is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), *owner)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
