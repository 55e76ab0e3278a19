"""What is seen of modes while somebody watches: writes to `training`, RNN calls, and what else reads its mode.

One observer a process, open while `emulate_cudnn()` or a `guard` is. It stands at a few doors of PyTorch
(`_doors.py`), so nothing is put on the model: no hook, no attribute. What it sees it keeps in two places: the last
mode change of each module here, by weak reference; each RNN call on its autograd nodes (`grad_fn.metadata`), so that
the graph carries its own history and takes it along when it goes. Guards listen for the rest.

What it costs while open, on a busy machine (Python 3.11, torch 2.14.1): 20 to 28 µs more a call of an RNN,
of which half is finding its lines; 3 µs more a module in train() and eval(); 6 µs more a single `training = ...`.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import Stack, first_argument, stack_from
from torchtap.modes._torch import runs_in_backward

KEY = "torchtap.rnn_call"
"""In `grad_fn.metadata` of an RNN call's outputs: its `RnnCall`."""

_serial = itertools.count(1)  # one order for all events of the process


def next_serial() -> int:
    """The number of the next event; atomic."""
    return next(_serial)


@dataclass(frozen=True, slots=True)
class Setter:
    """One call of train() or eval(), with all that it reaches below, or one `training = ...` by other code."""

    training: bool
    by: Literal["train", "eval", "write"]
    on: weakref.ref[nn.Module]
    """The module that train() or eval() was called on; for a write the module written to."""
    serial: int
    stack: Stack
    restores: bool = False
    """Whether one of Torchtap's own fixes puts back what was there before it."""


def code(by: str, training: bool) -> str:
    """What stood there: `train(False)`, too, where a mode was put back that was read too late."""
    if by == "write":
        return f"training = {training}"
    return f"{by}()" if training is (by == "train") else f"{by}({training})"


@dataclass(frozen=True, slots=True)
class ModeChange:
    """One write to a module's `training`."""

    before: bool | None
    """The mode until then; None for a module in the making."""
    setter: Setter
    """Who did it: one and the same object for all writes of one call of train() or eval()."""


@dataclass(slots=True)
class RnnCall:
    """One call of an `nn.LSTM`, `nn.GRU` or `nn.RNN`."""

    serial: int
    module: weakref.ref[nn.Module] | None
    """An `nn.RNNBase` as a rule; None where no module's method called."""
    class_name: str
    number: int
    """1 for the first call of this module since the observer was opened; 0 where that is not known."""
    training: bool
    grad: bool
    """Whether its outputs carry a graph."""
    cudnn: bool
    """Whether cuDNN runs, or on a GPU would run, this call: see `would_use_cudnn`."""
    enforced: bool
    """Whether backward raises by itself: on a GPU and under emulation, not on a plain CPU."""
    change: ModeChange | None
    """Who had set the mode it ran in; None: set before anybody watched."""
    stack: Stack
    replica_of: object = None
    """In a replica of `nn.DataParallel`: the `_all_weights` that it shares with its original."""
    in_backward: bool = False
    """Whether it ran within a backward: a checkpoint's forward, run again."""
    weights: tuple[int, ...] = ()
    """By id, the tensors that it was called with as weights: not the module's own in `torch.func.functional_call`."""

    @property
    def breaks_backward(self) -> bool:
        """Whether cuDNN refuses, or would refuse, a gradient that flows into it."""
        return self.cudnn and not self.training


@dataclass(frozen=True, slots=True)
class Ran:
    """A call of a function whose result depends on the mode: dropout, batch norm, attention with dropout."""

    serial: int
    kind: Literal["dropout", "batch_norm", "attention"]
    active: bool
    """Whether it did what belongs to train mode: dropped something, used the batch's statistics."""
    moves: bool
    """Whether it moved running statistics."""
    frame: FrameType
    """The caller's. Valid during the call only: never keep it."""


@dataclass(frozen=True, slots=True)
class Backward:
    """One run of autograd: `tensor.backward()`, `torch.autograd.backward`, `torch.autograd.grad`."""

    tensors: Sequence[Tensor]
    inputs: Sequence[Any]
    """What gradients are asked for; empty: all leaves."""
    frame: FrameType
    """The caller's. Valid during the call only."""


