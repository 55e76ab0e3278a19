"""Write patterns into memory and find what does not come back.

Four constants turn every bit on and off, also beside a neighbour of the other kind; the address itself, and its
complement, show two addresses that lead to one cell, which no constant can show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

# As signed 64-bit numbers: all bits off, all on, and every second one.
CONSTANTS = {"zeros": 0, "ones": -1, "0x55": 0x5555555555555555, "0xaa": -0x5555555555555556}
PATTERNS = (*CONSTANTS, "address", "inverted address")
CHUNK_BYTES = 256 << 20


def chunks_of(device: torch.device, size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> list[torch.Tensor]:
    """Memory of about `size_bytes` as 64-bit numbers, in pieces; less where the device has no more."""
    chunks: list[torch.Tensor] = []
    while (len(chunks) + 1) * chunk_bytes <= size_bytes:
        try:
            chunks.append(torch.empty(chunk_bytes // 8, dtype=torch.int64, device=device))
        except torch.OutOfMemoryError:
            break
    return chunks


def write(chunks: Sequence[torch.Tensor], pattern: str) -> None:
    """Write one pattern into every address. All is written before anything is read back."""
    for first, chunk in _numbered(chunks):
        if pattern in CONSTANTS:
            chunk.fill_(CONSTANTS[pattern])
        else:
            torch.arange(first, first + chunk.numel(), out=chunk)
            if pattern == "inverted address":
                chunk.bitwise_not_()


def count_wrong(chunks: Sequence[torch.Tensor], pattern: str) -> int:
    """How many of the numbers are not what `write` wrote.

    >>> chunks = chunks_of(torch.device("cpu"), 4096, chunk_bytes=1024)
    >>> write(chunks, "address")
    >>> chunks[2][7] = 0
    >>> len(chunks), count_wrong(chunks, "address")
    (4, 1)
    """
    if not chunks:
        return 0
    wrong = torch.zeros((), dtype=torch.int64, device=chunks[0].device)
    for first, chunk in _numbered(chunks):
        if pattern in CONSTANTS:
            wrong += (chunk != CONSTANTS[pattern]).sum()
            continue
        expected = torch.arange(first, first + chunk.numel(), device=chunk.device)
        if pattern == "inverted address":
            expected.bitwise_not_()
        wrong += (chunk != expected).sum()
    return int(wrong.item())


def _numbered(chunks: Sequence[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    first = 0
    for chunk in chunks:
        yield first, chunk
        first += chunk.numel()
