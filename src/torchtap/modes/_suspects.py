"""Calls of RNNs as autograd's graph shows them, whether somebody watched them or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchtap.modes._captured import Captured
from torchtap.modes._graph import leaves
from torchtap.modes._named import Named
from torchtap.modes._observer import KEY, RnnCall
from torchtap.modes._walk import named_modules, parameters

_CUDNN = ("CudnnRnnBackward", "MiopenRnnBackward")


@dataclass(slots=True)
class Suspect:
    """One call of an RNN, as far as it is known."""

    call: RnnCall | None
    nodes: list[Any]
    """Its autograd nodes, where they are known."""
    captured: Captured | None = None
    """The program's own call, where neither a watched call nor a node tells of it."""

    @property
    def is_cudnn(self) -> bool:
        """Whether a node of cuDNN or MIOpen stands in the graph: backward obeys the rule by itself."""
        return any(_is_cudnn(node) for node in self.nodes)

    @property
    def training(self) -> bool:
        """The mode its forward ran in."""
        if self.call is not None:
            return self.call.training
        if self.captured is not None:
            return bool(self.captured.training)
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
    return _kind(node) in _CUDNN


def _tells_mode(node: Any) -> bool:
    return _is_cudnn(node) or _kind(node) == "MkldnnRnnLayerBackward"


def _kind(node: Any) -> str:
    """Its name without the number. create_graph makes a CudnnRnnBackwardBackward0, too, which keeps no mode."""
    name: str = node.name()
    return name.rstrip("0123456789")


def calls_of(what: Iterable[RnnCall | Any], named: Named) -> list[Suspect]:
    """The calls that these are, or belong to, each once; nodes that tell nothing of an RNN are left out.

    On a CPU each layer and direction of an LSTM has a node of its own. Where nobody watched, those of one module and
    mode count as one call, and all of unknown modules too.
    """
    suspects: dict[object, Suspect] = {}
    what = list(what)
    inner = _inside_calls([each for each in what if not isinstance(each, RnnCall)])
    for each in what:
        node: Any = None if isinstance(each, RnnCall) else each
        call: RnnCall | None = each if node is None else node.metadata.get(KEY)
        if call is None and (node in inner or not _tells_mode(node)):
            continue
        if call is not None:
            key: object = call.serial
        elif _is_cudnn(node):
            key = node
        else:
            key = id(named.owner_of(node)), node._saved_train
        suspect = suspects.setdefault(key, Suspect(call, []))
        if node is not None:
            suspect.nodes.append(node)
    return list(suspects.values())


def captured_calls(reached: Sequence[Any], suspects: Sequence[Suspect], named: Named) -> list[Suspect]:
    """The calls in programs whose mode the program alone tells, as this graph, of a CPU, shows only their weights."""
    fixed = [each for each in named.captured if each.training is not None]
    if not fixed:
        return []
    told = {id(module_of(each, named)) for each in suspects}
    used = set(map(id, leaves(reached)))
    return [
        Suspect(None, [], each)
        for each in fixed
        if id(each.module) not in told
        and not any(weight.is_cuda for weight in weights_of(each.module))
        and any(id(weight) in used for weight in weights_of(each.module))
        and not is_shared(each, named)
    ]


def is_shared(captured: Captured, named: Named) -> bool:
    """Whether another RNN has the same weights, such as what it was made of: then these tell of no call."""
    own = set(map(id, weights_of(captured.module)))
    others: list[nn.Module] = [each for each in named if isinstance(each, nn.RNNBase)]
    others += [each.module for each in named.captured if each is not captured]
    return any(id(weight) in own for other in others for weight in weights_of(other))


def weights_of(module: nn.Module) -> list[nn.Parameter]:
    """Of an RNN, or of a program that holds one somewhere below it."""
    return [weight for _, each in named_modules(module) for weight in parameters(each)]


def _inside_calls(nodes: Sequence[Any]) -> set[Any]:
    """The oneDNN nodes that watched calls made inside, one a layer and direction: the call tells of them already.

    Found below a call's outputs; those that lead to another module's weights belong to a call that nobody watched.
    """
    if all(not _tells_mode(node) or KEY in node.metadata for node in nodes):
        return set()
    inner: set[Any] = set()
    seen: set[Any] = set()
    for top in nodes:
        call: RnnCall | None = top.metadata.get(KEY)
        if call is None:
            continue
        weights = set(call.weights)
        todo = [top]
        while todo:
            for node, _ in todo.pop().next_functions:
                if node is None or node in seen or KEY in node.metadata:
                    continue
                if _tells_mode(node):
                    leaves = {
                        id(leaf.variable) for leaf, _ in node.next_functions if hasattr(leaf, "variable")
                    }
                    if leaves and not leaves & weights:
                        continue
                    inner.add(node)
                seen.add(node)
                todo.append(node)
    return inner


def module_of(suspect: Suspect, named: Named) -> nn.Module | None:
    """The module that was called: as watched, else the one whose parameters its nodes lead to."""
    call = suspect.call
    if suspect.captured is not None:
        return suspect.captured.module
    if call is None:
        owners = map(named.owner_of, suspect.nodes)
        return next((each for each in owners if each is not None), None)
    if call.replica_of is not None:
        return named.original(call.replica_of)
    return call.module() if call.module is not None else None
