"""Run the command in a fresh process, as a user does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torchtap


def environment(**more: str) -> dict[str, str]:
    """Without what the self-test looks at, at 80 columns."""
    keep = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NVIDIA_", "CUDA_", "TORCHTAP_"))
        and name not in ("NO_COLOR", "FORCE_COLOR", "TERM")
    }
    return {
        **keep,
        "COLUMNS": "80",
        "TERM": "xterm-256color",
        "PYTHONPATH": str(Path(torchtap.__file__).parents[1]),
        **more,
    }


def command(*words: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchtap.cli", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment(**env),
        cwd=cwd,
        timeout=120,
    )


def on_terminal(words: list[str], env: Mapping[str, str]) -> tuple[str, int]:
    """What a real terminal of 80 columns gets, and the exit code."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtap.cli", *words],
        stdout=slave,
        stderr=slave,
        stdin=slave,
        env=dict(env),
        close_fds=True,
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the terminal is closed when the last writer has ended
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    return shown.decode(), process.wait()
