"""What one guard watches, and where what it finds is kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from torch import nn

from torchtap.modes._findings import Finding


class Watched:
    """The models of a guard. Holds no module alive."""

    def __init__(self, models: Sequence[nn.Module], report: Callable[[Finding], None]) -> None:
        self._models = tuple(weakref.ref(model) for model in models)
        self.report = report
        """Takes a finding. Equal ones are kept once."""
        self.entry: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        """Each module's mode when the guard was entered."""

    @property
    def models(self) -> list[nn.Module]:
        """Those that are still there."""
        return [model for each in self._models if (model := each()) is not None]

    def path(self, module: nn.Module) -> str | None:
        """As in `model.named_modules()`, "" for the model itself; None for what is not part of it."""
        for model in self.models:
            for name, each in model.named_modules():
                if each is module:
                    return name
        return None
