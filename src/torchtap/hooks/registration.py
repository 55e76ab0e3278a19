"""A function of your own for every layer: `on_forward(model, layers, function)` and `on_backward(...)`."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchtap.hooks.around import around
from torchtap.hooks.gradient import on_gradient
from torchtap.hooks.lifecycle import Hooks, recomputing
from torchtap.hooks.nested import tensors
from torchtap.hooks.selection import Blocks, Layer, Layers, select

P = ParamSpec("P")
R = TypeVar("R")


class HookError(RuntimeError):
    """A function that was registered for layers raised. Says for which layer; what it raised is the `__cause__`."""


class Registration:
    """A function registered for layers, inside a `with` block or a decorated function.

    May be entered again after it was left, but not while it is entered.
    """

    def __init__(
        self, layers: list[Layer], function: Callable[[str, Any], object], *, backward: bool
    ) -> None:
        self.layers = layers
        """The layers that the function is registered for."""
        self.refused: list[tuple[str, str]] = []
        """Those that could not be hooked, by name, each with the reason."""
        self._function, self._backward = function, backward
        self._hooks: Hooks | None = None
        self._handles: list[RemovableHandle] = []
        self._without_graph = Counter[
            str
        ]()  # calls of each layer that a reentrant checkpoint may repeat with one
        self._lock = threading.Lock()

    def __enter__(self) -> Registration:
        if self._hooks is not None:
            raise RuntimeError("these hooks are registered already: one block at a time")
        hooks, after = Hooks(), self._attach if self._backward else self._after
        with ExitStack() as undo:
            undo.callback(hooks.remove)
            for layer in self.layers:
                hooks.add(layer, functools.partial(after, layer))
            undo.pop_all()
        self._hooks, self.refused = hooks, [(layer.name, why) for layer, why in hooks.refused]
        return self

    def __exit__(self, *raised: object) -> None:
        if self._hooks is not None:
            self._hooks.remove()
        self._hooks = None
        while self._handles:
            self._handles.pop().remove()
        self._without_graph.clear()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: registered while the function runs."""
        return around(self, function)

    def _after(self, layer: Layer, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if not recomputing():
            self._call(layer, layer.name, output)

    def _attach(self, layer: Layer, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        able = [(path, tensor) for path, tensor in tensors(output) if tensor.requires_grad]
        with self._lock:
            if recomputing():
                # Only a first pass without a graph, that of a reentrant checkpoint, gets its gradients here.
                if not self._without_graph[layer.name]:
                    return
                self._without_graph[layer.name] -= 1
            elif not able:
                self._without_graph[layer.name] += 1
        for path, tensor in able:
            name = f"{layer.name}[{path}]" if path else layer.name
            handle = on_gradient(tensor, functools.partial(self._call, layer, name))
            if handle is not None and tensor.is_leaf:
                self._handles.append(handle)  # the others go with their graph

    def _call(self, layer: Layer, name: str, value: Any) -> None:
        if self._hooks is None:
            return  # a graph may outlive the block
        try:
            self._function(name, value)
        except Exception as error:
            what = "gradient" if self._backward else "output"
            raise HookError(
                f"the function for the {what} of {layer.name or 'the model itself'} ({layer.kind}) raised "
                f"{type(error).__name__}: {error}"
            ) from error


def on_forward(
    model: nn.Module,
    layers: Layers,
    function: Callable[[str, Any], object],
    *,
    depth: int | None = None,
    blocks: Blocks | None = None,
) -> Registration:
    """Call `function(name, output)` after each call of these layers, in a `with` block or a decorated function.

    `layers`, `depth` and `blocks` choose as in `select`. The output is the model's own, graph and all: read it, do not
    write to it, and `.detach().clone()` what is to be kept. What the function returns is not used: the output stays.
    What it raises reaches the caller of the model as HookError, which names the layer. Under `nn.DataParallel` it is
    called from several threads. Forwards that activation checkpointing repeats are no calls.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with on_forward(net, nn.Linear, lambda name, output: print(name, tuple(output.shape))):
    ...     _ = net(torch.ones(4, 2))
    0 (4, 3)
    2 (4, 1)
    """
    return Registration(select(model, layers, depth=depth, blocks=blocks), function, backward=False)


def on_backward(
    model: nn.Module,
    layers: Layers,
    function: Callable[[str, Tensor], object],
    *,
    depth: int | None = None,
    blocks: Blocks | None = None,
) -> Registration:
    """Call `function(name, gradient)` for the gradient with respect to each output of each of these layers.

    As `on_forward` in all else. The gradient has the shape of the output, as it was before an operation in place that
    followed. Where a layer gives several tensors, the way to each stands behind its name: "rnn[0]", "rnn[1.0]". Both
    forward and backward must run inside the block; with two backwards through one graph it is called twice.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    >>> with on_backward(net, nn.Linear, lambda name, gradient: print(name, tuple(gradient.shape))):
    ...     net(torch.ones(4, 2)).sum().backward()
    2 (4, 1)
    0 (4, 3)
    """
    return Registration(select(model, layers, depth=depth, blocks=blocks), function, backward=True)
