"""Patterns in memory: every one is written everywhere, and one changed bit of one address is found."""

from __future__ import annotations

import pytest
import torch

from torchtap.selftest.child.memory import wrong_in_memory
from torchtap.selftest.child.patterns import CONSTANTS, PATTERNS, chunks_of, count_wrong, write

CPU = torch.device("cpu")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bit", [0, 31, 62, 63])
def test_one_changed_bit_of_one_address_is_found(pattern: str, bit: int):
    """In the last address of the last piece; all others are right."""
    chunks = chunks_of(CPU, 3 * 8192, chunk_bytes=8192)
    assert len(chunks) == 3
    write(chunks, pattern)
    assert count_wrong(chunks, pattern) == 0
    chunks[2][-1] ^= -(2**63) if bit == 63 else 1 << bit
    assert count_wrong(chunks, pattern) == 1


def test_every_bit_is_written_as_0_and_as_1_beside_the_other():
    """Over the constants each bit takes both values, and each pair of neighbours differs once."""
    words = [value % 2**64 for value in CONSTANTS.values()]
    assert [sum(word >> bit & 1 for word in words) for bit in range(64)] == [2] * 64
    assert {f"{word:016x}" for word in words} == {"0" * 16, "f" * 16, "5" * 16, "a" * 16}


def test_two_addresses_that_lead_to_one_cell_are_found():
    """No constant can show it; the address can."""
    cells = torch.zeros(1024, dtype=torch.int64)
    folded = [cells[:512], cells[:512]]  # both halves are the same memory
    for pattern in PATTERNS:
        write(folded, pattern)
        assert (count_wrong(folded, pattern) > 0) == (pattern not in CONSTANTS), pattern


def test_a_device_that_gives_less_is_tested_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch):
    """Out of memory at the third piece: two are tested, and their size is told."""
    real, made = torch.empty, []

    def empty(*args: object, **options: object) -> torch.Tensor:
        made.append(1)
        if len(made) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(*args, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", empty)
    said = wrong_in_memory(CPU, 8 << 20, 1 << 20)
    assert (said["tested_mib"], said["wrong"], said["worst"]) == (2, 0, None)
    assert said["checked"] == 2 * (1 << 17) * len(PATTERNS)


def test_memory_that_forgets_is_told_with_its_pattern(monkeypatch: pytest.MonkeyPatch):
    """A stuck bit: all ones come back with one zero."""
    monkeypatch.setattr(
        "torchtap.selftest.child.memory.count_wrong", lambda _, pattern: 7 if pattern == "ones" else 0
    )
    said = wrong_in_memory(CPU, 1 << 20, 1 << 20)
    assert (said["wrong"], said["worst"]) == (7, "ones")


def test_nothing_free_tests_nothing():
    """And says so: no number was compared."""
    said = wrong_in_memory(CPU, -5, 1 << 20)
    assert (said["tested_mib"], said["checked"], said["wrong"]) == (0, 0, 0)
