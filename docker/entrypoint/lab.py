"""`jupyter-service`: JupyterLab with the user's python, so that extensions installed there load; or with the base's.

A package can break JupyterLab's own imports. When it has ended twice before it answered, the base alone starts it, for
as long as this container runs: a server without one's extensions is better than none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from entrypoint import jupyter_token, log, overlay, paths
from entrypoint.backoff import last_end
from entrypoint.execute import execute
from entrypoint.server import is_taken

# In Jupyter's run-time folder: pid and time of each start with the overlay, and the pid of the last server that ran.
# jpserver-PID.json is gone after a shutdown, so the configuration in /etc/jupyter writes that second one.
RECORD, ANSWERED = "torchtap-starts", "torchtap-answered"
GIVEN_UP = 0  # in place of a pid: from here on with the base
TRIES = 2
# Ends that say nothing about packages: refused for a token (77) or for lack of a password (78), killed. Exit code 0 is
# not among them: a package can do that too, and who shuts JupyterLab down has seen it answer.
NO_FAULT = ("exit code 77", "exit code 78", "signal 9")
SHORT_S = 60.0  # what ended later had been running


def main() -> int:
    """Become JupyterLab."""
    run = paths.run_directory()
    if os.environ.get("JUPYTER_OPEN_TO_ANYONE") != "1":
        with contextlib.suppress(OSError):  # then JupyterLab says what is wrong
            jupyter_token.replace_lost(Path(os.environ.get("TORCHTAP_STATE") or paths.STATE) / paths.TOKEN)
    if run is not None:
        with contextlib.suppress(OSError):
            os.environ["PATH"] = (run / "path").read_text().rstrip("\n")  # supervision has root's
    python = run / overlay.LINK / "bin/python" if run else None
    if run is not None and python is not None and os.access(python, os.X_OK):
        record = Path(os.environ.get("JUPYTER_RUNTIME_DIR") or run) / RECORD
        ended = (last_end(run, "jupyter") or {}).get("how", "")
        if ended and is_taken((paths.started() or {}).get("jupyter_port", 0)):
            ended = NO_FAULT[0]  # the port keeps it from starting, not a package
        if not _has_failed(record, (run / paths.STARTED).stat().st_mtime, ended):
            execute(str(python), _command(python, run / overlay.LINK), os.environ)
        log.error(
            "jupyter",
            f"ended {TRIES} times at its start with your packages, so it is started from the image's own alone",
            "The reason is above. Remove the package (pip uninstall NAME) or all of yours (torchtap-env reset), then "
            "restart the container. Until then kernels do not see your packages",
        )
    program = str(paths.VENV / "bin/jupyter-lab")
    execute(program, [program], os.environ)
    return 1


def _command(python: Path, folder: Path) -> list[str]:
    """Not -m: that would put the working directory first on the path, and a user's own random.py would break it."""
    words = [str(python), str(paths.OVERLAY / "bin/jupyter-lab")]
    own = folder / "share/jupyter/lab/static/index.html"  # of a JupyterLab that the user has installed
    if not own.exists():
        words.append(f"--app-dir={paths.VENV}/share/jupyter/lab")
    return words


def _has_failed(record: Path, since: float, ended: str) -> bool:
    """Whether the last starts all ended early, before the server wrote down that it runs. Adds this one if not.

    `ended` says how the last one did.
    """
    starts: list[tuple[int, float]] = []
    with contextlib.suppress(OSError, ValueError):
        for line in record.read_text().splitlines():
            first, _, second = line.partition(" ")
            starts.append((int(first), float(second)))
    starts = [(pid, at) for pid, at in starts if at >= since]  # the folder may be the user's, and older
    if any(pid == GIVEN_UP for pid, _ in starts):
        return True
    now = time.time()
    if starts:
        pid, at = starts[-1]
        if _has_answered(record.parent, pid) or now - at > SHORT_S or ended.startswith(NO_FAULT):
            starts = []
    failed = len(starts) >= TRIES
    starts.append((GIVEN_UP if failed else os.getpid(), now))
    with contextlib.suppress(OSError):
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # one of the user's may not be there yet
        paths.write(record, "".join(f"{pid} {at}\n" for pid, at in starts))
    return failed


def _has_answered(folder: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        if paths.read(folder / ANSWERED).decode(errors="replace").strip() == str(pid):
            return True
    return (folder / f"jpserver-{pid}.json").exists()


if __name__ == "__main__":
    sys.exit(main())
