"""Which of two events stands first in the program's text: two parts of one step do not stand as step and evaluation."""

from __future__ import annotations

from types import CodeType, FrameType

_DEEPEST = 60

Lines = tuple[tuple[int, CodeType, int], ...]
"""The frames that led to an event, innermost first: by id, with their code, and the instruction that each was at."""


def lines(frame: FrameType | None) -> Lines:
    """Keeps no frame, and reads no variables: see `_frames.stack_from`."""
    found: list[tuple[int, CodeType, int]] = []
    while frame is not None and len(found) < _DEEPEST:
        found.append((id(frame), frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def stands_before(first: Lines, second: Lines) -> bool:
    """Whether, in the innermost run of a function that led to both, `first` stands above.

    So of two events in one step. An evaluation between steps stands below them, where they are in one loop.
    """
    known = {(frame, code): at for frame, code, at in second}
    for frame, code, at in first:
        other = known.get((frame, code))
        if other is not None and other != at:  # equal: a call that has returned, and one more in its place
            return at < other
    return False
