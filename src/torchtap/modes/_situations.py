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
    captured: str = ""
    """How it got into a program, as `Captured.how`; "" for a module's own call."""
    kept: str = ""
    """Where the model keeps it out of reach of train() and eval(), such as `cells[0]`; "" where it is registered."""
    recomputed: bool = False
    """Whether the forward ran within backward, in a reentrant checkpoint."""
    evaluated: bool = False
    """Whether, between that it was put in eval mode and this call, it ran without a graph: an evaluation."""

    @property
    def function(self) -> str:
        """The function that put it in eval mode, where it is another one than those that led to the forward."""
        if self.setter is None or self.call is None:
            return ""
        # Out of a comprehension or lambda: `[net.eval() for net in nets]`.
        named = (place for place in self.setter.stack.places if not place.function.startswith("<"))
        by = next(named, None)
        if by is None or any(by.code is place.code for place in self.call.stack.places):
            return ""
        return by.function

    @property
    def _kept(self) -> str:
        holder, closed, _ = self.kept.partition(".__closure__")
        return f"what {self.model}.{holder} closes over" if closed else f"{self.model}.{self.kept}"

    def fill(self, text: str) -> str:
        """`text` with its {slots} filled."""
        return text.format(
            model=self.model,
            part=self.part,
            kept=self._kept,
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

CHECKPOINT = Situation(
    "checkpoint",
    lambda f: f.recomputed,
    "{model}.train() before backward, and before the forward too; or checkpoint(..., use_reentrant=False) and "
    "{model}.train() before the forward",
    "checkpoint(..., use_reentrant=True) runs its forward again within backward: the mode at backward counts.",
)


def _fixed(how: str, cause: str, remedy: str) -> Situation:
    return Situation(how, lambda f: f.captured == how, f"{remedy}; {_WITHOUT_CUDNN}", cause)


_WITHOUT_CUDNN = "for gradients of eval outputs: with modes.without_cudnn(): around its forward"
_OF_PROGRAMS = (
    _fixed(
        "exported",
        "torch.export keeps the mode of the export; it cannot be set any more.",
        "export another one in train mode: torch.export.export(model.train(), ...)",
    ),
    _fixed(
        "captured",
        "torch.fx keeps the mode in which the model was captured; train() does not change it.",
        "capture it in train mode",
    ),
    _fixed(
        "traced",
        "torch.jit.trace keeps the mode of the trace; train() does not change it.",
        "trace another one in train mode: torch.jit.trace(model.train(), ...)",
    ),
    _fixed(
        "frozen",
        "torch.jit.freeze keeps eval mode for good.",
        "use the module as it was before torch.jit.freeze, in train mode",
    ),
    _fixed(
        "scripted",
        "A scripted module has a mode of its own, and that of what it was made of does not count. " + RULE,
        "{model}.train() on the scripted module itself, before its forward",
    ),
)

_MAKES = "load|build|make|create|init|setup|pretrained"
"""In the name of a function that hands a model out, in eval mode as loaders of pretrained ones do."""

SITUATIONS = (
    CHECKPOINT,
    *_OF_PROGRAMS,
    Situation(
        "state_fed_on",
        lambda f: f.fed_to is not None,
        "detach what is fed on: h = h.detach(), of an LSTM's state both tensors; or model.train() before both calls",
        "Call {fed_to} ran in train mode and was fed what this call gave: its gradient flows on into this call.",
    ),
    Situation(
        "unregistered",
        lambda f: bool(f.kept),
        "an nn.ModuleList instead of a list or tuple, an nn.ModuleDict instead of a dict, an attribute of its own for "
        "the rest, so that {model}.train() reaches it; until then train() on {kept} before the forward{at}",
        "{model}.train() and {model}.eval() do not reach {kept}: it is not registered. " + RULE,
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
        lambda f: bool(f.part and f.function) and f.evaluated,
        "in {function}(), with modes.eval_mode({part}): ... gives every module its mode back; "
        "or {part}.train() before the forward{at}",
        "{part} is in eval mode while the model is in train mode. " + RULE,
    ),
    Situation(
        "part",
        lambda f: bool(f.part),
        "to freeze {part}: {part}.requires_grad_(False), and leave it in train mode. To let it learn with its dropout "
        "off: with modes.differentiable_eval({part}): around the forward{at}",
        "{part} is in eval mode while the model is in train mode. " + RULE,
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
