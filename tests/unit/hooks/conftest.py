"""What every test of hooks gets: a seed, and a check that no hook stays on all modules of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.modules import module as hooks

GLOBAL = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


@pytest.fixture(autouse=True)
def _nothing_global_changes() -> Iterator[None]:
    torch.manual_seed(0)
    before = [len(getattr(hooks, name)) for name in GLOBAL], torch.is_grad_enabled()
    yield
    assert ([len(getattr(hooks, name)) for name in GLOBAL], torch.is_grad_enabled()) == before


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
