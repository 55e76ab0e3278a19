"""Why an RNN's forward ran in eval mode although a gradient flows into it, and what to do: one table.

The rule is always the same, the remedy is not: who evaluates in between needs another one than who wants gradients of
eval outputs. The first situation that applies is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torchtap.modes._observer import RnnCall, Setter

RULE = "Only the mode at the forward counts; train() just before backward() changes nothing."


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about one call whose forward ran in eval mode."""

    call: RnnCall | None
    """None where nobody watched the forward."""
    model: str = "model"
    """What the model is called in a remedy."""
    part: str = ""
    """The path of the part that is in eval mode while the model trains; "" where the whole model is in eval."""
    setter: Setter | None = None
    """Who put it in eval mode; None: before anybody watched."""
    later: Setter | None = None
    """Who put it in train mode after the forward."""
    stopped: Setter | None = None
    """Who put the model in train mode between that and the forward, without reaching the RNN."""
    fed_to: int | None = None
    """The number of a later call of the same module, in train mode, that was fed what this call gave."""
    to_inputs: bool = False
    """Whether gradients are asked for tensors that are no parameters."""
    model_frozen: bool = False
    """Whether no parameter of the model requires a gradient."""
    part_frozen: bool = False
    """Whether no parameter of the RNN does."""
    others_train: bool = False
    """Whether another of the models is in train mode."""

    @property
    def function(self) -> str:
        """The function that put it in eval mode, where it is another one than those that led to the forward."""
        here = self.setter.stack.here if self.setter else None
        if here is None or self.call is None or here.function.startswith("<"):
            return ""
        return "" if any(here.code is place.code for place in self.call.stack.places) else here.function

    def fill(self, text: str) -> str:
        """`text` with its {slots} filled."""
        return text.format(
            model=self.model,
            part=self.part,
            function=self.function,
            fed_to=self.fed_to,
            at=f" at {self.call.stack.caller}" if self.call and self.call.stack.caller else "",
            stopped=self.stopped.stack.here if self.stopped else "",
            later=self.later.stack.here if self.later else "",
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """One way to get there."""

    id: str
    applies: Callable[[Facts], bool]
    remedy: str
    cause: str = RULE


_AROUND = "with modes.differentiable_eval({model}): around the forward{at}: outputs of eval mode, and backward works"

_MAKES = "load|build|make|create|init|setup|pretrained"
"""In the name of a function that hands a model out, in eval mode as loaders of pretrained ones do."""

SITUATIONS = (
    Situation(
        "state_fed_on",
        lambda f: f.fed_to is not None,
        "detach what is fed on: h = h.detach(), of an LSTM's state both tensors; or model.train() before both calls",
        "Call {fed_to} ran in train mode and was fed what this call gave: its gradient flows on into this call.",
    ),
    Situation(
        "unreached",
        lambda f: f.stopped is not None,
        "let an overridden train() call super().train(mode); a whole model's mode is set by {model}.train(), not by "
        "{model}.training = True",
        "train() at {stopped} did not reach {part}. " + RULE,
    ),
    Situation("gradient_of_input", lambda f: f.to_inputs or f.model_frozen, _AROUND),
    Situation(
        "frozen_part",
        lambda f: bool(f.part) and f.part_frozen,
        "leave {part} in train mode: frozen by requires_grad_(False) it learns nothing. Or, without its dropout: "
        "with modes.differentiable_eval({part}): around the forward{at}",
        "{part} is frozen and in eval mode while the model trains, but what comes before it wants a gradient.",
    ),
    Situation(
        "part_left_in_eval",
        lambda f: bool(f.part and f.function) and not re.search(f"freez|{_MAKES}", f.function),
        "in {function}(), with modes.eval_mode({part}): ... gives every module its mode back; "
        "or {part}.train() before the forward{at}",
        "Only {part} is in eval mode, the model trains. " + RULE,
    ),
    Situation(
        "part",
        lambda f: bool(f.part),
        "to freeze {part}: {part}.requires_grad_(False), and leave it in train mode. To let it learn with its dropout "
        "off: with modes.differentiable_eval({part}): around the forward{at}",
        "Only {part} is in eval mode, the model trains. " + RULE,
    ),
    Situation(
        "train_after_forward",
        lambda f: f.later is not None,
        "move train() to before the forward{at}; if its outputs need no gradient (samples, a teacher's targets): "
        "with torch.no_grad(): around it",
    ),
    Situation(
        "teacher",
        lambda f: f.others_train,
        "if it shall only give targets: with torch.no_grad(): around its forward{at}; if a gradient must pass through "
        "it: with modes.differentiable_eval({model}): there; if it shall learn: {model}.train() before it",
    ),
    Situation(
        "made_in_eval",
        lambda f: bool(re.search(_MAKES, f.function)),
        "to train: {model}.train() before the forward{at}; for gradients of eval outputs: "
        "with modes.differentiable_eval({model}): around it",
    ),
    Situation(
        "left_in_eval",
        lambda f: bool(f.function),
        "in {function}(), with modes.eval_mode({model}): ... gives every module its mode back; "
        "or {model}.train() before the forward{at}",
    ),
    Situation(
        "unwatched",
        lambda f: f.call is None,
        "{model}.train() before the forward; to learn which line and who set eval, run the forward inside "
        "with modes.guard({model}):",
    ),
    Situation(
        "eval",
        lambda _: True,
        "to train: {model}.train() before the forward{at}, and modes.eval_mode({model}) around evaluations; "
        "for gradients of eval outputs: with modes.differentiable_eval({model}): around the forward",
    ),
)


def situation_of(facts: Facts) -> Situation:
    """The first that applies; the last one always does."""
    return next(each for each in SITUATIONS if each.applies(facts))


def why(facts: Facts, situation: Situation) -> str:
    """The cause in a sentence or two."""
    if facts.later is not None and situation.cause == RULE:
        return facts.fill("train() at {later} came after this forward. " + RULE)
    return facts.fill(situation.cause)
