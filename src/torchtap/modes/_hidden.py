"""What a graph hides: forwards that run only within backward, and nodes that nobody can look into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from torchtap._findings import Severity
from torchtap.modes import _rnn
from torchtap.modes._blame import how, where
from torchtap.modes._captured import Captured
from torchtap.modes._findings import CallFinding
from torchtap.modes._graph import leaves
from torchtap.modes._named import Named
from torchtap.modes._observer import OBSERVER
from torchtap.modes._situations import CHECKPOINT, Facts
from torchtap.modes._suspects import Suspect, module_of, weights_of
from torchtap.modes._walk import named_modules

_CHECKPOINT = "CheckpointFunctionBackward"  # of use_reentrant=True; the other kind leaves ordinary nodes
_COMPILED = "CompiledFunctionBackward"
_DEEPEST = 4
"""Functions looked into for modules: a partial of a lambda over a method."""


def checkpointed(reached: Iterable[Any], named: Named) -> list[CallFinding]:
    """A finding for each RNN that a reentrant checkpoint will run within backward and that is in eval mode now."""
    modules: dict[int, nn.Module] = {}
    for node in reached:
        if node.name() == _CHECKPOINT:
            for held in _modules_of([getattr(node, "run_function", None), *getattr(node, "inputs", ())]):
                modules.update(
                    (id(each), each) for _, each in named_modules(held) if isinstance(each, nn.RNNBase)
                )
    return [_in_eval(module, named) for module in modules.values() if not module.training]


def _in_eval(module: nn.Module, named: Named) -> CallFinding:
    change = OBSERVER.last_change.get(module)
    setter = change.setter if change is not None and not change.setter.training else None
    set_by = str(setter.stack.here) if setter and setter.stack.here else None
    set_how = how(setter, named) if setter else None
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    by = f", set by {set_how} at {set_by}" if set_how else ""
    return CallFinding(
        id="rnn.eval_checkpoint",
        severity=Severity.ERROR,
        where=where(module, type(module).__name__, named),
        seen=f"in eval mode now{by}; a reentrant checkpoint runs its forward again within backward",
        cause=CHECKPOINT.cause,
        remedy=Facts(call=None, model=named.word(named.root(module))).fill(CHECKPOINT.remedy),
        situation=CHECKPOINT.id,
        class_name=type(module).__name__,
        raises=on_gpu or _rnn.is_emulated(),
        set_by=set_by,
        set_how=set_how,
    )


def _modules_of(values: Iterable[Any]) -> Iterator[nn.Module]:
    """The modules that these functions would run, as far as they can be told from what they hold."""
    todo = [(value, 0) for value in values]
    seen: set[int] = set()
    while todo:
        value, depth = todo.pop()
        if id(value) in seen or depth > _DEEPEST:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            yield value
        todo += [(each, depth + 1) for each in _held_by(value)]


def _held_by(value: Any) -> Sequence[Any]:
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, FunctionType):
        cells = [each for cell in value.__closure__ or () if (each := _content(cell)) is not None]
        named = [value.__globals__.get(name) for name in value.__code__.co_names]
        return *cells, *(value.__defaults__ or ()), *(each for each in named if isinstance(each, nn.Module))
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (nn.Module, torch.Tensor, type)):
        return ()
    # Another object, a trainer: what it holds itself.
    return [each for each in getattr(value, "__dict__", {}).values() if isinstance(each, nn.Module)]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def unseen(reached: Sequence[Any], suspects: Sequence[Suspect], named: Named) -> tuple[str, ...]:
    """What could hide an RNN call or its mode, each in a sentence."""
    hidden = Counter(
        _function(node)
        for node in reached
        if isinstance(node, BackwardCFunction) and _name(node) not in _RUNS_NOTHING
    )
    return (
        *(f"{name}{f', {number} times' * (number > 1)}: {_why(name)}" for name, number in hidden.items()),
        *_unwatched(reached, suspects, named, hides_more=bool(hidden)),
    )


def _name(node: Any) -> str:
    return str(node.name())


def _function(node: Any) -> str:
    name = _name(node)
    return name if name in _WHY else f"{name.removesuffix('Backward')} (a custom autograd.Function)"


_RUNS_NOTHING = frozenset({"BackwardHookFunctionBackward", "_DDPSinkBackward"})
"""PyTorch's own, which only pass gradients on: of register_full_backward_hook and DistributedDataParallel."""
_WHY = {
    _CHECKPOINT: "runs its forward again within backward; only RNNs that are in eval mode now are told",
    _COMPILED: "compiled by torch.compile; an RNN in it is decomposed, which cuDNN does not refuse",
}


