"""Run the command in a fresh process, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
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