class Listener:
    """What a guard overrides to hear of events. Called in the thread that caused them; raises on purpose only."""

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        """After a write to `training`, of any module in the process."""

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:
        """After an RNN's forward, of any module in the process."""

    def ran(self, what: Ran) -> None:
        """After another function whose result depends on the mode."""

    def backward(self, run: Backward) -> AbstractContextManager[object]:  # noqa: ARG002  for those that override
        """Entered before autograd runs and left after it, with its exception if it raised one."""
        return nullcontext()

    def stepped(self, optimizer: Optimizer) -> None:
        """After an optimizer's step."""


@dataclass
class Observer:
    """The one observer: `OBSERVER`."""

    listeners: tuple[Listener, ...] = ()
    """Replaced, never changed in place, so that events need no lock."""
    open: bool = False
    """Whether anybody watches. What calls it when nobody does (a stand-in that somebody kept) is not heard."""
    last_change: ByModule[ModeChange] = field(default_factory=ByModule)
    """What made each module's mode what it is: of several eval() in a row the first. None: nobody saw that."""
    last_write: ByModule[ModeChange] = field(default_factory=ByModule)
    """The last write to each, which may have changed nothing: what was set last, on purpose."""
    last_without_graph: ByModule[int] = field(default_factory=ByModule)
    """Of each RNN, the serial of its last call that made no graph, as an evaluation's."""
    version: int = 0
    """Grows with every mode change: equal means nothing has changed."""
    _counts: ByModule[int] = field(default_factory=ByModule)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listen(self, listener: Listener) -> None:
        """Add a listener."""
        with self._lock:
            self.listeners = (*self.listeners, listener)

    def unlisten(self, listener: Listener) -> None:
        """Take a listener away."""
        with self._lock:
            self.listeners = tuple(each for each in self.listeners if each is not listener)

    def saw(self, module: nn.Module) -> bool:
        """Whether a call of this RNN was seen since the observer was opened."""
        return module in self._counts

    def forget(self) -> None:
        """Nobody watches any more: drop what was kept. Graphs keep their own calls."""
        self.last_change.clear()
        self.last_write.clear()
        self.last_without_graph.clear()
        self._counts.clear()

    def who_set(self, module: nn.Module) -> tuple[ModeChange | None, ModeChange | None]:
        """What `is_back` takes."""
        return self.last_change.get(module), self.last_write.get(module)

    def is_back(self, module: nn.Module, change: ModeChange | None, write: ModeChange | None) -> None:
        """It is in the mode again that it had then: so is who had set it, whether known or not."""
        if change is None:
            self.last_change.pop(module)
        else:
            self.last_change[module] = change
        if write is not None:
            self.last_write[module] = write

    def known(self, modules: Iterable[nn.Module]) -> ByModule[ModeChange]:
        """What made their modes what they are, as far as it is known."""
        known = ByModule[ModeChange]()
        for module in modules:
            change = self.last_change.get(module)
            if change is not None and vars(module).get("training") == change.setter.training:
                known[module] = change
        return known

    def recall(self, known: ByModule[ModeChange]) -> None:
        """Take up what was `known` when somebody watched before, of modules that are in the same mode still.

        Changes to and fro in between cannot be seen.
        """
        for module, change in known.items():
            same = vars(module).get("training") == change.setter.training
            if same and module not in self.last_change:
                self.last_change[module] = change

    def wrote_mode(self, module: nn.Module, before: bool | None, training: bool, frame: FrameType) -> None:
        """A module's `training` was written by code in `frame`."""
        if not self.open:
            return
        setter = _setters.innermost
        if setter is None or setter.training != training:
            while frame.f_code.co_name == "__setattr__" and frame.f_back is not None:  # a class's own
                frame = frame.f_back
            if _is_own_switch(module, frame):  # an overridden train() that does not call super().train()
                setter = setter_of(module, training, frame)
            else:
                stack = stack_from(frame)
                setter = Setter(
                    training, "write", weakref.ref(module), next(_serial), stack, _setters.restoring
                )
        change = ModeChange(before=before, setter=setter)
        self.last_write[module] = change
        known = self.last_change.get(module)
        if before != training:
            self.last_change[module] = change
        elif known is not None and known.setter.training != training:
            self.last_change.pop(module)  # changed since then where nobody could see it
        self.version += 1
        for listener in self.listeners:
            listener.changed(module, change)

    def ran_rnn(
        self,
        frame: FrameType | None,
        outputs: Any,
        weights: Sequence[Tensor],
        *,
        training: bool,
        cudnn: bool,
        enforced: bool,
    ) -> None:
        """An RNN function was called by code in `frame` and returned `outputs`."""
        if not self.open:
            return
        module = first_argument(frame) if frame is not None else None
        if not isinstance(module, nn.Module):
            module = None
        number = 0
        change = replica_of = None
        if module is not None:
            if module.__dict__.get("_is_replica"):  # of DataParallel: lives for this forward, mode copied
                replica_of = module.__dict__.get("_all_weights")
            else:
                number = self._counts[module] = (self._counts.get(module) or 0) + 1
                change = self.last_change.get(module) or self.last_write.get(module)
                if change is not None and change.setter.training != training:
                    change = None  # set since then where nobody could see it, as in module.__dict__
        tensors = [each for each in outputs if isinstance(each, Tensor)]
        nodes = [node for each in tensors if (node := each.grad_fn) is not None]
        call = RnnCall(
            serial=next(_serial),
            module=weakref.ref(module) if module is not None else None,
            class_name=type(module).__name__ if module is not None else "RNN",
            number=number,
            training=training,
            grad=bool(nodes),
            cudnn=cudnn,
            enforced=enforced,
            change=change,
            stack=stack_from(frame),
            replica_of=replica_of,
            in_backward=runs_in_backward(),
            weights=tuple(map(id, weights)),
        )
        if module is not None and not nodes:
            self.last_without_graph[module] = call.serial
        for node in nodes:
            node.metadata[KEY] = call  # type: ignore[index]  # torch's annotation takes the property for a method
        for listener in self.listeners:
            listener.ran_rnn(call, tensors)

    def ran(self, what: Ran) -> None:
        """A mode-dependent function was called."""
        # Closed, there are no listeners: `unlisten` comes before.
        for listener in self.listeners:
            listener.ran(what)

    def backward(self, run: Backward) -> AbstractContextManager[object]:
        """Autograd runs inside."""
        listeners = self.listeners
        return listeners[0].backward(run) if len(listeners) == 1 else _backward_for(listeners, run)

    def stepped(self, optimizer: Optimizer, *_: object) -> None:
        """An optimizer has stepped."""
        for listener in self.listeners:
            listener.stepped(optimizer)


