"""A tensor's values in the order of memory: statistics do not depend on the order, and other orders cost copies."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.monitor.stats.refusing import local_part


def flat(tensor: Tensor) -> tuple[Tensor, int]:
    """The values of `tensor` as (dense one-dimensional tensor without autograd, how often each stands there).

    A view for every dense tensor, whatever the order of its dimensions (channels_last, transposed), and for an expanded
    one, whose memory is read once. Others, such as a slice of columns, are copied. Complex values become twice as many
    real ones. Raises TypeError for a tensor that `refusal` names.

    >>> values, times = flat(torch.rand(4, 3).t())
    >>> tuple(values.shape), times
    ((12,), 1)
    >>> values, times = flat(torch.rand(4, 1).expand(4, 5))
    >>> tuple(values.shape), times
    ((4,), 5)
    """
    plain = local_part(tensor)
    if isinstance(plain, str):
        raise TypeError(f"flat() was given {plain}; ask refusal() first")
    plain = plain.detach()
    if plain.is_complex():
        # The conjugate has the values of imag with the other sign, so it cannot be read without a copy.
        plain = torch.view_as_real(plain.resolve_conj())
    plain = plain.resolve_neg()
    if plain.is_contiguous():
        return plain if plain.dim() == 1 else plain.view(-1), 1
    return _in_memory_order(plain)


def _in_memory_order(tensor: Tensor) -> tuple[Tensor, int]:
    """`flat` of a tensor that is not contiguous (so it is not empty)."""
    times = 1
    dimensions = []
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        if stride == 0:
            times *= size
        elif size > 1:
            dimensions.append((stride, size))
    dimensions.sort()
    dense = 1
    for stride, size in dimensions:
        if stride != dense:  # gaps, or elements that overlap
            sizes = [size for _, size in dimensions]
            strides = [stride for stride, _ in dimensions]
            return tensor.as_strided(sizes, strides).contiguous().view(-1), times
        dense *= size
    return tensor.as_strided((dense,), (1,)), times
