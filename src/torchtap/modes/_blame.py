"""Who is to blame for a backward that raises: from RNN calls, or from autograd's nodes, to findings in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchtap.modes._findings import CallFinding, Severity
from torchtap.modes._frames import Stack
from torchtap.modes._observer import KEY, OBSERVER, RnnCall, Setter
from torchtap.modes._situations import Facts, situation_of, why
from torchtap.modes._watched import joined, model_names

_MODES_OF_CUDNN = {0: "RNN", 1: "RNN", 2: "LSTM", 3: "GRU"}  # grad_fn._saved_mode


def blame(
    what: Iterable[RnnCall | Any], models: Sequence[nn.Module] = (), *, inputs: Sequence[Any] | None = None
) -> list[CallFinding]:
    """A finding for each call in `what` (`RnnCall`s, autograd nodes, or both) that cuDNN refuses, in their order.

    `models` give modules their paths; `inputs` are what gradients are asked for, None for all leaves. Looks only.
    """
    named = Named(models)
    suspects = list(calls_of(what))
    found = []
    for suspect in suspects:
        if suspect.breaks_backward:
            found.append(_finding(suspect, suspects, named, inputs))
    return found


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


@dataclass(slots=True)
class Suspect:
    """One call of an RNN, as far as it is known."""

    call: RnnCall | None
    nodes: list[Any]
    """Its autograd nodes, where they are known."""

    @property
    def is_cudnn(self) -> bool:
        """Whether a node of cuDNN or MIOpen stands in the graph: backward obeys the rule by itself."""
        return any(_is_cudnn(node) for node in self.nodes)

    @property
    def training(self) -> bool:
        """The mode its forward ran in."""
        if self.call is not None:
            return self.call.training
        return bool(self.nodes[0]._saved_train)

    @property
    def follows_rule(self) -> bool:
        """Whether cuDNN ran it, or would have run it on a GPU."""
        return self.is_cudnn or self.call is None or self.call.cudnn

    @property
    def breaks_backward(self) -> bool:
        """Whether cuDNN refuses, or would refuse, a gradient that flows into it."""
        return self.follows_rule and not self.training

    @property
    def raises(self) -> bool:
        """Whether backward raises here, and not only on cuDNN."""
        return self.is_cudnn or (self.call is not None and self.call.enforced)


def _is_cudnn(node: Any) -> bool:
    name = node.name()
    return name.startswith(("CudnnRnnBackward", "MiopenRnnBackward"))


def _tells_mode(node: Any) -> bool:
    return node.name().startswith(("CudnnRnnBackward", "MiopenRnnBackward", "MkldnnRnnLayerBackward"))


def calls_of(what: Iterable[RnnCall | Any]) -> Iterator[Suspect]:
    """The calls that these are, or belong to, each once; nodes that tell nothing of an RNN are left out."""
    by_call: dict[int, Suspect] = {}
    for each in what:
        node = None if isinstance(each, RnnCall) else each
        call: RnnCall | None = each if node is None else node.metadata.get(KEY)
        if call is None and not _tells_mode(node):
            continue
        key = call.serial if call is not None else -id(node)
        suspect = by_call.setdefault(key, Suspect(call, []))
        if node is not None:
            suspect.nodes.append(node)
    yield from by_call.values()


class Named:
    """The modules of some models, with their paths."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models
        self._names = model_names(models) if models else []
        self._paths: dict[int, tuple[str, nn.Module]] = {}
        self._owners: dict[int, nn.Module] = {}
        for model in models:
            for path, module in model.named_modules():
                self._paths.setdefault(id(module), (path, model))
                for parameter in module.parameters(recurse=False):
                    self._owners.setdefault(id(parameter), module)

    def path(self, module: nn.Module | None) -> str | None:
        """As in `named_modules()`; None for what is not part of them."""
        return self._paths[id(module)][0] if id(module) in self._paths else None

    def root(self, module: nn.Module | None) -> nn.Module | None:
        """The model that it is part of."""
        return self._paths[id(module)][1] if id(module) in self._paths else None

    def name(self, root: nn.Module | None) -> str:
        """What goes before the paths in this model."""
        return next((name for name, each in zip(self._names, self.models, strict=True) if each is root), "")

    def owns(self, parameter: object) -> bool:
        """Whether this is one of their parameters."""
        return id(parameter) in self._owners

    def word(self, root: nn.Module | None) -> str:
        """What to call a model in a remedy."""
        return "model" if len(self.models) < 2 or root is None else type(root).__name__.lower()

    def module_of(self, suspect: Suspect) -> nn.Module | None:
        """The module that was called: as watched, else the one whose parameters its nodes lead to."""
        if suspect.call is not None:
            return suspect.call.module() if suspect.call.module is not None else None
        for node in suspect.nodes:
            for before, _ in node.next_functions:
                variable = getattr(_behind_casts(before), "variable", None)
                if id(variable) in self._owners:
                    return self._owners[id(variable)]
        return None


