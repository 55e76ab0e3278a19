"""The verdicts over one output of nvidia-smi."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """What one output proves. `RETRY`: nothing about the GPU, ask again differently. `UNKNOWN`: cannot be read."""

    PASS = "pass"  # noqa: S105  # no password
    WARN = "warn"
    FAIL = "fail"
    RETRY = "retry"
    UNKNOWN = "unknown"
