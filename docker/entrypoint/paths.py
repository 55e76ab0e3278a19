"""Where things lie in the container."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

WORKSPACE = Path("/workspace")
HOME = Path("/home/dev")
STATE = Path("/var/lib/torchtap")
NOTEBOOKS = Path("/opt/torchtap/notebooks")
VENV = Path("/opt/torchtap/venv")
BIN = Path("/opt/torchtap/bin")
OVERLAY = Path("/opt/torchtap/overlay")  # what the build prepared for it
SSHD_CONFIG = Path("/etc/torchtap/sshd_config")
SSHD_EMPTY = Path("/run/sshd")  # sshd's empty directory for privilege separation
SCREENS = Path("/run/screen")  # sockets of screen
ACCOUNTS = Path("/etc")  # passwd and group
SKELETON = Path("/etc/skel")  # what a new home begins with
CERTIFICATES = Path("/usr/local/share/ca-certificates")  # the user's own authorities, mounted
CA_SECRET = Path("/run/secrets/ca_bundle")  # such, as a Docker or Compose secret
CA_SYSTEM = Path("/etc/ssl/certs/ca-certificates.crt")  # what OpenSSL, GnuTLS, curl and git read
# Run-time files: the first that can be written. The second serves a read-only root with a tmpfs on /tmp alone.
RUN_CANDIDATES = (Path("/run/torchtap"), Path("/tmp/torchtap"))
# In the run directory: what start decided, for health, session, stop and torchtap-url.
STARTED = "started.json"
SERVICES = "services"  # s6-svscan's directory
# JUPYTER_RUNTIME_DIR as the Dockerfile sets it; another value is the user's own.
JUPYTER_RUNTIME = "/run/torchtap/jupyter"
# In the state directory.
SSH, TOKEN, REPORT = "ssh", "jupyter-token", "selftest.json"
EXAMPLES = "examples-given"  # the notebooks were copied once; what the user deletes stays deleted


def run_directory() -> Path | None:
    """Where start has put its run-time files; None while it has not.

    Anyone can make a folder of that name in /tmp, so only one that is root's or our own counts.
    """
    for run in RUN_CANDIDATES:
        try:
            found = run.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid()) and (run / STARTED).exists():
            return run
    return None


def started() -> dict[str, Any] | None:
    """What start decided in this container, or None while it has not."""
    run = run_directory()
    if run is None:
        return None
    try:
        found = json.loads((run / STARTED).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read(path: Path, limit: int = 1 << 20) -> bytes:
    """A file, of at most a mebibyte unless said otherwise.

    Raises OSError; for anything that is not a plain file too, without waiting for it: for files where the user can put
    a pipe, a device or something endless.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "is not a file", str(path))
        return file.read(limit)


def write(path: Path, text: str | bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Write a file whole: a reader sees the old one or the new one, and a crash leaves the old one.

    The draft beside it is new and has a name that nobody can foresee, so no link or file that lies there already can
    lead it elsewhere or be in its way. Text may hold the undecodable bytes of the environment (surrogates).
    """
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(os.fsencode(text))
            os.fchmod(file.fileno(), mode)
            if owner is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), *owner)
        os.replace(draft, path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
