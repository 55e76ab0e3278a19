"""Calls in train mode without gradients, of which only the next training step shows whether they were a part of it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from torchtap._findings import Finding
from torchtap.modes._by_module import ByModule
from torchtap.modes._observer import Backward
from torchtap.modes._walk import all_parameters, holders, mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._flow import goes_into, outside, switched_inside
from torchtap.modes.silent._matters import counted, mode_matters
from torchtap.modes.silent._order import Lines, lines, stands_before
from torchtap.modes.silent._training import asks_for_more, parameter_ids
from torchtap.modes.silent._weights import Weights

LONG = 1000
"""After so many calls of one module no step is waited for any more: a server that is never left."""
FEW = 2
"""So many forwards of a net may stand before the step of another one: the fakes that a critic learns from."""
UNTRAINED = 200
"""After so many steps a net is taken to be one that no optimizer trains. A GAN's critic may train so long alone."""


@dataclass(slots=True)
class _Call:
    """The first of a module since the last step."""

    finding: Finding | None
    root: weakref.ref[nn.Module]
    around: tuple[weakref.ref[nn.Module], ...]
    """The modules that it ran in, innermost first."""
    lines: Lines
    count: int = 1
    in_step: bool = False
    """Whether its outputs went into the loss of the backward after it, or gradients of something else than parameters
    were asked for there."""
    repeated: bool = False
    """Whether the line that called the model has called it once more since, with gradients: what one loop does for
    validation and training alike."""


@dataclass(slots=True)
class _Idle:
    """A part that no optimizer trains."""

    finding: Finding | None
    weights: Weights
    """As they were when it was first judged."""
    followers_may: bool
    """Whether it may be in train mode where it follows what is trained."""
    follows: bool = False
    said: bool = False
    in_step: bool = False
    """Whether its outputs went into a loss: then it is no evaluation, and eval_mode around it would be wrong."""
    steps: int = 0
    judged: int = 0
    """The last step at which it was judged; 0: it ran before the first one only."""


