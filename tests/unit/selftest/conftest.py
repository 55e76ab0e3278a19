"""No test depends on the machine's own GPU settings."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables that the self-test looks at, at a fixed width, without colour."""
    for name in list(os.environ):
        if name.startswith(("NVIDIA_", "CUDA_", "TORCHTAP_")) or name in (
            "LD_LIBRARY_PATH",
            "VARIANT",
            "FORCE_COLOR",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
