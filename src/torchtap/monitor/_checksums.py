"""Checksums of parameters: whether two ranks hold the same bits, without sending them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_CHUNK = 1 << 20
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd numbers below 2**63 with bits all over: a product with them is a permutation of 64-bit numbers.
_OF_BITS, _OF_PLACES, _MIXING = 0x4F1BBCDCBFA53E0B, 0x5851F42D4C957F2D, 0x14057B7EF767814F


@torch.no_grad()
def checksums(named: Mapping[str, Tensor]) -> dict[str, int]:
    """One number below 2**64 for each dense tensor: of its values' bits and where they stand, whatever its strides.

    Whole arithmetic, so the same on every device and in every order of summing. Reads each device once.

    >>> one = {"weight": torch.arange(4.0)}
    >>> checksums(one) == checksums({"weight": torch.arange(4.0)})
    True
    >>> checksums(one) == checksums({"weight": torch.arange(4.0).flip(0)})
    False
    """
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in named.items():
        by_device.setdefault(tensor.device, {})[name] = _sum(tensor.detach())
    read: dict[str, int] = {}
    for sums in by_device.values():
        read |= zip(sums, torch.stack(list(sums.values())).tolist(), strict=True)
    return {name: read[name] % (1 << 64) for name in named}


def _sum(tensor: Tensor) -> Tensor:
    """Of all values, each value's bits and place mixed into 64 bits: int64, of no dimension. Overflow wraps."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = values.view(_BITS[values.element_size()]).reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, flat.numel(), _CHUNK):
        mixed = flat[start : start + _CHUNK].to(torch.int64) * _OF_BITS
        mixed += torch.arange(start, start + len(mixed), device=tensor.device) * _OF_PLACES
        for shift in (29, 32):  # down, or a sign bit would reach no other bit
            mixed ^= mixed >> shift
            mixed *= _MIXING
        total += (mixed ^ (mixed >> 32)).sum()
    return total
