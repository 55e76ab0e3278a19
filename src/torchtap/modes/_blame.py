"""Who is to blame for a backward that raises: from RNN calls, or from autograd's nodes, to findings in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from torchtap._findings import Severity
from torchtap.modes._findings import CallFinding
from torchtap.modes._frames import Stack
from torchtap.modes._named import Named, is_frozen, unwrapped
from torchtap.modes._observer import OBSERVER, RnnCall, Setter
from torchtap.modes._situations import Facts, situation_of, why
from torchtap.modes._suspects import Suspect, calls_of, module_of
from torchtap.modes._walk import joined

_MODES_OF_CUDNN = {0: "RNN", 1: "RNN", 2: "LSTM", 3: "GRU"}  # grad_fn._saved_mode


def blame(
    what: Iterable[RnnCall | Any], models: Sequence[nn.Module] = (), *, inputs: Sequence[Any] | None = None
) -> list[CallFinding]:
    """A finding for each call in `what` (`RnnCall`s, autograd nodes, or both) that cuDNN refuses, in their order.

    `models` give modules their paths; `inputs` are what gradients are asked for, None for all leaves. Looks only.
    """
    named = Named(models)
    return blamed(calls_of(what, named), named, inputs)


def blamed(suspects: Sequence[Suspect], named: Named, inputs: Sequence[Any] | None) -> list[CallFinding]:
    """A finding for each of these calls that cuDNN refuses."""
    fed = _Fed(suspects)
    return [_finding(each, fed, named, inputs) for each in suspects if each.breaks_backward]


def told(findings: Sequence[CallFinding], *, most: int = 5) -> str:
    """The findings in words, indented by two, for the text of an error: what, why and what to do, each once.

    No more than `most` calls are named.
    """
    lines: list[str] = []
    after: tuple[str, ...] = ()
    for finding in findings[:most]:
        (_, what), (_, cause), (_, remedy) = finding.lines()
        if (cause, f"do: {remedy}") != after:
            lines += after
            after = (cause, f"do: {remedy}")
        lines.append(what)
    lines += after
    if len(findings) > most:
        lines.append(f"and {len(findings) - most} more calls")
    return "\n".join(f"  {line}" for line in lines)


def _finding(suspect: Suspect, fed: _Fed, named: Named, inputs: Sequence[Any] | None) -> CallFinding:
    call = suspect.call
    module = module_of(suspect, named)
    setter = _setter(call, module)
    facts = _facts(suspect, fed, module, setter, named, inputs)
    situation = situation_of(facts)
    class_name = _class_name(suspect, module, named)
    return CallFinding(
        id="rnn.eval_backward",
        severity=Severity.ERROR,
        where=where(module, class_name, named),
        seen=_seen(suspect, setter, named),
        cause=why(facts, situation),
        remedy=facts.fill(situation.remedy),
        situation=situation.id,
        class_name=class_name,
        raises=suspect.raises,
        call=call.number or None if call else None,
        forward=_string(call.stack.here) if call else None,
        called_from=_string(call.stack.caller) if call else None,
        set_by=_string(setter.stack.here) if setter else None,
        set_how=how(setter, named) if setter else None,
    )


def _setter(call: RnnCall | None, module: nn.Module | None) -> Setter | None:
    """Who set the mode in which the call ran."""
    if call is None:
        return None
    if call.replica_of is None:
        return call.change.setter if call.change else None
    change = OBSERVER.last_change.get(module) if module is not None else None  # a replica copies its mode
    if change is None or change.setter.serial > call.serial or change.setter.training != call.training:
        return None
    return change.setter


def _string(place: object) -> str | None:
    return None if place is None else str(place)


def _class_name(suspect: Suspect, module: nn.Module | None, named: Named) -> str:
    if suspect.call is not None:
        return suspect.call.class_name
    if (captured := named.captured_in(module)) is not None:
        return captured.class_name
    if module is not None:
        return type(module).__name__
    return _MODES_OF_CUDNN.get(getattr(suspect.nodes[0], "_saved_mode", 2), "RNN")


def where(module: nn.Module | None, class_name: str, named: Named) -> str:
    """The module's path; its class where it has none."""
    path = named.path(module)
    if path is not None:
        return joined(named.name(named.root(module)), path)
    others = ", ".join(type(model).__name__ for model in named.models)
    return f"{class_name} (not part of {others})" if module is not None and others else class_name


def _seen(suspect: Suspect, setter: Setter | None, named: Named) -> str:
    call = suspect.call
    if suspect.captured is not None:
        text = f"{suspect.captured.how} in eval mode"
    elif call is None:
        text = "a forward that nobody watched ran in eval mode"
    else:
        number = f"call {call.number}: " if call.number else ""
        text = f"{number}its forward{_at(call.stack)} ran in eval mode, "
        text += f"set by {how(setter, named)}{_at(setter.stack)}" if setter else "set before anybody watched"
    return text if suspect.raises else f"{text} (cuDNN would raise; this CPU alone does not)"


