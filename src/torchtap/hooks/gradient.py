"""The gradient with respect to a tensor, seen as it passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


class _GradientHook:
    """Hands the gradient on to a function, and never changes it."""

    __slots__ = ("_function",)
    # As torch.utils.hooks.unserializable_hook marks it: saving a hooked output is no reason to warn.
    __torch_unserializable__ = True

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        self._function = function

    def __call__(self, gradient: Tensor) -> None:
        self._function(gradient)


def on_gradient(tensor: Tensor, function: Callable[[Tensor], object]) -> RemovableHandle | None:
    """Call `function(gradient)` whenever a backward has the gradient with respect to `tensor`, of its shape and dtype.

    None, and nothing done, where no backward can reach it: it does not require a gradient, or is inside a transform of
    `torch.func`. What `function` returns is not used. It must not write to the gradient, and should not keep `tensor`:
    both would stay until the garbage collector comes.

    The gradient is that of the value `tensor` has now: operations in place that follow do not matter. With two
    backwards through one graph it is called twice. A leaf keeps its hooks for good, so take them off: the handle's
    `remove()`. Each hooked tensor costs a level of the stack when its graph is freed (PyTorch 2.14 frees a chain of
    nodes that Python has seen recursively; 20,000 in one graph fit into 8 MB, 40,000 do not).

    >>> x = torch.ones(2, requires_grad=True)
    >>> y = x * 3
    >>> handle = on_gradient(y, print)
    >>> y.relu_().sum().backward()
    tensor([1., 1.])
    >>> on_gradient(torch.ones(2), print)
    """
    if not tensor.requires_grad or is_transformed(tensor):
        return None
    handle: RemovableHandle = tensor.register_hook(_GradientHook(function))  # type: ignore[no-untyped-call]
    return handle


def follow(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle | None:
    """`on_gradient` at a third of its price: no handle is made, since the hook goes with the graph. `hook` is called by
    autograd itself.

    It must return None, and be marked as `_GradientHook` is. The tensor requires a gradient and is in no transform.
    A leaf keeps its hooks for good: only then there is a handle, to take it off.
    """
    if tensor._backward_hooks is not None or tensor.grad_fn is None:
        handle: RemovableHandle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return handle if tensor.grad_fn is None else None
    # As Tensor.register_hook does it. Other keys are the numbers of handles.
    tensor._backward_hooks = OrderedDict(torchtap=hook)
    tensor.grad_fn._register_hook_dict(tensor)
    return None


def is_transformed(tensor: Any) -> bool:
    """Whether this stands for a tensor inside `torch.func.vmap`, `grad` and their like: it may not leave them."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