def _behind_casts(node: Any) -> Any:
    """Autocast puts a copy in half precision between a parameter and what uses it."""
    while node is not None and node.name().startswith("ToCopyBackward"):
        node = node.next_functions[0][0]
    return node


def _finding(
    suspect: Suspect, suspects: Sequence[Suspect], named: Named, inputs: Sequence[Any] | None
) -> CallFinding:
    call = suspect.call
    module = named.module_of(suspect)
    setter = call.change.setter if call and call.change else None
    facts = _facts(suspect, suspects, module, setter, named, inputs)
    situation = situation_of(facts)
    class_name = _class_name(suspect, module)
    return CallFinding(
        id="rnn.eval_backward",
        severity=Severity.ERROR,
        where=_where(module, class_name, named),
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
        set_how=_how(setter, named) if setter else None,
    )


def _string(place: object) -> str | None:
    return None if place is None else str(place)


def _class_name(suspect: Suspect, module: nn.Module | None) -> str:
    if suspect.call is not None:
        return suspect.call.class_name
    if module is not None:
        return type(module).__name__
    return _MODES_OF_CUDNN.get(getattr(suspect.nodes[0], "_saved_mode", 2), "RNN")


def _where(module: nn.Module | None, class_name: str, named: Named) -> str:
    path = named.path(module)
    if path is not None:
        return joined(named.name(named.root(module)), path)
    others = ", ".join(type(model).__name__ for model in named.models)
    return f"{class_name} (not part of {others})" if module is not None and others else class_name


def _seen(suspect: Suspect, setter: Setter | None, named: Named) -> str:
    call = suspect.call
    if call is None:
        text = "a forward that nobody watched ran in eval mode"
    else:
        number = f"call {call.number}: " if call.number else ""
        text = f"{number}its forward{_at(call.stack)} ran in eval mode, "
        text += f"set by {_how(setter, named)}{_at(setter.stack)}" if setter else "set before anybody watched"
    return text if suspect.raises else f"{text} (cuDNN would raise; this CPU alone does not)"


def _at(stack: Stack) -> str:
    here, caller = stack.here, stack.caller
    if here is None:
        return ""
    return f" at {here}" if caller == here else f" at {here} (from {caller})"


def _how(setter: Setter, named: Named) -> str:
    on = setter.on()
    path = named.path(on)
    name = type(on).__name__ if path is None else path or named.word(named.root(on))
    name = "a module that is gone" if on is None else name
    if setter.by == "write":
        return f"{name}.training = {setter.training}"
    return f"{name}.eval()" if setter.by == "eval" else f"{name}.train({setter.training})"


def _facts(
    suspect: Suspect,
    suspects: Sequence[Suspect],
    module: nn.Module | None,
    setter: Setter | None,
    named: Named,
    inputs: Sequence[Any] | None,
) -> Facts:
    root = named.root(module)
    part = (setter and named.path(setter.on())) or named.path(module) or ""
    if root is None or not _trained(root, suspect.call):
        part = ""
    return Facts(
        call=suspect.call,
        model=named.word(root),
        part=part,
        setter=setter,
        later=_later(module, suspect.call),
        fed_to=_fed_to(suspect, suspects),
        to_inputs=bool(inputs) and not any(_is_parameter(each, named) for each in inputs or ()),
        model_frozen=root is not None and _frozen(root),
        part_frozen=module is not None and _frozen(module),
        others_train=any(each is not root and each.training for each in named.models)
        if root is not None
        else False,
    )


def _is_parameter(each: object, named: Named) -> bool:
    return isinstance(each, nn.Parameter) or named.owns(each)


def _frozen(module: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters())


def _trained(root: nn.Module, call: RnnCall | None) -> bool:
    """Whether the model itself was in train mode when this forward ran."""
    change = OBSERVER.last_change.get(root)
    if call is not None and change is not None and change.setter.serial > call.serial:
        return bool(change.before)
    return root.training


def _later(module: nn.Module | None, call: RnnCall | None) -> Setter | None:
    change = OBSERVER.last_change.get(module) if module is not None else None
    if change is None or call is None or not change.setter.training or change.setter.serial < call.serial:
        return None
    return change.setter


def _fed_to(suspect: Suspect, suspects: Sequence[Suspect]) -> int | None:
    """The first later call of this module, in train mode, from whose nodes the graph leads back to this call."""
    call = suspect.call
    if call is None or call.module is None:
        return None
    mine = set(suspect.nodes)
    for other in suspects:
        later = other.call
        if later is None or not later.training or later.module != call.module or later.serial < call.serial:
            continue
        if _reach(other.nodes, mine):
            return later.number
    return None


def _reach(start: Sequence[Any], goal: set[Any]) -> bool:
    todo, seen = list(start), set(start)
    while todo:
        for before, _ in todo.pop().next_functions:
            if before in goal:
                return True
            if before is not None and before not in seen:
                seen.add(before)
                todo.append(before)
    return False