def _at(stack: Stack) -> str:
    here, caller = stack.here, stack.caller
    if here is None:
        return ""
    return f" at {here}" if caller == here else f" at {here} (from {caller})"


def how(setter: Setter, named: Named) -> str:
    """What put it in this mode, as code: `model.eval()`."""
    on = setter.on()
    words = {"eval": "eval()", "train": f"train({setter.training})", "write": f"training = {setter.training}"}
    if on is None:
        return f"{words[setter.by]} of a module that is gone"
    path = named.path(on)
    name = type(on).__name__ if path is None else named.code(named.root(on), path)
    return f"{name}.{words[setter.by]}"


def _word(root: nn.Module | None, setter: Setter | None, module: nn.Module | None, named: Named) -> str:
    """What to call the model in a remedy: one that is not among the named ones by what is known of it."""
    on = setter.on() if setter is not None else None
    known = next((each for each in (on, module) if each is not None), None)
    if root is not None or not named.models or known is None:
        return named.word(root)
    return type(known).__name__.lower()


def _facts(
    suspect: Suspect,
    fed: _Fed,
    module: nn.Module | None,
    setter: Setter | None,
    named: Named,
    inputs: Sequence[Any] | None,
) -> Facts:
    root = named.root(module)
    inner = unwrapped(root) if root is not None else None
    whole = (None, root, inner)
    on = setter.on() if setter is not None else None
    captured = named.captured_in(module) if suspect.call is None else None
    part = named.path(module if on in whole else on) or ""
    if inner is None or not _trained(inner, suspect.call) or module is inner:
        part = ""
    stopped = None
    if part and setter is not None and on in whole:  # the whole model was, but trains now
        stopped = _setter_between(inner, setter, suspect.call)
    return Facts(
        call=suspect.call,
        stopped=stopped,
        model=_word(root, setter, module, named),
        part=part and named.code(root, part),
        setter=setter,
        later=_later(module, suspect.call),
        fed_to=fed.to(suspect),
        to_inputs=bool(inputs) and not any(_is_parameter(each, named) for each in inputs or ()),
        model_frozen=root is not None and is_frozen(root),
        part_frozen=module is not None and is_frozen(module),
        others_train=any(each is not root and each.training for each in named.models)
        if root is not None
        else False,
        captured=captured.how if captured is not None else "",
        kept=named.kept(module),
        recomputed=suspect.call is not None and suspect.call.in_backward,
        evaluated=_evaluated(module, setter, suspect.call),
    )


def _evaluated(module: nn.Module | None, setter: Setter | None, call: RnnCall | None) -> bool:
    last = OBSERVER.last_without_graph.get(module) if module is not None else None
    return last is not None and setter is not None and call is not None and setter.serial < last < call.serial


def _is_parameter(each: object, named: Named) -> bool:
    return isinstance(each, nn.Parameter) or named.owns(each)


def _trained(root: nn.Module, call: RnnCall | None) -> bool:
    """Whether the model itself was in train mode when this forward ran."""
    change = OBSERVER.last_change.get(root)
    if call is not None and change is not None and change.setter.serial > call.serial:
        return bool(change.before)
    return root.training


def _setter_between(root: nn.Module | None, setter: Setter, call: RnnCall | None) -> Setter | None:
    """Who put the model in train mode after `setter` and before the forward, and did not reach the RNN."""
    change = OBSERVER.last_change.get(root) if root is not None else None
    if change is None or call is None or not setter.serial < change.setter.serial < call.serial:
        return None
    return change.setter if change.setter.training else None


def _later(module: nn.Module | None, call: RnnCall | None) -> Setter | None:
    change = OBSERVER.last_change.get(module) if module is not None else None
    if change is None or call is None or not change.setter.training or change.setter.serial < call.serial:
        return None
    return change.setter


class _Fed:
    """Which call was fed what an earlier call of the same module gave."""

    def __init__(self, suspects: Sequence[Suspect]) -> None:
        self._suspects = suspects
        self._behind: dict[int, set[Any]] = {}  # by a call's serial: the nodes that its gradient flows on to

    def to(self, suspect: Suspect) -> int | None:
        """The number of the first later call in train mode from which the graph leads back to this call."""
        call = suspect.call
        if call is None or call.module is None:
            return None
        later = [
            (other.call, other.nodes)
            for other in self._suspects
            if other.call is not None and other.call.training and other.call.module is call.module
            if other.call.serial > call.serial
        ]
        later.sort(key=lambda each: each[0].serial)
        for other, nodes in later[
            :3
        ]:  # a state goes to the next call as a rule; a long loop must not cost its square
            if other.serial not in self._behind:
                self._behind[other.serial] = _behind(nodes)
            if not self._behind[other.serial].isdisjoint(suspect.nodes):
                return other.number
        return None


def _behind(nodes: Sequence[Any]) -> set[Any]:
    todo, seen = list(nodes), set()
    while todo:
        for before, _ in todo.pop().next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                todo.append(before)
    return seen
