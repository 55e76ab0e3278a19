"""Modules that a guarded model holds and `train()` and `eval()` do not reach."""

from __future__ import annotations

from dataclasses import replace

from torchtap.modes.reach import unregistered
from torchtap.modes.silent._rule import Rule


class Unregistered(Rule):
    """`module.unregistered`: seen when the guard is entered."""

    def entered(self) -> None:
        """Look through the attributes of all modules, once."""
        for holder, finding in unregistered(self.watched.models):
            self.watched.report(replace(finding, where=self.watched.path(holder) or ""))