def _why(name: str) -> str:
    return _WHY.get(name, "RNN calls inside it cannot be seen")


def _unwatched(
    reached: Sequence[Any], suspects: Sequence[Suspect], named: Named, *, hides_more: bool
) -> Iterator[str]:
    """RNNs of the models that the graph leads to, or may lead to, but none of whose calls told its mode."""
    told = {id(module_of(each, named)) for each in suspects}
    variables = list(leaves(reached))
    used = set(map(id, variables))
    foreign = not suspects and not hides_more and not any(map(named.owns, variables))
    eager = [each for each in named if isinstance(each, nn.RNNBase)]
    for each in (*(Captured(rnn, type(rnn).__name__, "", None) for rnn in eager), *named.captured):
        weights = weights_of(each.module)
        if id(each.module) in told or each.training or any(weight.is_cuda for weight in weights):
            continue
        trains = any(weight.requires_grad for weight in weights)
        if any(id(weight) in used for weight in weights):
            why = _UNKNOWN_MODE if each.training is None else _UNKNOWN_WHICH
        elif _shows_itself(each, weights, id(None) in told) or (trains and not foreign):
            continue  # not in this graph
        elif trains:
            why = _UNKNOWN_WEIGHTS
        elif OBSERVER.saw(each.module):
            continue  # its calls in this graph have told of themselves
        else:
            why = _UNKNOWN_WHETHER
        yield f"{_label(each, named)}: {why[each.how != '']}"


_UNKNOWN_MODE = (
    "nobody watched its forward, and this graph does not tell its mode. Run the forward inside "
    "with modes.guard(model):",
    "nobody can watch its forward, and this graph does not tell its mode. Check the model that it was made of, run "
    "inside with modes.guard(model):",
)
"""Of a module, and of a program's RNN."""
_UNKNOWN_WHICH = (
    "",  # of programs only
    "another RNN has the same weights, and this graph does not tell which of them ran. Check a model that holds one",
)
_UNKNOWN_WEIGHTS = (
    "no parameter of the model is in this graph, so it may have run with others (torch.func.functional_call), and "
    "nobody watched that. Run the forward inside with modes.guard(model):",
    "no parameter of the model is in this graph, so it may have run with others (torch.func.functional_call)",
)
_UNKNOWN_WHETHER = (
    "its weights are frozen, so this graph does not tell whether it ran in it, and in which mode. Run the forward "
    "inside with modes.guard(model):",
    "its weights are frozen, so this graph does not tell whether it ran in it: in eval mode cuDNN would refuse that",
)


def _label(each: Captured, named: Named) -> str:
    mode = "" if each.training is None else f" in {'train' if each.training else 'eval'} mode"
    how = f", {each.how}{mode}" if each.how else ""
    return f"{named.path(each.module) or 'the model itself'} ({each.class_name}{how})"


def _shows_itself(each: Captured, weights: Sequence[nn.Parameter], any_unknown: bool) -> bool:
    """Whether a CPU would make a node that tells of it, also where its weights are frozen: oneDNN's, of LSTMs."""
    if each.class_name != "LSTM" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not weights:  # constants of a program
        return any_unknown
    projected = bool(getattr(each.module, "proj_size", 0))
    return not projected and all(weight.dtype == torch.float32 for weight in weights)
