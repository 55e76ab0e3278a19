"""Training in a mode that an evaluation left behind, or that nobody ever changed to train mode."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import CodeType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._frames import Place, stack_from
from torchtap.modes._observer import OBSERVER, Backward, ModeChange, Ran, RnnCall, next_serial
from torchtap.modes._walk import all_parameters, mode_of, modules, parameters
from torchtap.modes._watched import Watched
from torchtap.modes.silent._callers import callers
from torchtap.modes.silent._matters import SEEN_TO_RUN, counted, mode_matters, together, told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import (
    asks_for_more,
    frozen_parts,
    gradients,
    parameter_ids,
    trainable_ids,
    trained_by,
)

_SCOPES = {False: "eval_mode", True: "differentiable_eval"}
"""What an evaluation takes instead of eval(), by whether it needs gradients."""


@dataclass(slots=True)
class _Part:
    """Modules that one line put in eval mode."""

    change: ModeChange | None
    """None where that was not watched."""
    modules: list[nn.Module]


class NotRestored(Rule):
    """`mode.not_restored` and `mode.trained_in_eval`.

    Judged at an optimizer's step; where there is no optimizer, at a `backward()` whose line has trained before.
    Modules are left behind that were in train mode at the last step, or at the guard's entry before the first one,
    and ran in eval mode for this one. On purpose are: what has no trainable parameters; a part on which eval() was
    called and no evaluation followed.

    A model that is in eval mode as a whole from the first step on gets `mode.trained_in_eval`, also where eval() was
    called right before the loop: then nothing can tell whether it is meant. Not where an attack, or a saliency map,
    was made in that mode before the step: it was not restored after that.

    A guard inside which nothing trains is taken to be around an evaluation: it shall leave the modes as they were.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._before = ByModule[bool | None]()
        """Modes at the last step, or at entry: kept when the guard is left, for the next time."""
        self._has_stepped = ByModule[bool]()
        self._evaluated = ByModule[int]()
        """Serial number of each module's last forward in eval mode, without gradients, since the modes changed."""
        self._lines = ByModule[set[tuple[object, int]]]()
        """Of each model, the lines whose backward() trained it in train mode."""
        self._forget()

    def _forget(self) -> None:
        self._judged: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._judged_backward = -1
        self._optimized = False
        self._trained_here = False
        self._entry = ByModule[bool | None]()
        self._had_gradients = ByModule[bool]()
        """Of the models: a sign that they are being trained, outside the guard."""
        self._entered_at: Place | None = None
        self._ran_eval = 0
        """Serial number of the last forward in eval mode, with gradients; without: `_evaluated`."""
        self._looked_at_inputs = 0
        """Serial number of the last backward in eval mode that gave gradients to inputs: an attack, a saliency map."""
        self._version = -1  # of the modes at the last step
        self._seen_to_run = False
        """Whether forwards are seen at all. They are not in code that torch.compile has made."""

    def entered(self) -> None:
        self._forget()
        self._entered_at = stack_from(sys._getframe(1)).here
        for model in self.watched.models:
            self._had_gradients[model] = any(each.grad is not None for each in all_parameters(model))
            for module in modules(model):
                self._entry[module] = mode_of(module)
                if model not in self._has_stepped:
                    self._before[module] = mode_of(module)

    def ran(self, what: Ran) -> None:
        if what.active:
            self._seen_to_run = True
        elif torch.is_grad_enabled():
            self._ran_eval = what.serial
        elif self._version != OBSERVER.version:
            for module in callers(what, self.watched):
                self._evaluated[module] = what.serial

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:  # noqa: ARG002
        if call.training:
            self._seen_to_run = True
        elif torch.is_grad_enabled():
            self._ran_eval = call.serial
        elif call.module is not None and (module := call.module()) is not None:
            self._evaluated[module] = call.serial

    def stepped(self, optimizer: Optimizer) -> None:
        self._optimized = True
        if self._judged.get(optimizer) == OBSERVER.version:
            return
        self._judged[optimizer] = self._version = OBSERVER.version
        for model in trained_by(self.watched, optimizer):
            self._trained_here = True
            if not self._judge(model, partial(parameter_ids, optimizer)):
                self._judged.pop(optimizer, None)  # once more at the next step

    def backward(self, run: Backward) -> AbstractContextManager[object]:
        if run.inputs and isinstance(run.inputs[0], nn.Parameter):
            self._trained_here = True
        left_behind = any(mode_of(each) is False and self._before.get(each) for each in self.watched.models)
        if left_behind and asks_for_more(run):
            self._looked_at_inputs = next_serial()
        if self._optimized or run.inputs or self._judged_backward == OBSERVER.version:
            return nullcontext()
        self._judged_backward = OBSERVER.version
        stack = stack_from(run.frame)
        line = (stack.here.code, stack.here.lineno) if stack.here else (None, 0)
        in_eval = any(mode_of(model) is False for model in self.watched.models)
        return self._around(line, looks_at_inputs=in_eval and asks_for_more(run))

    @contextmanager
    def _around(self, line: tuple[CodeType | None, int], *, looks_at_inputs: bool) -> Iterator[None]:
        """Around a backward without an optimizer: which models it trains is seen by the gradients that it leaves.

        One helper may train, and look at inputs in eval mode.
        """
        models = self.watched.models
        before = [gradients(model) for model in models]
        yield
        for model, were in zip(models, before, strict=True):
            if gradients(model) == were:
                continue
            lines = self._lines.get(model) or set()
            if mode_of(model):
                self._lines[model] = lines | {line}
                self._trained_here = True
            trains = mode_of(model) or (line in lines and not looks_at_inputs)
            if trains and not self._judge(model, partial(trainable_ids, model)):
                self._judged_backward = -1

    def left(self) -> None:
        if not self._trained_here:
            for model in self.watched.models:
                self._judge_evaluation(model)
        self._entered_at = None

    def _judge(self, model: nn.Module, ids: Callable[[], Collection[int]]) -> bool:
        """At a training step of this model. False where its forward ran before the modes changed: not yet judged."""
        every = modules(model)
        left = [
            each for each in every if mode_of(each) is False and self._before.get(each) and mode_matters(each)
        ]
        found = _parts(model, left, ids()) if left else []
        if any(self._ran_before(part) for part in found):
            return False
        first = model not in self._has_stepped
        if first and not found:
            self._judge_never_trained(model, ids())
        for part in found:
            whole = _whole(part, model)
            since = part.change.setter.serial if part.change is not None else 0
            without = part.change is None or any(
                (self._evaluated.get(each) or 0) > since for each in part.modules
            )
            evaluated = without or self._looked_at_inputs > since
            if whole and (evaluated or not first):
                self._report(model, part, gradients=not without and evaluated)
            elif whole:
                self._report_eval(model, part.modules, part.change)
            elif evaluated and not first:
                self._report(model, part, gradients=not without)
        self._has_stepped[model] = True
        for module in every:
            if self._before.get(module) is not mode_of(module):
                self._before[module] = mode_of(module)
        return True

    def _ran_before(self, part: _Part) -> bool:
        """Whether the forward of this step is known to have run before the eval(): then nothing is lost."""
        if part.change is None or not all(isinstance(each, SEEN_TO_RUN) for each in part.modules):
            return False
        seen = self._seen_to_run or self._ran_eval > 0
        return seen and self._ran_eval < part.change.setter.serial

    def _judge_never_trained(self, model: nn.Module, ids: Collection[int]) -> None:
        if mode_of(model):
            return
        holders = [each for each in modules(model) if any(id(p) in ids for p in parameters(each))]
        if any(mode_of(each) for each in holders):
            return  # what trains was put in train mode, the rest left as it is
        frozen = frozen_parts(model, ids)
        asleep = [
            each
            for each in modules(model)
            if mode_of(each) is False and id(each) not in frozen and mode_matters(each)
        ]
        if asleep:
            self._report_eval(model, asleep, OBSERVER.last_change.get(model))

    def _report(self, model: nn.Module, part: _Part, *, gradients: bool) -> None:
        setter = part.change.setter if part.change is not None else None
        place = setter.stack.here if setter is not None else None
        left = told(setter) if setter is not None else "an eval() while nobody watched"
        self.watched.report(
            Finding(
                id="mode.not_restored",
                severity=Severity.WARN,
                where=self._where(model, part.modules),
                seen=f"{counted(part.modules)} in eval mode at the training step at {_line()}",
                cause=f"{left} was not undone after the evaluation; before it they were in train mode",
                remedy=f"in {_function(place)}, `with modes.{_SCOPES[gradients]}(model):` instead of eval(): "
                "every module gets its own mode back",
            )
        )

    def _report_eval(self, model: nn.Module, modules: list[nn.Module], change: ModeChange | None) -> None:
        if change is None:
            cause = "eval mode since before the guard was entered; loaders of pretrained models leave it so"
            remedy = "model.train() before the training loop; if it is meant, eval() on those modules alone after it"
        else:
            cause = f"{told(change.setter)} put the model in eval mode, and no train() came before the step's forward"
            remedy = (
                "model.train() after that line, or no eval() there; if training in eval mode is meant, train() on the "
                "model and eval() on those modules alone after it"
            )
        self.watched.report(
            Finding(
                id="mode.trained_in_eval",
                severity=Severity.WARN,
                where=self._where(model, modules),
                seen=f"{counted(modules)} in eval mode at the first training step, at {_line()}",
                cause=cause,
                remedy=remedy,
            )
        )

    def _judge_evaluation(self, model: nn.Module) -> None:
        """When a guard is left in which nothing was trained."""
        for training in (True, False):
            changed = [
                each
                for each in modules(model)
                if self._entry.get(each) is training and mode_of(each) is not training and mode_matters(each)
            ]
            setter = next((c.setter for each in changed if (c := OBSERVER.last_change.get(each))), None)
            if setter is None:
                continue
            place = setter.stack.here
            inside = (
                place is not None and self._entered_at is not None and place.code is self._entered_at.code
            )
            trained = bool(self._had_gradients.get(model))
            if inside and not trained:
                continue  # the function that opened the guard says itself what mode it wants from here on
            was, now = ("train", "eval") if training else ("eval", "train")
            self.watched.report(
                Finding(
                    id="mode.not_restored",
                    severity=Severity.WARN if trained and training else Severity.INFO,
                    where=self._where(model, changed),
                    seen=f"{counted(changed)} left in {now} mode; {was} mode when the guard was entered",
                    cause=f"{told(setter)} was not undone",
                    remedy=f"in {_function(place)}, `with modes.eval_mode(model):` around the evaluation: "
                    "every module gets its own mode back",
                )
            )

    def _where(self, model: nn.Module, modules: Collection[nn.Module]) -> str:
        return self.watched.path(together(model, modules)) or ""


def _parts(model: nn.Module, left: list[nn.Module], ids: Collection[int]) -> list[_Part]:
    """By the line that set them, without what does not train anyhow."""
    parts: dict[object, _Part] = {}
    frozen = frozen_parts(model, ids)
    for module in left:
        if id(module) in frozen:
            continue
        change = OBSERVER.last_change.get(module)
        place = change.setter.stack.here if change is not None else None
        parts.setdefault(place, _Part(change, [])).modules.append(module)
    return list(parts.values())


def _whole(part: _Part, model: nn.Module) -> bool:
    """Whether the line that set this part set the model itself too."""
    if mode_of(model):
        return False
    change = OBSERVER.last_change.get(model) or OBSERVER.last_write.get(model)
    if part.change is None or change is None:
        return part.change is None
    return change.setter.stack.here == part.change.setter.stack.here


def _line() -> Place | None:
    """The user's line that led to the training step that runs now."""
    return stack_from(sys._getframe(1)).here


def _function(place: Place | None) -> str:
    if place is None:
        return "the evaluation"
    return "the evaluation" if place.function.startswith("<") else f"{place.function}()"
