"""What to watch in a model, and how to attach to it without changing it.

- `select(model, layers)`: modules by name, class or predicate; by depth, by repeated block.
- `tensors(output)`: the tensors in whatever a module gives.
- `capture(model, layers)`: their outputs, and gradients with respect to them, for a block of code.
- `on_forward(model, layers, function)`, `on_backward(...)`: a function of your own for every layer.
- `coverage(model, layers, calls)`: what was hooked and never ran, and why.
- `on_gradient(tensor, function)`: the gradient with respect to a tensor.
"""

from __future__ import annotations

from torchtap.hooks.capture import Capture, NotKept, capture
from torchtap.hooks.coverage import Unseen, coverage
from torchtap.hooks.gradient import on_gradient
from torchtap.hooks.keeping import OverwrittenError
from torchtap.hooks.lifecycle import Hooks
from torchtap.hooks.nested import tensors
from torchtap.hooks.registration import HookError, Registration, on_backward, on_forward
from torchtap.hooks.selection import Layer, PatternError, select

__all__ = [
    "Capture",
    "HookError",
    "Hooks",
    "Layer",
    "NotKept",
    "OverwrittenError",
    "PatternError",
    "Registration",
    "Unseen",
    "capture",
    "coverage",
    "on_backward",
    "on_forward",
    "on_gradient",
    "select",
    "tensors",
]

for _public in (
    Capture,
    HookError,
    Hooks,
    Layer,
    NotKept,
    OverwrittenError,
    PatternError,
    Registration,
    Unseen,
):
    _public.__module__ = __name__  # tracebacks say torchtap.hooks.PatternError, whatever file it lies in
