"""One cell of nvidia-smi's output: a value, or one of many spellings for "there is none".

Spellings: captures of drivers 390 to 610 and nvml.h's error strings, which nvidia-smi puts into brackets.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


class CellState(str, Enum):
    """What a cell says before its value is looked at."""

    VALUE = "value"
    NOT_REPORTED = "not reported"  # this product or mode does not have the field: normal
    NOT_PERMITTED = "not permitted"
    BROKEN = "broken"  # an error where a value should be
    LOST = "lost"
    NEEDS_RESET = "needs reset"


class Cell(NamedTuple):
    """A cell's state and its text without brackets and blanks."""

    state: CellState
    text: str


# Casefolded, without brackets. Anything else in brackets is an error word that we do not know yet: broken.
_WORDS: dict[str, CellState] = {
    "": CellState.NOT_REPORTED,
    "n/a": CellState.NOT_REPORTED,
    "not supported": CellState.NOT_REPORTED,  # the old spelling of [N/A]
    "not available": CellState.NOT_REPORTED,
    "function not found": CellState.NOT_REPORTED,  # a newer nvidia-smi over an older library
    "no data": CellState.NOT_REPORTED,
    "requested functionality has been deprecated": CellState.NOT_REPORTED,
    "insufficient permissions": CellState.NOT_PERMITTED,
    "no permission": CellState.NOT_PERMITTED,
    "unknown error": CellState.BROKEN,
    "err!": CellState.BROKEN,
    "gpu is lost": CellState.LOST,
    "gpu requires reset": CellState.NEEDS_RESET,
    "requires reset": CellState.NEEDS_RESET,
}
# Driver 530 to 550 write the field's last word before the fabric's value: "state  Completed", "state  N/A".
_PREFIX = re.compile(r"^(?:state|status)\s+(?=\S)")
_BRACKETS = re.compile(r"\[(.*)\]", re.DOTALL)


def read_cell(text: str) -> Cell:
    """What one cell says.

    >>> read_cell("[N/A]").state.value, read_cell(" 81559 MiB").text
    ('not reported', '81559 MiB')
    >>> read_cell("[GPU is lost]").state.value, read_cell("[Timeout]").state.value
    ('lost', 'broken')
    >>> read_cell("state  N/A").state.value
    'not reported'
    """
    bare = _PREFIX.sub("", text.strip())
    bracketed = _BRACKETS.fullmatch(bare)
    inner = bracketed[1].strip() if bracketed else bare
    state = _WORDS.get(inner.casefold())
    if state is None:
        state = CellState.BROKEN if bracketed else CellState.VALUE
    return Cell(state, inner)
