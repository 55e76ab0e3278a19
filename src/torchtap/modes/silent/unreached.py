"""Parts of a model that its last train() or eval() did not reach."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._by_module import ByModule
from torchtap.modes._observer import OBSERVER, Ran, RnnCall, Setter
from torchtap.modes._walk import mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._callers import callers
from torchtap.modes.silent._matters import counted, mode_matters, told, topmost
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import frozen_parts, trainable_ids, trained_by


class Unreached(Rule):
    """`mode.unreached`.

    Judged when the model trains, or runs without gradients, for the first time after a mode change. On purpose are: a
    mode that was set later, on that part itself or by an overridden train() above it; frozen parts in eval mode; a
    part whose own train() leaves it as it is.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._forget()

    def _forget(self) -> None:
        self._judged = ByModule[int]()
        self._all_judged = OBSERVER.version  # nothing changed yet

    def entered(self) -> None:
        self._forget()

    def stepped(self, optimizer: Optimizer) -> None:
        if self._all_judged != OBSERVER.version:
            for model in trained_by(self.watched, optimizer):
                self._judge(model)

    def ran(self, what: Ran) -> None:
        if self._all_judged != OBSERVER.version and not torch.is_grad_enabled():
            for module in callers(what, self.watched):
                self._judge_holder(module)

    def ran_rnn(self, call: RnnCall, outputs: Sequence[Tensor]) -> None:  # noqa: ARG002
        module = call.module() if call.module is not None else None
        if module is not None and self._all_judged != OBSERVER.version and not torch.is_grad_enabled():
            self._judge_holder(module)

    def _judge_holder(self, module: nn.Module) -> None:
        for model in self.watched.models:
            if self._judged.get(model) != OBSERVER.version and any(each is module for each in modules(model)):
                self._judge(model)

    def _judge(self, model: nn.Module) -> None:
        if self._judged.get(model) == OBSERVER.version:
            return
        self._judged[model] = OBSERVER.version
        if all(self._judged.get(each) == OBSERVER.version for each in self.watched.models):
            self._all_judged = OBSERVER.version
        change = OBSERVER.last_write.get(model)
        if change is None:
            return
        missed = self._missed(model, change.setter)
        ids = {id(each) for each in missed}
        for top in topmost(missed):
            matter = [each for each in modules(top) if id(each) in ids and mode_matters(each)]
            if matter:
                self._report(model, top, matter, change.setter)

    def _missed(self, model: nn.Module, setter: Setter) -> list[nn.Module]:
        apart = [
            each for each in modules(model) if mode_of(each) != mode_of(model) and not _meant(each, setter)
        ]
        if not apart or (setter.by == "write" and _written_one_by_one(model, setter)):
            return []
        staying = {
            id(below)
            for each in modules(model)
            if each is not model and mode_of(each) != mode_of(model) and _overrides_train(each)
            for below in modules(each)
        }
        if mode_of(model):
            staying |= frozen_parts(model, trainable_ids(model))
        return [each for each in apart if id(each) not in staying]

    def _report(self, model: nn.Module, top: nn.Module, missed: list[nn.Module], setter: Setter) -> None:
        now, other = ("train", "eval") if mode_of(model) else ("eval", "train")
        cause, remedy = self._why(model, top, setter)
        self.watched.report(
            Finding(
                id="mode.unreached",
                severity=Severity.WARN,
                where=self.watched.path(top) or "",
                seen=f"{counted(missed)} in {other} mode, the model in {now} mode since {told(setter)}",
                cause=cause,
                remedy=remedy,
            )
        )

    def _why(self, model: nn.Module, top: nn.Module, setter: Setter) -> tuple[str, str]:
        now = "train" if mode_of(model) else "eval"
        place = setter.stack.here
        by_override = place is not None and place.function == "train" and _overrides_train(model)
        if setter.by == "write" and not by_override:
            return (
                "the flag was written on the model alone; its parts keep theirs",
                f"{now}() on the model: it goes down to every part",
            )
        overriding = next(
            (
                each
                for each in modules(model)
                if _overrides_train(each) and any(below is top for below in modules(each))
            ),
            None,
        )
        if overriding is None or top not in self.watched.entry:
            return (
                f"it was added after {setter.by}(), or is not among the children that {setter.by}() goes through",
                f"{now}() on the model again, after the last part is added",
            )
        name = type(overriding).__name__
        return (
            f"{name}.train() is overridden and does not pass the mode on to it",
            f"in {name}.train(): super().train(mode) first, then eval() on the parts that shall stay, return self",
        )


def _meant(module: nn.Module, setter: Setter) -> bool:
    """Whether its mode was set later, or on itself alone."""
    change = OBSERVER.last_write.get(module)
    return change is not None and (change.setter.serial >= setter.serial or change.setter.by == "write")


def _written_one_by_one(model: nn.Module, setter: Setter) -> bool:
    """Whether the line that wrote the model's flag wrote those of its parts too: modes are being restored.

    It may leave out what is as it was, so one part is enough.
    """
    changes = (OBSERVER.last_write.get(each) for each in modules(model))
    line = setter.stack.here
    return any(
        each is not None
        and each.setter is not setter
        and each.setter.by == "write"
        and each.setter.stack.here == line
        for each in changes
    )


def _overrides_train(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.") and any(
        name in vars(base)
        for base in type(module).__mro__
        if not base.__module__.startswith("torch.")
        for name in ("train", "eval")
    )
