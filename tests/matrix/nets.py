"""The small nets on which other tools fail: in-place operations, outputs of every shape, reuse, checkpointing."""

from __future__ import annotations

from tests.matrix.cases import Case
from tests.unit.hooks.nets import NETS, batch

GROUP = "hard cases"


def cases() -> list[Case]:
    """A row for each of the nets that the tests of the hooks use."""
    return [Case(name, GROUP, build, lambda: ((batch(),), {}), sampled=True) for name, build in NETS.items()]
