"""BatchNorm whose parameters are frozen, and whose running statistics move all the same."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import first_argument, outside_functional
from torchtap.modes._observer import OBSERVER, ModeChange, Ran, Setter
from torchtap.modes._walk import all_parameters, mode_of, modules, parameters
from torchtap.modes._watched import Watched
from torchtap.modes.silent._around import around
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._unjudged import UNTRAINED
from torchtap.modes.silent._weights import Weights

_AT_A_STEP = 8


@dataclass(slots=True)
class _Sighting:
    """One ran while its parameters were frozen."""

    steps: int
    """The training steps before it."""
    weights: Weights
    """Of the frozen part around it, as they were then."""
    version: int
    moves: bool
    """Whether they had been written to since the sighting before."""
    again: bool
    """Whether it has run in two steps; or once, with gradients, which is enough."""


class BatchNormFrozen(Rule):
    """`batchnorm.frozen_updates`: seen when such a module runs in train mode, and its statistics move.

    Likewise where eval() was called on that very module, as freezing methods do, and a later train() of the model
    undid it; whether its parameters are frozen or not.

    Not where train() was called on that very module: then it is meant (adapting the statistics to new data). Under
    no_grad only within the forward of a module that trains otherwise: a frozen teacher, or target network, that is
    called by itself without gradients is `mode.train_in_evaluation`.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._version = -1
        self._norms: list[
            tuple[weakref.ref[_BatchNorm], bool]
        ] = []  # in train mode; whether eval() was undone
        self._next = 0
        self._frozen: dict[int, weakref.ref[_BatchNorm]] = {}
        self._evals = ByModule[Setter]()
        self._told = ByModule[bool]()
        self._steps = 0
        self._sighted = ByModule[_Sighting]()

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        """Remember who had put it in eval mode; an eval() of the model that finds it there already did not."""
        did = change.before is not False or change.setter.on() is module
        if did and not change.setter.training and isinstance(module, _BatchNorm):
            self._evals[module] = change.setter

    def left(self) -> None:
        for module, seen in list(self._sighted.items()):
            known = not seen.again or module in self._told or seen.weights.moved()
            if not known and isinstance(module, _BatchNorm):
                self._tell(module)

    def stepped(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """`requires_grad` changes without an event: look again at some of the BatchNorms at each step, in turn.

        At all of them when one has changed, as a backbone is frozen at once.
        """
        self._steps += 1
        self._next = self._next + _AT_A_STEP if self._next + _AT_A_STEP < len(self._norms) else 0
        for each, undone in self._norms[self._next : self._next + _AT_A_STEP]:
            module = each()
            if module is not None and not undone and _is_frozen(module) is not (id(module) in self._frozen):
                self._sort()
                return

    def ran(self, what: Ran) -> None:
        """Every batch norm of the process comes here: nothing to do unless a guarded one is frozen and in train."""
        if not what.moves:
            return
        if OBSERVER.version != self._version:
            self._find()
        if not self._frozen:
            return
        module = _caller(what.frame)
        reference = self._frozen.get(id(module))
        if reference is not None and reference() is module and isinstance(module, _BatchNorm):
            self._ran(module, what.frame)

    def _find(self) -> None:
        self._version = OBSERVER.version
        self._norms = [
            (weakref.ref(module), self._was_undone(module))
            for model in self.watched.models
            for module in modules(model)
            if isinstance(module, _BatchNorm) and mode_of(module) and _moves(module) and parameters(module)
        ]
        self._sort()

    def _sort(self) -> None:
        self._frozen = {
            id(module): each
            for each, undone in self._norms
            if (module := each()) is not None and (undone or _is_frozen(module))
        }

    def _was_undone(self, module: _BatchNorm) -> bool:
        """Whether somebody had put this very module in eval mode, and train() on more than it undid that."""
        change = OBSERVER.last_write.get(module)
        if change is None or not change.setter.training or change.setter.on() is module:
            return False
        was = self._evals.get(module)
        if was is not None:
            return was.on() is module
        models = self.watched.models
        return self.watched.entry.get(module) is False and any(
            self.watched.entry.get(each) for each in models
        )

    def _ran(self, module: _BatchNorm, frame: FrameType) -> None:
        seen = self._sighted.get(module)
        if module in self._told or (seen is not None and seen.moves and seen.version == OBSERVER.version):
            return
        if not (torch.is_grad_enabled() or _is_within_training(frame)):
            return
        if not self._is_undone(module) and not (_is_frozen(module) and self._stays_frozen(module, frame)):
            return
        self._tell(module)

    def _is_undone(self, module: _BatchNorm) -> bool:
        return any(undone for each, undone in self._norms if each() is module)

    def _stays_frozen(self, module: _BatchNorm, frame: FrameType) -> bool:
        """Whether nothing has written to it for a step.

        A GAN freezes one net for the other's step, in turn; a momentum encoder follows what is trained.
        """
        seen = self._sighted.get(module)
        if seen is not None and not torch.is_grad_enabled() and self._steps < seen.steps + UNTRAINED:
            seen.again = seen.again or seen.steps < self._steps
            return False  # it may follow seldom, and to look waits for a GPU
        if seen is not None and not seen.weights.moved():
            return seen.steps < self._steps
        once = seen is None and torch.is_grad_enabled()
        weights = Weights(_frozen_around(module, frame))
        self._sighted[module] = _Sighting(self._steps, weights, OBSERVER.version, seen is not None, once)
        return False

    def _tell(self, module: _BatchNorm) -> None:
        others = [each for each in self._told_now() if each is not module]
        for each in (module, *others):
            self._told[each] = True
        if not _on_purpose(module):
            self.watched.report(self._finding(module, others))

    def _told_now(self) -> Iterator[_BatchNorm]:
        """All that are in the same state, as one finding is enough."""
        for each in self._frozen.values():
            module = each()
            if module is None or module in self._told or _on_purpose(module):
                continue
            if self._is_undone(module) or _is_frozen(module):
                yield module

    def _finding(self, module: _BatchNorm, others: list[_BatchNorm]) -> Finding:
        more = f", as did or will those of {len(others)} more" if others else ""
        name, frozen = type(module).__name__, _is_frozen(module)
        state = "with frozen parameters " if frozen else "that was put in eval mode by itself "
        why = "requires_grad=False freezes weight and bias, statistics follow the mode: " if frozen else ""
        return Finding(
            id="batchnorm.frozen_updates",
            severity=Severity.WARN,
            where=self.watched.path(module) or "",
            seen=f"{name} {state}ran in train mode: its running statistics moved{more}",
            cause=f"{why}{self._history(module)}",
            remedy="eval() on the frozen BatchNorms after each train() of the model, or in the model: "
            "def train(self, mode=True): super().train(mode); self.backbone.eval(); return self",
        )

    def _history(self, module: _BatchNorm) -> str:
        # Where nothing was changed, the train() that says again what was so: eval() belongs after it.
        change = OBSERVER.last_change.get(module) or OBSERVER.last_write.get(module)
        if change is None or not change.setter.training:
            return "train mode since before the guard was entered"
        was = self._evals.get(module)
        done = f"{change.setter.by}() at {change.setter.stack.here}"
        if was is not None and was.serial < change.setter.serial:
            return f"{done} undid eval() at {was.stack.here}"
        if self.watched.entry.get(module) is False:
            return f"{done} undid the eval mode that it had when the guard was entered"
        return f"train mode by {done}"


def _caller(frame: FrameType) -> object:
    """The module whose forward called F.batch_norm."""
    outer = outside_functional(frame)
    return first_argument(outer) if outer is not None and outer.f_code.co_varnames[:1] == ("self",) else None


def _moves(module: _BatchNorm) -> bool:
    return module.running_mean is not None and module.momentum != 0


def _is_frozen(module: _BatchNorm) -> bool:
    for weight in module._parameters.values():  # noqa: SIM110  a generator costs more, and this is asked at each step
        if weight is not None and weight.requires_grad:
            return False
    return True


def _frozen_around(module: nn.Module, frame: FrameType) -> nn.Module:
    """The largest part around it of which nothing asks for gradients."""
    for each in around(frame).modules:
        if any(weight.requires_grad for weight in all_parameters(each)):
            break
        module = each
    return module


def _is_within_training(frame: FrameType) -> bool:
    """Whether a module that the call ran in has parameters that train."""
    return any(weight.requires_grad for weight in all_parameters(around(frame).modules[-1]))


def _on_purpose(module: _BatchNorm) -> bool:
    change = OBSERVER.last_write.get(module)
    if change is None or change.setter.restores:
        return False
    return change.setter.training and change.setter.on() is module