class Unjudged:
    """A part of a training step are, and so no mistake:

    - a forward whose outputs go into the loss: targets, self-conditioning, a part run under no_grad in forward();
    - a forward before gradients of something that is no parameter: the outputs that a gradient cache holds, the
      perturbation of virtual adversarial training;
    - a forward of what this step does not train, and another one does: the fakes that a GAN's critic learns from. Once
      a step; more often where it stands before the step in the program's text;
    - a part that no optimizer trains, and whose weights move all the same, as a momentum encoder's do. Not a model of
      its own, and not one that was meant to stay in eval mode (a teacher, a target network).
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._calls = ByModule[_Call]()
        self._idle = ByModule[_Idle]()
        self._parts = ByModule[weakref.ref[nn.Module]]()
        self._following = ByModule[bool]()
        self._woken = ByModule[bool]()
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, tuple[int, frozenset[int]]] = (
            weakref.WeakKeyDictionary()
        )
        self._trained: frozenset[int] = frozenset()
        """By id, the parameters of all optimizers that have stepped."""
        self._steps = 0

    def woke(self, module: nn.Module) -> None:
        """A train() on more than it ended the eval mode that it was put in by itself."""
        self._woken[module] = True

    def again(self, module: nn.Module) -> Iterator[Finding | None]:
        """It was called once more, if `in`: a finding where that is too often."""
        call = self._calls.get(module)
        if call is not None:
            call.count += 1
            if call.count == LONG and not call.in_step:
                yield call.finding

    @property
    def waiting(self) -> bool:
        """Whether any call is."""
        return bool(self._calls)

    def __contains__(self, module: nn.Module) -> bool:
        return module in self._calls or module in self._following

    def add(self, module: nn.Module, root: nn.Module, frame: FrameType, finding: Finding) -> None:
        """Called for the first time since the last step."""
        self._calls[module] = _call(module, root, frame, finding)

    def before_the_first_step(self, module: nn.Module, root: nn.Module, frame: FrameType) -> None:
        """Note the weights of what is frozen; to run then is no mistake."""
        call = _call(module, root, frame, None)
        if module not in self._parts and not _asks(_base(module, call)):
            self._idle_part(module, call)

    def backward(self, run: Backward) -> None:
        """A backward begins."""
        waiting = [call for _, call in self._calls.items() if not call.in_step]
        if not waiting:
            return
        here = lines(run.frame)
        more = asks_for_more(run, trained=self._trained)
        for call in waiting:
            into_loss = not call.repeated and goes_into(call.lines, here)
            call.in_step = into_loss or (more and stands_before(call.lines, here))

    def ran_with_gradients(self, module: nn.Module, frame: FrameType) -> None:
        """One that was called without them may have been called again, by the same line."""
        call = self._calls.get(module)
        if call is not None and not call.repeated and not switched_inside(call.lines):
            again, was = lines(frame), call.lines
            call.repeated = again[outside(again)][1:] == was[outside(was)][1:]

    def stepped(self, optimizer: Optimizer | None) -> Iterator[Finding | None]:
        """What is to be said at a training step, made by hand where there is no optimizer."""
        self._steps += 1
        ids = self._of(optimizer) if optimizer is not None else frozenset()
        here: Lines | None = None
        for module, call in list(self._calls.items()):
            base = _base(module, call)
            if self._trains(base, ids) if optimizer is not None else _asks(base):
                if not call.in_step:
                    yield call.finding
            elif optimizer is not None and self._trains(base, self._trained):
                here = here or lines(sys._getframe(1))
                if call.count > 1 and not (call.count <= FEW and stands_before(call.lines, here)):
                    yield call.finding
            elif (idle := self._idle_part(module, call)) is not None:
                idle.in_step = idle.in_step or call.in_step
                yield from self._judge(module, idle)
        self._calls.clear()

    def left(self) -> Iterator[Finding | None]:
        """What is to be said when no step will come any more."""
        for module, call in list(self._calls.items()):
            idle = None
            if not self._trains(_base(module, call), self._trained):
                idle = self._idle_part(module, call)
            if not call.in_step and (idle is None or idle.steps == 0):
                yield call.finding
        for part, idle in list(self._idle.items()):
            seen = idle.judged > 0 and (idle.steps > 0 or not idle.followers_may)
            if seen and not (idle.said or self._trains(part, self._trained) or self._follows(idle)):
                yield self._finding(part, idle)

    def _of(self, optimizer: Optimizer) -> frozenset[int]:
        size = sum(len(group["params"]) for group in optimizer.param_groups)
        known = self._optimizers.get(optimizer)
        if known is None or known[0] != size:
            known = self._optimizers[optimizer] = size, parameter_ids(optimizer)
            self._trained = self._trained.union(known[1])
            self._parts.clear()
        return known[1]

    def _trains(self, module: nn.Module, ids: frozenset[int]) -> bool:
        return any(id(each) in ids for each in all_parameters(module))

    def _idle_part(self, module: nn.Module, call: _Call) -> _Idle | None:
        """Of the largest part around it that no optimizer trains."""
        known = self._parts.get(module)
        part = known() if known is not None else None
        if part is None:
            part = module
            for each in _modules(call):
                if self._trains(each, self._trained) if self._trained else _asks(each):
                    break
                part = each
            self._parts[module] = weakref.ref(part)
        idle = self._idle.get(part)
        if idle is None:
            root = call.root()
            meant = part is root or self._watched.entry.get(part) is False or part in self._woken
            idle = self._idle[part] = _Idle(call.finding, Weights(part), not meant, judged=self._steps)
        idle.finding = idle.finding or call.finding
        return idle

    def _judge(self, module: nn.Module, idle: _Idle) -> Iterator[Finding | None]:
        if idle.judged < self._steps:
            idle.judged = self._steps
            idle.steps += 1
            last = idle.steps == UNTRAINED
            if last or (
                idle.steps < UNTRAINED and not idle.steps & (idle.steps - 1)
            ):  # seldom: it waits for a GPU
                idle.follows = idle.follows or self._follows(idle)
            if last and not idle.follows:
                idle.said = True
                yield next(
                    (self._finding(part, idle) for part, each in self._idle.items() if each is idle), None
                )
        if idle.follows:
            self._following[module] = True

    def _finding(self, part: nn.Module, idle: _Idle) -> Finding | None:
        """Of a frozen part that each step runs: the step is right, the part's mode is not."""
        path = self._watched.path(part)
        if idle.finding is None or not idle.in_step or part in self._watched.models or path is None:
            return idle.finding
        active = [each for each in modules(part) if mode_of(each) and mode_matters(each)]
        moves = any(isinstance(each, _BatchNorm) for each in active)
        return replace(
            idle.finding,
            where=path,
            seen=f"{counted(active)} in train mode in each training step, in a part that runs without gradients and "
            f"that nothing trains{'; running statistics move' * moves}",
            cause="train() on the model sets this part too",
            remedy="eval() on this part after each train() of the model, best in an overridden train(): "
            "super().train(mode), then eval() on the part, return self; if it is meant, train() on the part itself",
        )

    def _follows(self, idle: _Idle) -> bool:
        return idle.followers_may and idle.weights.moved()


def _call(module: nn.Module, root: nn.Module, frame: FrameType, finding: Finding | None) -> _Call:
    # By how the model is built: to read the running methods' `self` would keep their other variables alive.
    inside = tuple(weakref.ref(each) for each in holders(root, module)) or (weakref.ref(module),)
    return _Call(finding, weakref.ref(root), inside, lines(frame))


def _modules(call: _Call) -> list[nn.Module]:
    return [module for each in call.around if (module := each()) is not None]


def _base(module: nn.Module, call: _Call) -> nn.Module:
    """The innermost module around it that has parameters: a dropout has none."""
    for each in (module, *_modules(call)):
        if all_parameters(each):
            return each
    return call.root() or module


def _asks(module: nn.Module) -> bool:
    return any(each.requires_grad for each in all_parameters(module))
