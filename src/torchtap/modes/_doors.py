"""The places in PyTorch where the observer stands while it is open, and what stands there meanwhile.

Each door is an attribute of PyTorch that every caller looks up at call time, so that what is set on it wins and
taking it away gives back what was there. What is set is made once a process: torch.compile recognises it the next
time, and torch.jit.script is told which operator it stands for.

`RNN` is open while anybody watches, `GUARD` while a guard does: `opened(...)`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchtap.modes import _rnn
from torchtap.modes._observer import (
    OBSERVER,
    Backward,
    Ran,
    innermost_setter,
    next_serial,
    set_innermost,
    setter_of,
)
from torchtap.modes._torch import VF, autograd, is_fake, jit, register_builtin

Native = Callable[..., Any]
"""What was at a door before it was opened: libtorch's or PyTorch's own function, as a rule."""


@dataclass
class StandIn:
    """What stands at an open door, and what it stands in for."""

    native: Native
    function: Callable[..., Any]


@dataclass
class Door:
    """One attribute, and what stands there while it is open."""

    owner: Any
    name: str
    make: Callable[[str, Callable[[], Native]], Callable[..., Any]]
    """(name, what gives the native function) -> what stands there."""
    operator: str = ""
    """What it is to torch.jit.script, such as `aten::lstm`."""
    kept: bool = False
    """Whether the owner itself held the native one, so that it is put back and not just laid bare."""
    stand_in: StandIn | None = None
    """Made at the first opening, and kept: see above."""

    def open(self) -> None:
        """Set the stand-in."""
        self.kept = self.name in vars(self.owner)
        native = getattr(self.owner, self.name)
        if self.stand_in is None:
            self.stand_in = self._stand_in(native)
        self.stand_in.native = native
        setattr(self.owner, self.name, self.stand_in.function)

    def _stand_in(self, native: Native) -> StandIn:
        made = StandIn(native, native)
        made.function = self.make(self.name, lambda: made.native)
        if self.operator:
            register_builtin(made.function, self.operator)
        return made

    def close(self) -> None:
        """Give back what was there. What a caller has kept of the stand-in goes on as the native function."""
        now = getattr(self.owner, self.name)
        assert self.stand_in is not None
        if now is not self.stand_in.function:
            # Somebody else has set something since. Theirs stays, and may call ours: so that goes on with the native
            # function that it has now, and the next opening makes another.
            if now is not self.stand_in.native:
                self.stand_in = None
        elif self.kept:
            setattr(self.owner, self.name, self.stand_in.native)
        else:
            delattr(self.owner, self.name)


def _set_attribute(_: str, native: Callable[[], Native]) -> Callable[..., Any]:
    def __setattr__(self: nn.Module, name: str, value: Any) -> None:  # noqa: N807
        if name != "training" or torch.compiler.is_compiling():
            native()(self, name, value)
            return
        before = self.__dict__.get("training")
        native()(self, name, value)
        OBSERVER.wrote_mode(self, before, value, sys._getframe(1))

    return __setattr__


def _train(_: str, native: Callable[[], Native]) -> Callable[..., Any]:
    def train(self: nn.Module, mode: bool = True) -> Any:
        outer = None if torch.compiler.is_compiling() else innermost_setter()
        # A call within a call is its own setter only where it sets another mode: an overridden train() that evals a
        # part. Otherwise it is the outer one going down the tree.
        if (
            torch.compiler.is_compiling()
            or not OBSERVER.open
            or (outer is not None and outer.training == mode)
        ):
            return native()(self, mode)
        set_innermost(setter_of(self, mode, sys._getframe(1)))
        try:
            return native()(self, mode)
        finally:
            set_innermost(outer)

    return train


def _run_backward(_: str, native: Callable[[], Native]) -> Callable[..., Any]:
    def run_backward(
        tensors: Sequence[Tensor],
        gradients: Any,
        retain_graph: bool,
        create_graph: bool,
        inputs: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with OBSERVER.backward(Backward(tensors, inputs, sys._getframe(1))):
            return native()(tensors, gradients, retain_graph, create_graph, inputs, *args, **kwargs)

    return run_backward


def _dropout(_: str, native: Callable[[], Native]) -> Callable[..., Any]:
    def dropout(input: Tensor, p: float, train: bool) -> Any:
        result = native()(input, p, train)
        if not torch.compiler.is_compiling() and not is_fake(input):
            OBSERVER.ran(Ran(next_serial(), "dropout", train and p > 0, False, sys._getframe(1)))
        return result

    return dropout


def _batch_norm(_: str, native: Callable[[], Native]) -> Callable[..., Any]:
    def batch_norm(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> Any:
        arguments = (input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
        result = native()(*arguments)
        if not torch.compiler.is_compiling() and not is_fake(input):
            moves = training and running_mean is not None
            OBSERVER.ran(Ran(next_serial(), "batch_norm", training, moves, sys._getframe(1)))
        return result

    return batch_norm


def _attention(_: str, native: Callable[[], Native]) -> Callable[..., Any]:
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = native()(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        if not torch.compiler.is_compiling() and not is_fake(query):
            OBSERVER.ran(Ran(next_serial(), "attention", dropout_p > 0, False, sys._getframe(1)))
        return result

    return attention


RNN = (
    *(Door(VF, name, _rnn.stand_in, f"aten::{name}") for name in _rnn.FUNCTIONS),
    Door(jit, "create_script_module", _rnn.create_script_module),
    Door(nn.Module, "__setattr__", _set_attribute),
    Door(nn.Module, "train", _train),
)
_DROPOUTS = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
GUARD = (
    Door(autograd, "_engine_run_backward", _run_backward),
    *(Door(VF, name, _dropout, f"aten::{name}") for each in _DROPOUTS for name in (each, f"{each}_")),
    Door(torch, "batch_norm", _batch_norm, "aten::batch_norm"),
    Door(nn.functional, "scaled_dot_product_attention", _attention, "aten::scaled_dot_product_attention"),
)


_lock = threading.Lock()
_counts: dict[int, int] = {}  # id of a group -> how many have it open, in whatever thread
_optimizer_hook: Any = None


@contextmanager
def opened(*groups: tuple[Door, ...]) -> Iterator[None]:
    """Open these groups of doors, for the whole process. Nests; the last one out closes."""
    with ExitStack() as stack:
        for group in groups:
            _enter(group)
            stack.callback(_exit, group)
        yield


def _enter(group: tuple[Door, ...]) -> None:
    global _optimizer_hook
    with _lock:
        if _counts.get(id(group), 0) == 0:
            with ExitStack() as undo:
                for door in group:
                    door.open()
                    undo.callback(door.close)
                undo.pop_all()  # all went well
            if group is GUARD:
                _optimizer_hook = register_optimizer_step_post_hook(OBSERVER.stepped)
            else:
                OBSERVER.open = True
        _counts[id(group)] = _counts.get(id(group), 0) + 1


def _exit(group: tuple[Door, ...]) -> None:
    with _lock:
        _counts[id(group)] -= 1
        if _counts[id(group)] > 0:
            return
        if group is GUARD:
            _optimizer_hook.remove()
        else:
            OBSERVER.open = False
        for door in reversed(group):
            door.close()
        if group is RNN:
            OBSERVER.forget()
