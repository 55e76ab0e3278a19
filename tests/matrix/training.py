"""Two training steps of a model, and everything that they leave as digests: equal digests are equal bits."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.matrix.cases import SEED, Case, loss_of
from torchtap.hooks import tensors

STEPS = 2
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)  # fmt: skip


def seed() -> None:
    """All random states that models draw from."""
    random.seed(SEED)
    np.random.seed(SEED)  # the global state is what models draw from
    torch.manual_seed(SEED)


def bits(tensor: Tensor) -> str:
    """A digest of dtype, shape and bytes. Sparse tensors: of their indices and values as they are."""
    if tensor.layout is not torch.strided:
        return f"{bits(tensor._indices())} {bits(tensor._values())}"
    if nn.parameter.is_lazy(tensor):
        return "uninitialized"
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256(flat.numpy().data).hexdigest()[:32]
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest}"


def train(model: nn.Module, case: Case, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Two steps from the same random state; what was computed, by name."""
    seen: dict[str, str] = {}
    seed()
    for step in range(STEPS):
        args, kwargs = case.batch()
        optimizer.zero_grad()
        output = model(*args, **kwargs)
        seen |= {f"step {step}, output {path}": bits(tensor) for path, tensor in tensors(output)}
        loss = loss_of(output)
        del output, args, kwargs
        loss.backward()  # type: ignore[no-untyped-call]
        seen[f"step {step}, loss"] = bits(loss)
        seen |= {
            f"step {step}, gradient of {name}": "none" if p.grad is None else bits(p.grad)
            for name, p in model.named_parameters()
        }
        optimizer.step()
    seen["random state of PyTorch"] = bits(torch.get_rng_state())
    seen["random state of numpy"] = repr(np.random.get_state())
    seen["random state of Python"] = str(hash(random.getstate()))
    state = model.state_dict()
    seen |= {
        f"state_dict {name}": bits(value) if isinstance(value, Tensor) else repr(value)
        for name, value in state.items()
    }
    seen["state_dict names"] = " ".join(state)
    return seen


def first_difference(bare: dict[str, str], other: dict[str, str]) -> str | None:
    """The first name under which two runs differ; None: they are equal in all bits."""
    for name in [*bare, *other]:
        if bare.get(name) != other.get(name):
            return name
    return None


def hooks_on(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """How many hooks modules, parameters and the optimizer have."""
    count = sum(len(getattr(module, kind)) for module in model.modules() for kind in HOOKS)
    for parameter in model.parameters():
        count += len(parameter._backward_hooks or ())
        count += len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
    if optimizer is not None:
        count += len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    return count


class PeakMemory:
    """How much memory a block took at its peak beyond what there was before, in MiB; None where Linux does not tell.

    `with PeakMemory() as peak: ...`, then `peak.mib`. It is that of the process, so it is right within some MiB.
    """

    mib: float | None = None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
            self._before = _status("VmRSS")
        except (OSError, AttributeError):
            self._before = None
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None and (peak := _status("VmHWM")) is not None:
            self.mib = max(0.0, (peak - self._before) / 1024)


def _status(field: str) -> int | None:
    """A number of /proc/self/status, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return None
