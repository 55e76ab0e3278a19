"""The modules of some models, found by themselves, by their parameters, and by their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from torchtap.modes._walk import joined, named_modules
from torchtap.modes._watched import model_names


class Named:
    """The modules of some models, with their paths."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models
        self._names = model_names(models) if models else []
        self._paths: dict[int, tuple[str, nn.Module]] = {}
        self._owners: dict[int, nn.Module] = {}
        for model in models:
            for path, module in named_modules(model):
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
        return "model" if len(self.models) < 2 or root is None else self.name(root).lower()

    def code(self, root: nn.Module | None, path: str) -> str:
        """How code gets at what is at `path` in this model: `rnn`; of several models, `critic.rnn`."""
        return joined("" if path and len(self.models) < 2 else self.word(root), path)

    def owner_of(self, node: Any) -> nn.Module | None:
        """The module whose parameters go into this node; None where that cannot be told."""
        for before, _ in node.next_functions:
            variable = getattr(_behind_casts(before), "variable", None)
            if (owner := self._owners.get(id(variable))) is not None:
                return owner
        return None

    def rnns_of(self, parameters: Iterable[object]) -> list[nn.Module]:
        """The RNNs to which these parameters belong, each once."""
        owners = {
            id(each): each
            for parameter in parameters
            if (each := self._owners.get(id(parameter))) is not None
        }
        return [each for each in owners.values() if _is_rnn(each)]

    def original(self, shared: object) -> nn.Module | None:
        """The module of which `nn.DataParallel` made a replica."""
        modules = (module for model in self.models for _, module in named_modules(model))
        return next((each for each in modules if each.__dict__.get("_all_weights") is shared), None)


def is_frozen(module: nn.Module) -> bool:
    """Whether none of its parameters, or of those below it, requires a gradient."""
    each = (parameter for _, part in named_modules(module) for parameter in part.parameters(recurse=False))
    return not any(parameter.requires_grad for parameter in each)


def _is_rnn(module: nn.Module) -> bool:
    scripted = getattr(module, "original_name", "")
    return isinstance(module, nn.RNNBase) or scripted in ("LSTM", "GRU", "RNN")


def _behind_casts(node: Any) -> Any:
    """Autocast puts a copy in half precision between a parameter and what uses it."""
    while node is not None and node.name().startswith("ToCopyBackward"):
        node = node.next_functions[0][0]
    return node
