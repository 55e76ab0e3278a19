"""`capture(model)`: the outputs of layers, and the gradients with respect to them, for a block of code."""

from __future__ import annotations

import difflib
import enum
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchtap.hooks import keeping
from torchtap.hooks.around import around
from torchtap.hooks.gradient import on_gradient
from torchtap.hooks.keeping import Kept
from torchtap.hooks.lifecycle import Hooks, compiled_runs_eagerly, recomputing
from torchtap.hooks.nested import Nested, tensors
from torchtap.hooks.selection import Blocks, Layer, Layers, select

P = ParamSpec("P")
R = TypeVar("R")
Clone = Literal["auto"] | bool
# What else an output may hold is kept as it is. An object may hold tensors, and with them their graph.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum)


_MOST_AHEAD = 10_000
"""Outputs of one graph whose gradients are waited for. With 40,000 freeing it overflows the stack (PyTorch 2.14)."""


@dataclass(frozen=True, slots=True)
class NotKept:
    """Stands in a captured output for what was not kept, with the reason."""

    what: str

    def __repr__(self) -> str:
        return f"<not kept: {self.what}>"


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a layer. In `output` and `inputs` each tensor is a `Kept`, or `NotKept`."""

    output: Nested
    inputs: Nested | None = None
    gradients: dict[int, Kept] = field(default_factory=dict)
    """By the place of the tensor in the output, as `tensors` counts them."""
    graph: bool = False
    """Whether a gradient can come: the output carries a graph, in this pass or when it is recomputed."""


class Capture(Mapping[str, Any]):
    """What `capture` takes, by the names of layers. Readable inside the block and after it.

    `taken[name]` is the output of the layer's last call, in its own structure. Of layers that were not called there is
    nothing: they are not in it, and asking for one raises a KeyError that says why.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        *,
        gradients: bool,
        inputs: bool,
        device: torch.device | None,
        clone: Clone,
        depth: int | None,
        blocks: Blocks | None,
    ) -> None:
        self.layers = select(model, layers, depth=depth, blocks=blocks)
        """What is looked at."""
        self.refused: list[tuple[str, str]] = []
        """The layers that could not be hooked, by name, each with the reason."""
        self._gradients, self._inputs, self._device, self._copy = (
            gradients,
            inputs,
            device,
            clone is not False,
        )
        self._by_name = {name: layer.name for layer in reversed(self.layers) for name in layer.names}
        self._calls: dict[str, list[_Call]] = {}
        self._started: dict[tuple[str, int], list[Nested]] = defaultdict(list)
        self._hooks = Hooks()
        self._handles: list[RemovableHandle] = []
        self._lock = threading.Lock()
        self._ahead = 0  # outputs whose gradient is waited for, since one came
        self._open = self._entered = False

    # reading

    def __getitem__(self, name: str) -> Any:
        return self._read(self._of(name)[-1].output, name)

    def calls(self, name: str) -> list[Any]:
        """The outputs of all calls of this layer, in the order in which they ended."""
        return [self._read(call.output, name) for call in self._of(name)]

    def inputs(self, name: str, call: int = -1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a call of this layer was given, (positional, by name), as it was before the call; with `inputs=True`."""
        if not self._inputs:
            raise ValueError("inputs were not taken: capture(model, ..., inputs=True)")
        taken = self._of(name)[call].inputs
        given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}) if taken is None else self._read(taken, name)
        return given

    def gradients(self, name: str, call: int = -1) -> Any:
        """The gradient with respect to the output of a call, in the output's structure; with `gradients=True`.

        None stands where no gradient came: backward did not run inside the block, or does not go through it. With
        several backwards through one graph it is their sum, as in `.grad`. It is that of the output as the layer gave
        it: before an operation in place that followed.
        """
        if not self._gradients:
            raise ValueError("gradients were not taken: capture(model, ..., gradients=True)")
        one = self._of(name)[call]
        places = {id(kept): place for place, kept in enumerate(_kept(one.output))}

        def gradient(leaf: Any) -> Any:
            if not isinstance(leaf, Kept):
                return leaf
            kept = one.gradients.get(places[id(leaf)])
            return None if kept is None else kept.read(f"the gradient of {name}")

        return one.output.built(gradient)

    def nbytes(self) -> dict[str, int]:
        """How much is kept of each layer, in bytes: outputs, inputs and gradients of all its calls."""
        return {
            name: sum(
                each.nbytes
                for call in calls
                for each in (*_kept(call.output), *_kept(call.inputs), *call.gradients.values())
            )
            for name, calls in self._calls.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter([layer.name for layer in self.layers if layer.name in self._calls])

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, name: object) -> bool:
        return self._by_name.get(name) in self._calls  # type: ignore[call-overload]

    def __repr__(self) -> str:
        calls = sum(map(len, self._calls.values()))
        size = sum(self.nbytes().values())
        return (
            f"<Capture of {len(self.layers)} layers: {calls} calls of {len(self)}, {size / 2**20:.1f} MiB"
            f"{'' if self._copy else ' of the model, shared'}{', open' if self._open else ''}>"
        )

    def _of(self, name: str) -> list[_Call]:
        if (known := self._by_name.get(name)) is None:
            near = difflib.get_close_matches(str(name), self._by_name, n=3)
            raise KeyError(
                f"{name!r} is not among the {len(self.layers)} layers that are captured"
                + (f"; nearest: {', '.join(near)}" if near else "")
            )
        if known in self._calls:
            return self._calls[known]
        if (why := dict(self.refused).get(known)) is not None:
            raise KeyError(f"{name!r} was not hooked: {why}")
        if not self._entered:
            raise KeyError(f"{name!r}: this capture was not entered: with capture(...) as taken: ...")
        raise KeyError(f"{name!r} was not called as a module while it was captured: see hooks.coverage")

    def _read(self, value: Nested, name: str) -> Any:
        def read(leaf: Any) -> Any:
            return leaf.read(f"what was taken of {name}") if isinstance(leaf, Kept) else leaf

        return value.built(read)

    # taking

    def __enter__(self) -> Capture:
        if self._open:
            raise RuntimeError("this capture is entered already: one block at a time")
        self._calls, self._hooks, self.refused = {}, Hooks(), []
        with ExitStack() as undo:
            undo.callback(self._remove)
            for layer in self.layers:
                self._attach(layer)
            undo.pop_all()
        self._open = self._entered = True
        return self

    def _attach(self, layer: Layer) -> None:
        if layer.compiled and not compiled_runs_eagerly():
            why = (
                "it is part of a compiled model, and a capture would be compiled in and change what is fused. Capture "
                "from the model that was compiled, or inside torch.compiler.set_stance('force_eager')"
            )
            self.refused.append((layer.name, why))
            return
        name = layer.name
        before, after = functools.partial(self._before, name), functools.partial(self._after, name)
        hooked = (not self._inputs or self._hooks.add_before(layer, before)) and self._hooks.add(layer, after)
        if not hooked:
            self.refused.append((name, self._hooks.refused[-1][1]))

    def _before(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _looking_elsewhere() and not recomputing():
            # A call that raises leaves its inputs; those of the next one lie above them.
            self._started[name, threading.get_ident()].append(self._keep((args, kwargs)))

    def _after(self, name: str, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if _looking_elsewhere():
            return
        if recomputing():
            if self._gradients:
                self._recomputed(name, output)
            return
        started = self._started.get((name, threading.get_ident())) if self._inputs else None
        call = _Call(self._keep(output), started.pop() if started else None)
        with self._lock:
            self._calls.setdefault(name, []).append(call)
        if self._gradients:
            self._follow(call, output)

    def _recomputed(self, name: str, output: Any) -> None:
        """A reentrant checkpoint ran the first pass without a graph: only the recomputed output has a gradient.

        Which call it repeats is not told, so it is the last one of those without a graph that gave the same.
        """
        if not any(each.requires_grad for _, each in tensors(output)):
            return
        waiting = [call for call in self._calls.get(name, ()) if not call.graph]
        if not waiting:
            return
        same = (call for call in reversed(waiting) if len(waiting) == 1 or _equal(call.output, output))
        self._follow(next(same, waiting[-1]), output)

    def _follow(self, call: _Call, output: Any) -> None:
        """Have the gradients of this output kept with its call."""

        def keep(place: int, gradient: Tensor) -> None:
            with self._lock:
                self._ahead = 0
                before = call.gradients.get(place)
                if before is not None:
                    gradient = before.read("an earlier gradient").to(gradient.device) + gradient.detach()
                call.gradients[place] = Kept(gradient, self._device, self._copy)

        able = [tensor for _, tensor in tensors(output) if keeping.refusal(tensor) is None]
        for place, tensor in enumerate(able):
            if self._ahead >= _MOST_AHEAD:
                self._say_once(
                    f"gradients of {_MOST_AHEAD} outputs were waited for, and no backward came: more are not taken"
                )
                return
            handle = on_gradient(tensor, functools.partial(keep, place))
            if handle is not None:
                call.graph = True
                self._ahead += 1
                self._handles.append(handle)

    def _say_once(self, why: str) -> None:
        if why not in dict(self.refused).values():
            self.refused.append(("", why))

    def _keep(self, value: Any) -> Nested:
        def one(tensor: Tensor) -> Kept | NotKept:
            if (why := keeping.refusal(tensor)) is not None:
                return NotKept(why)
            return Kept(tensor, self._device, self._copy)

        return Nested(value, one, _plain)

    def __exit__(self, *raised: object) -> None:
        self._remove()
        self._open = False

    def _remove(self) -> None:
        self._hooks.remove()
        while self._handles:
            self._handles.pop().remove()
        self._started.clear()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: captures each call of the function anew."""
        return around(self, function)


def capture(
    model: nn.Module,
    layers: Layers = None,
    *,
    gradients: bool = False,
    inputs: bool = False,
    device: torch.device | str | None = None,
    clone: Clone = "auto",
    depth: int | None = None,
    blocks: Blocks | None = None,
) -> Capture:
    """Keep what layers give, inside a `with` block or a decorated function.

    `layers`, `depth` and `blocks` choose as in `select`. Outputs are kept detached, in their own structure: tensors,
    tuples, dicts, dataclasses, `PackedSequence`. All calls are kept, so leave the block before memory runs out:
    `nbytes()` tells how much is kept. Forwards that activation checkpointing repeats are no calls.

    - `gradients`: also keep the gradients with respect to the outputs. Backward must run inside the block.
    - `inputs`: also keep what the layers are given.
    - `device`: where to keep it; None: where it is. From a GPU to "cpu" it goes through pinned memory, and nobody waits
      for it before it is read.
    - `clone`: "auto" and True copy each value, as what follows may overwrite it (`nn.ReLU(inplace=True)`, `y += x`);
      "auto" leaves the copy out where moving to `device` makes one. False shares the model's memory. Reading a value
      that was written to since then raises OverwrittenError; writes that PyTorch does not count (through `.data`,
      numpy, CUDA graphs) go unseen.

    Outputs, gradients, random state and `state_dict()` of the model stay as they were, bit for bit, but for one case:
    hooks keep `nn.TransformerEncoderLayer` from its fused kernel in eval mode. All hooks are gone after the block, and
    copies and files made of the model inside it have none. Raises PatternError where `layers` matches nothing.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    >>> with capture(net, gradients=True) as taken:
    ...     net(torch.ones(3, 2)).sum().backward()
    >>> taken["0"].shape, taken["0"].requires_grad, taken.gradients("1").tolist()[0]
    (torch.Size([3, 2]), False, [1.0, 1.0])
    """
    if clone not in ("auto", True, False):
        raise ValueError(f'clone: expected "auto", True or False, got {clone!r}')
    return Capture(
        model,
        layers,
        gradients=gradients,
        inputs=inputs,
        device=None if device is None else _whole(torch.device(device)),
        clone=clone,
        depth=depth,
        blocks=blocks,
    )


def _whole(device: torch.device) -> torch.device:
    """With its index: "cuda" is the current GPU, and "cuda:0" and "cuda" are not equal."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _plain(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else NotKept(type(value).__name__)


def _kept(value: Nested | None) -> list[Kept]:
    """What is kept in this structure, in the order of its tensors."""
    return [] if value is None else [leaf for leaf in value.leaves() if isinstance(leaf, Kept)]


def _equal(kept: Nested, output: Any) -> bool:
    """Whether an output is that of a call; waits for the device."""
    before, now = _kept(kept), [tensor for _, tensor in tensors(output)]
    return len(before) == len(now) and all(
        old.nbytes == new.numel() * new.element_size()
        and torch.equal(old.read("an output"), new.detach().to(old.device))
        for old, new in zip(before, now, strict=True)
    )


def _looking_elsewhere() -> bool:
    """Whether this forward is traced by torch.jit or exported: what a hook does would become part of what is traced."""
    return torch._C._get_tracing_state() is not None or torch.compiler.is_exporting()
