"""Spellings of "there is no value"."""

from __future__ import annotations

import pytest

from torchtap.selftest.smi import CellState, read_cell


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("[N/A]", CellState.NOT_REPORTED),
        (" N/A ", CellState.NOT_REPORTED),
        ("[Not Supported]", CellState.NOT_REPORTED),
        ("Not Supported", CellState.NOT_REPORTED),
        ("[Requested functionality has been deprecated]", CellState.NOT_REPORTED),
        ("[Function Not Found]", CellState.NOT_REPORTED),
        ("", CellState.NOT_REPORTED),
        ("[Insufficient Permissions]", CellState.NOT_PERMITTED),
        ("[Unknown Error]", CellState.BROKEN),
        ("Unknown Error", CellState.BROKEN),
        ("ERR!", CellState.BROKEN),
        ("[Something New]", CellState.BROKEN),
        ("[GPU is lost]", CellState.LOST),
        ("GPU is lost", CellState.LOST),
        ("[GPU requires reset]", CellState.NEEDS_RESET),
        ("0", CellState.VALUE),
        ("NVIDIA H200", CellState.VALUE),
    ],
)
def test_each_spelling_has_its_state(text: str, state: CellState):
    """An unknown word in brackets is an error word, so it is broken and never a value."""
    assert read_cell(text).state is state
