"""Classes whose own `train` or `eval` keeps a guarded model's modes from being set."""

from __future__ import annotations

from dataclasses import replace

from torchtap.modes._overrides import overridden
from torchtap.modes._walk import named_modules
from torchtap.modes.silent._rule import Rule


class TrainOverridden(Rule):
    """`module.train_overridden`: seen when the guard is entered."""

    def entered(self) -> None:
        """Read the methods of all classes, each once."""
        for model in self.watched.models:
            for path, module in named_modules(model):
                for finding in overridden(module, path):
                    self.watched.report(replace(finding, where=self.watched.path(module) or ""))
