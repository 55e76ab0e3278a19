"""Dropout and batch norm in train mode while nothing is trained: an evaluation without eval()."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, FrameType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import Place, Stack, stack_from
from torchtap.modes._observer import OBSERVER, Backward, ModeChange, Ran, RnnCall, Setter, next_serial
from torchtap.modes._walk import mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._callers import callers, in_update_bn, part_of_training
from torchtap.modes.silent._matters import SEEN_TO_RUN, counted, mode_matters, together, told
from torchtap.modes.silent._order import Lines, lines
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._scopes import within
from torchtap.modes.silent._training import trained_by
from torchtap.modes.silent._unjudged import LONG, Unjudged


@dataclass(frozen=True, slots=True)
class _Unspent:
    """A call in train mode after an evaluation, with gradients, that no backward has followed yet."""

    module: weakref.ref[nn.Module]
    stack: Stack
    lines: Lines
    since: int
    """The last step before it."""
    thread: int


class TrainInEvaluation(Rule):
    """`mode.train_in_evaluation`; `mode.apart` where another guarded model was put in eval mode for that evaluation.

    Judged at forwards without gradients. On purpose are: an explicit train() since the last training step, without an
    eval() before it since then, or after an evaluation in the very function that runs the forward; parts in train
    mode while the model itself is in eval mode; forwards that belong to training (checkpointing, `update_bn`);
    functions called with a constant.

    Forwards before the first training step may be a dry run. They count if no training follows inside the guard. Those
    after it are judged at the next one, as they may be a part of it: see `Unjudged`.

    One more is found with gradients: train() after eval(), a forward, and never a backward before the next eval().
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._forget()

    def _forget(self) -> None:
        # Serial numbers, of the last event of each sort.
        self._entered = next_serial()
        self._stepped = 0
        self._reported = ByModule[int]()
        """Models of which something was said, and after which step."""
        self._known: tuple[weakref.ref[Optimizer] | None, int, bool] = (None, 0, False)
        """The optimizer that stepped last, its number of groups, and whether it trains a guarded model."""
        self._evals = ByModule[int]()
        self._evals_alone = ByModule[bool]()
        """Modules that eval() was called on."""
        self._ran_eval = 0
        self._evaluated_before = ByModule[bool]()
        """Modules set to train mode after an evaluation in eval mode."""
        self._roots = ByModule[weakref.ref[nn.Module]]()
        self._dry = ByModule[tuple[int, Finding]]()
        """How often a module ran before the first step, and what is to be said of it then."""
        self._optimized = False
        self._unjudged = Unjudged(self.watched)
        self._made = ByModule[tuple[int, Place | None, Finding]]()
        """The last finding of each model, as it is the same from step to step."""
        self._by_update_bn: set[int] = set()
        """Calls of train() that torch.optim.swa_utils.update_bn made: nobody's wish for what comes after."""
        self._back_in_train = ByModule[bool]()
        """Models that a train() came for after an eval(), and no backward since."""
        self._unspent = ByModule[_Unspent | None]()
        """Of these, their first call in train mode since then."""
        self._trained_at: dict[CodeType, int] = {}
        """Of functions that led to a backward, the last instruction that did."""

    def entered(self) -> None:
        self._forget()

    def left(self) -> None:
        for root in self.watched.models:
            waiting = [dry for module, dry in self._dry.items() if self._root(module) is root]
            if waiting and not self._stepped:
                self.watched.report(waiting[0][1])
        self._report_all(self._unjudged.left())
        if sys.exc_info()[0] is None:  # else the backward may have been on its way
            for root in self.watched.models:
                self._report_unspent(root)

    def changed(self, module: nn.Module, change: ModeChange) -> None:
        if not change.setter.training:
            self._evals[module] = change.setter.serial
            if change.setter.on() is module:
                self._evals_alone[module] = True
            if len(self._unspent) and change.before and self.watched.path(module) is not None:
                root = self._root(module)
                unspent = self._unspent.get(root) if root is not None else None
                if root is not None and unspent is not None and unspent.thread == threading.get_ident():
                    self._report_unspent(root)
        else:
            if (self._evals.get(module) or 0) > self._stepped and self.watched.path(module) is not None:
                root = self._root(module)
                if root is not None:
                    self._back_in_train[root] = True
            if change.setter.on() is module and in_update_bn(sys._getframe(1)):
                self._by_update_bn.add(change.setter.serial)
            self._evaluated_before[module] = self._ran_eval > (self._evals.get(module) or self._ran_eval)
            by_itself = module in self._evals_alone and change.setter.on() is not module
            if by_itself and not self._evaluated_before[module]:
                self._unjudged.woke(module)

    def stepped(self, optimizer: Optimizer) -> None:
        self._optimized = True
        known, groups, trains = self._known
        if known is None or known() is not optimizer or groups != len(optimizer.param_groups):
            trains = bool(trained_by(self.watched, optimizer))
            self._known = weakref.ref(optimizer), len(optimizer.param_groups), trains
        if trains:
            self._report_all(self._unjudged.stepped(optimizer))
            self._stepped = next_serial()

    def backward(self, run: Backward) -> AbstractContextManager[object]:
        self._unspent.clear()
        self._back_in_train.clear()
        self._note_line(run.frame)
        self._unjudged.backward(run)
        if not self._optimized and not run.inputs and any(mode_of(root) for root in self.watched.models):
            self._report_all(self._unjudged.stepped(None))
            self._stepped = next_serial()
        return nullcontext()

    def _report_all(self, findings: Iterable[Finding | None]) -> None:
        for finding in filter(None, findings):
            self.watched.report(finding)

    def ran(self, what: Ran) -> None:
        if torch.is_grad_enabled():
            if self._unjudged.waiting:
                for module in callers(what, self.watched):
                    self._unjudged.ran_with_gradients(module, what.frame)
            if len(self._back_in_train) and what.active:
                self._note_unspent(what)
            return
        if not what.active:
            self._ran_eval = what.serial
            return
        for module in callers(what, self.watched):
            if isinstance(module, _BatchNorm) and module.running_mean is None:
                continue  # it has the batch's statistics only, in both modes
            self._judge(module, what.frame, None)

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:  # noqa: ARG002
        rnn = call.module() if call.module is not None else None
        if torch.is_grad_enabled():
            if rnn is not None and self._unjudged.waiting:
                self._unjudged.ran_with_gradients(rnn, sys._getframe(1))
            return
        if not call.training:
            self._ran_eval = call.serial
            return
        if isinstance(rnn, nn.RNNBase) and rnn.dropout > 0 and rnn.num_layers > 1:
            self._judge(rnn, sys._getframe(1), call.stack)

    def _judge(self, module: nn.Module, frame: FrameType, stack: Stack | None) -> None:
        root = self._root(module)
        if root is None or mode_of(root) is False or mode_of(module) is False:
            return
        since = max(self._stepped, self._entered)
        if self._reported.get(root) == since:
            return
        if self._stepped and module in self._unjudged:
            self._report_all(self._unjudged.again(module))
            return
        if part_of_training(frame):
            return
        if not self._stepped:
            self._unjudged.before_the_first_step(module, root, frame)
        stack = stack or stack_from(frame)
        if self._on_purpose(module, since, stack):
            return
        apart = self._in_eval_apart_from(root, since)
        if apart is not None:
            self._reported[root] = since
            self.watched.report(self._finding(root, module, since, stack, apart))
        elif self._stepped:
            self._unjudged.add(module, root, frame, self._same_or_new(root, module, since, stack))
        else:
            count, finding = self._dry.get(module) or (0, self._same_or_new(root, module, since, stack))
            self._dry[module] = count + 1, finding
            if count + 1 == LONG:
                self._reported[root] = since
                self.watched.report(finding)

    def _same_or_new(self, root: nn.Module, module: nn.Module, since: int, stack: Stack) -> Finding:
        made, place = self._made.get(root), stack.caller
        if made is None or made[:2] != (OBSERVER.version, place):
            finding = self._finding(root, module, since, stack, None)
            made = self._made[root] = OBSERVER.version, place, finding
        return made[2]

    def _note_line(self, frame: FrameType) -> None:
        if self._trained_at.get(frame.f_code, -1) >= frame.f_lasti:
            return
        for _, code, at in lines(frame):
            self._trained_at[code] = max(at, self._trained_at.get(code, -1))

    def _note_unspent(self, what: Ran) -> None:
        for module in callers(what, self.watched):
            root = self._root(module)
            if root is None or not self._back_in_train.get(root):
                continue
            if mode_of(root) and not part_of_training(what.frame):
                self._back_in_train[root] = False
                where, since = lines(what.frame), max(self._stepped, self._entered)
                self._unspent[root] = _Unspent(
                    weakref.ref(module), stack_from(what.frame), where, since, threading.get_ident()
                )

    def _report_unspent(self, root: nn.Module) -> None:
        unspent = self._unspent.get(root)
        self._unspent[root] = None
        module = unspent.module() if unspent is not None else None
        if unspent is None or module is None:
            return
        # A training loop that skips a batch: in the innermost function with a backward, that stands below.
        for _, code, at in unspent.lines:
            if code in self._trained_at:
                if at < self._trained_at[code]:
                    return
                break
        self.watched.report(self._finding(root, module, unspent.since, unspent.stack, None, graph=True))

    def _root(self, module: nn.Module) -> nn.Module | None:
        known = self._roots.get(module)
        if known is not None:
            return known()
        for root in self.watched.models:
            if any(each is module for each in modules(root)):
                self._roots[module] = weakref.ref(root)
                return root
        return None

    def _on_purpose(self, module: nn.Module, since: int, stack: Stack) -> bool:
        change = OBSERVER.last_write.get(module)
        if change is None or change.setter.serial < since or not change.setter.training:
            return False
        if change.setter.serial in self._by_update_bn:
            return False
        if (self._evals.get(module) or 0) < since:
            return True
        here = change.setter.stack.here
        same = here is not None and any(within(place.code, here.code) for place in stack.places)
        return same and change.setter.by == "train" and bool(self._evaluated_before.get(module))

    def _in_eval_apart_from(self, root: nn.Module, since: int) -> tuple[nn.Module, Setter] | None:
        """Another guarded model that was put in eval mode since the last step, and by what."""
        for other in self.watched.models:
            change = OBSERVER.last_write.get(other)
            if other is not root and not other.training and change and change.setter.serial > since:
                return other, change.setter
        return None

    def _finding(
        self,
        root: nn.Module,
        module: nn.Module,
        since: int,
        stack: Stack,
        apart: tuple[nn.Module, Setter] | None,
        graph: bool = False,
    ) -> Finding:
        active = [
            each
            for each in modules(root)
            if (mode_of(each) or graph)
            and mode_matters(each)
            and (not isinstance(each, nn.RNNBase) or each.dropout > 0)
            and (not isinstance(module, SEEN_TO_RUN) or isinstance(each, SEEN_TO_RUN))
        ]
        norms = [each for each in active if isinstance(each, _BatchNorm)]
        moving = f"; the running statistics of {counted(norms)} move" if norms else ""
        where = self.watched.path(together(root, active)) or ""
        without = "without any backward" if graph else "without gradients"
        seen = f"{counted(active)} in train mode in the forward {without} at {stack.caller}{moving}"
        if apart is not None:
            other, setter = apart
            return Finding(
                id="mode.apart",
                severity=Severity.WARN,
                where=where,
                seen=seen,
                cause=f"{told(setter)} reached {self.watched.path(other) or type(other).__name__}, "
                f"and not {type(root).__name__}, which runs in the same evaluation",
                remedy="eval() on each model that runs there: `with modes.eval_mode(a), modes.eval_mode(b):`",
            )
        return Finding(
            id="mode.train_in_evaluation",
            severity=Severity.WARN,
            where=where,
            seen=seen,
            cause=self._cause(module, since),
            remedy="`with modes.eval_mode(model):` around it; if on purpose (Monte Carlo dropout, new statistics), "
            "train() right before it",
        )

    def _cause(self, module: nn.Module, since: int) -> str:
        change = OBSERVER.last_write.get(module)
        if change is None:
            return "no eval() since the guard was entered; torch.no_grad() changes no mode"
        if not change.setter.training:
            return "after eval(), train() put it back in train mode before this forward, and no backward followed it"
        set_by = told(change.setter)
        if (self._evals.get(module) or 0) > since:
            set_by = told((OBSERVER.last_change.get(module) or change).setter)
            return f"after eval(), {set_by} put it back in train mode before this forward"
        return f"no eval() since {set_by}; torch.no_grad() changes no mode"
