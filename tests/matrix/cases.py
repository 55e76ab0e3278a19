"""What the matrix is made of: how to build a model, what to give it, and what the loss is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.hooks import tensors

SEED = 20261201


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    group: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    """What a step gives to the model, positional and by name; drawn anew from the random state."""
    sampled: bool = False
    """Whether it is one of those that `make test` runs."""


def loss_of(output: Any) -> Tensor:
    """One number of any output: the model's own loss, the sum of a dict of losses, else the mean square of all."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    if isinstance(output, dict) and all(isinstance(v, Tensor) and v.ndim == 0 for v in output.values()):
        return torch.stack(list(output.values())).sum()
    squares = [
        tensor.float().square().mean()
        for _, tensor in tensors(output)
        if tensor.requires_grad and tensor.is_floating_point() and tensor.numel()
    ]
    return torch.stack(squares).sum()


def cases(names: Iterable[str] = ()) -> list[Case]:
    """All rows, or those whose name or group is among `names`. Raises ValueError for one that is neither."""
    from tests.matrix import huggingface, nets, vision  # not before they are wanted: they import much

    every = [*nets.cases(), *vision.cases(), *huggingface.cases()]
    wanted = set(names)
    if unknown := wanted - {case.name for case in every} - {case.group for case in every}:
        groups = ", ".join(dict.fromkeys(case.group for case in every))
        raise ValueError(
            f"no model or group is named {', '.join(sorted(unknown))}. Groups: {groups}. Models: --list"
        )
    return [case for case in every if not wanted or case.name in wanted or case.group in wanted]
