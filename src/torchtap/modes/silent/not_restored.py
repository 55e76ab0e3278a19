"""A training step in a mode that an evaluation left behind."""

from __future__ import annotations

from torch.optim import Optimizer

from torchtap.modes.silent._rule import Rule


class NotRestored(Rule):
    """`mode.not_restored`."""

    def stepped(self, optimizer: Optimizer) -> None:
        """A training step is the moment at which it does harm."""