@contextmanager
def _backward_for(listeners: Sequence[Listener], run: Backward) -> Iterator[None]:
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener.backward(run))
        yield


class _Setters(threading.local):
    innermost: Setter | None = None
    restoring: bool = False


_setters = _Setters()


def innermost_setter() -> Setter | None:
    """The call of train() or eval() that runs in this thread, if one does."""
    return _setters.innermost


def set_innermost(setter: Setter | None) -> None:
    """From now on writes of `training` in this thread are this call's."""
    _setters.innermost = setter


@contextmanager
def restoring() -> Iterator[None]:
    """Changes of modes in this thread put back, meanwhile, what was there before."""
    outer, _setters.restoring = _setters.restoring, True
    try:
        yield
    finally:
        _setters.restoring = outer


def setter_of(module: nn.Module, training: bool, frame: FrameType) -> Setter:
    """Who called `Module.train` on `module`, in code of `frame`: not its own train() or eval(), but their caller."""
    by: Literal["train", "eval"] = "train"
    caller: FrameType | None = frame
    while caller is not None and _is_own_switch(module, caller):
        by = "eval" if caller.f_code.co_name == "eval" else "train"
        frame, caller = caller, caller.f_back
    stack = stack_from(caller or frame)
    return Setter(training, by, weakref.ref(module), next(_serial), stack, _setters.restoring)


def _is_own_switch(module: nn.Module, frame: FrameType) -> bool:
    """Whether `frame` is a call of this module's `train` or `eval`, as its class or a base defines them."""
    code = frame.f_code
    return (
        code.co_name in ("train", "eval")
        and any(
            getattr(vars(each).get(code.co_name), "__code__", None) is code for each in type(module).__mro__
        )
        and first_argument(frame) is module
    )


OBSERVER = Observer()
