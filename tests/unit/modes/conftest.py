"""What every test of modes gets: a seed, and a check that nothing global is changed by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from torchtap.modes import _doors
from torchtap.modes._observer import OBSERVER, innermost_setter

REDIRECTED = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def redirections() -> list[str]:
    """The functions that stand on torch._VF itself now, in place of libtorch's."""
    return [name for name in REDIRECTED if name in vars(torch._VF)]


def doors() -> dict[str, object]:
    """What stands at each door of PyTorch, and whether its owner itself holds it."""
    every = [door for group in (_doors.RNN, _doors.GUARD) for door in group]
    return {
        f"{getattr(door.owner, '__name__', door.owner)}.{door.name}": (
            getattr(door.owner, door.name),
            door.name in vars(door.owner),
        )
        for door in every
    }


def global_state() -> dict[str, object]:
    """What `torchtap.modes` must leave as it was. The random state is not here: forwards may draw from it."""
    return {
        "redirections": redirections(),
        "doors": doors(),
        "observer": (OBSERVER.open, OBSERVER.listeners, len(OBSERVER.last_change), innermost_setter()),
        "optimizer hooks": len(optimizers._global_optimizer_post_hooks),
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "grad mode": torch.is_grad_enabled(),
        "global hooks": [
            len(getattr(hooks, name))
            for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
        ],
        "excluded dispatch keys": torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        "included dispatch keys": torch._C._dispatch_tls_local_include_set().raw_repr(),
    }


@pytest.fixture(autouse=True)
def _nothing_global_changes() -> Iterator[None]:
    torch.manual_seed(0)
    before = global_state()
    yield
    assert global_state() == before
