"""What every rule is."""

from __future__ import annotations

from torchtap.modes._observer import Listener
from torchtap.modes._watched import Watched


class Rule(Listener):
    """One kind of silent mistake, made anew for each guard. Overrides the events that it needs."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    def entered(self) -> None:
        """The guard was entered."""

    def left(self) -> None:
        """The guard is being left, with or without an exception."""
