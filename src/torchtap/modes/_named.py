"""The modules of some models, found by themselves, by their parameters, and by their replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from torch import nn

from torchtap.modes._captured import Captured, captured_rnns
from torchtap.modes._walk import children, joined, named_modules, parameters
from torchtap.modes._watched import model_names
from torchtap.modes.reach import hidden_modules


class _Place(NamedTuple):
    module: nn.Module
    path: str
    model: nn.Module
    kept: str
    """Where the model keeps it, or what holds it, out of reach; "" for what is registered."""


class Named:
    """The modules of some models, with their paths; what they keep out of reach, in a plain list, is theirs too."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models
        self._names = model_names(models) if models else []
        self._places: dict[int, _Place] = {}
        self._owners: dict[int, nn.Module] = {}
        for model in models:
            for path, module in named_modules(model):
                self._add(_Place(module, path, model, ""))

    def _add(self, place: _Place) -> None:
        self._places.setdefault(id(place.module), place)
        for parameter in parameters(place.module):
            self._owners.setdefault(id(parameter), place.module)

    @cached_property
    def _hidden(self) -> bool:
        """Adds what is out of reach; looked for only when something is asked for that is not registered."""
        for model in self.models:
            for each in hidden_modules([model]):
                kept = joined(each.path, each.name)
                for path, module in named_modules(each.module):
                    self._add(_Place(module, joined(kept, path), model, kept))
        return True

    def __iter__(self) -> Iterator[nn.Module]:
        """All of them."""
        _ = self._hidden  # adds what is out of reach
        return iter([place.module for place in self._places.values()])

    def _place(self, module: nn.Module | None) -> _Place | None:
        if module is None:
            return None
        known = self._places.get(id(module))
        return self._places.get(id(module)) if known is None and self._hidden else known

    def path(self, module: nn.Module | None) -> str | None:
        """As in `named_modules()`, or `cells[0]` for what is kept in a list; None for what is not part of them."""
        place = self._place(module)
        return None if place is None else place.path

    def root(self, module: nn.Module | None) -> nn.Module | None:
        """The model that it is part of."""
        place = self._place(module)
        return None if place is None else place.model

    def kept(self, module: nn.Module | None) -> str:
        """Where a model keeps it out of reach of train() and eval(): `cells[0]`; "" for what is registered."""
        place = self._place(module)
        return "" if place is None else place.kept

    def name(self, root: nn.Module | None) -> str:
        """What goes before the paths in this model."""
        return next((name for name, each in zip(self._names, self.models, strict=True) if each is root), "")

    def owns(self, parameter: object) -> bool:
        """Whether this is one of their parameters."""
        return self._owner(parameter) is not None

    def _owner(self, parameter: object) -> nn.Module | None:
        known = self._owners.get(id(parameter))
        return self._owners.get(id(parameter)) if known is None and self._hidden else known

    def word(self, root: nn.Module | None) -> str:
        """What to call a model in a remedy."""
        return "model" if len(self.models) < 2 or root is None else self.name(root).lower()

    def code(self, root: nn.Module | None, path: str) -> str:
        """How code gets at what is at `path` in this model: `rnn`; of several models, `critic.rnn`."""
        return joined("" if path and len(self.models) < 2 else self.word(root), path)

    def owner_of(self, node: Any) -> nn.Module | None:
        """The module whose parameters go into this node; None where that cannot be told."""
        for before, _ in node.next_functions:
            variable = getattr(_behind_casts(before), "variable", None)
            if variable is not None and (owner := self._owner(variable)) is not None:
                return owner
        return None

    @cached_property
    def captured(self) -> list[Captured]:
        """The RNN calls that programs among them hold: see `_captured`."""
        return captured_rnns(list(self))

    def captured_in(self, module: nn.Module | None) -> Captured | None:
        """The first such call with this module's weights."""
        return next((each for each in self.captured if each.module is module), None)

    def original(self, shared: object) -> nn.Module | None:
        """The module of which `nn.DataParallel` made a replica."""
        return next((each for each in self if each.__dict__.get("_all_weights") is shared), None)


def unwrapped(model: nn.Module) -> nn.Module:
    """What PyTorch's own wrappers hold: `nn.DataParallel`, DistributedDataParallel, torch.compile, AveragedModel."""
    held = [child for _, child in children(model)]
    wraps = type(model).__module__.startswith("torch.") and type(model).__name__ in _WRAPPERS
    return unwrapped(held[0]) if wraps and len(held) == 1 else model


_WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
    "AveragedModel",
)


def is_frozen(module: nn.Module) -> bool:
    """Whether none of its parameters, or of those below it, requires a gradient."""
    each = (parameter for _, part in named_modules(module) for parameter in parameters(part))
    return not any(parameter.requires_grad for parameter in each)


def _behind_casts(node: Any) -> Any:
    """Autocast puts a copy in half precision between a parameter and what uses it."""
    while node is not None and node.name().startswith("ToCopyBackward"):
        node = node.next_functions[0][0]
    return node
