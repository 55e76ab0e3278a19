"""How a hook that torch.compile has traced reaches its watch: by an operator that the compiler does not look into.

The operator runs in the compiled code wherever the layer's output stands in the graph, so there is no graph break. It
says that it writes to a tensor, the ticket, since an operator that gives nothing and changes nothing would be dropped.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Protocol

import torch
from torch import Tensor


class Heard(Protocol):
    """A hook that can be told of by number."""

    def saw(self, tensor: Tensor, path: str, *, recording: bool) -> None:
        """Compiled code has this value; `recording`: whether gradients were recorded when it was traced."""


TICKET, NOTHING = torch.zeros(1), torch.zeros(0)
_numbers = itertools.count()
_hooks: weakref.WeakValueDictionary[int, Heard] = weakref.WeakValueDictionary()


def number_of(hook: Heard) -> int:
    """A number for this hook, as long as it lives."""
    number = next(_numbers)
    _hooks[number] = hook
    return number


@torch.library.custom_op("torchtap::saw", mutates_args=("ticket",))
def saw(tensor: Tensor, ticket: Tensor, hook: int, path: str, recording: bool) -> None:  # noqa: ARG001
    """Tell the hook of that number of this value. Nothing where it is gone."""
    heard = _hooks.get(hook)
    if heard is not None:
        heard.saw(tensor, path, recording=recording)


@saw.register_fake
def _(tensor: Tensor, ticket: Tensor, hook: int, path: str, recording: bool) -> None:
    pass
