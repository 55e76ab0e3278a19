"""Warnings of findings, at the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from torchtap._findings import Finding
from torchtap.modes._frames import is_users


class ModeWarning(UserWarning):
    """A guard has found something that goes wrong, or would on a GPU, without an error here."""


def warn(finding: Finding) -> None:
    """Warn of it at the innermost line of the user's that led here; of the outermost line where none did."""
    frame = outermost = sys._getframe(1)
    while frame.f_back is not None and not is_users(frame):
        frame = frame.f_back
    _warn_at(frame if is_users(frame) else outermost, str(finding))


def _warn_at(frame: FrameType, text: str) -> None:
    # warnings.warn counts frames, and leaves some of importlib's out.
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        ModeWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
    )
