"""Mistakes with modes that raise nothing. A rule is a file; `RULES` names them all."""

from __future__ import annotations

from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent.not_restored import NotRestored

RULES: tuple[type[Rule], ...] = (NotRestored,)
