"""Ranks of one distributed run that train in different modes."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from torch import distributed, nn
from torch.optim import Optimizer

from torchtap._findings import Finding, Severity
from torchtap.modes._observer import OBSERVER
from torchtap.modes._torch import default_store
from torchtap.modes._walk import mode_of, modules
from torchtap.modes._watched import Watched
from torchtap.modes.silent._matters import mode_matters, told
from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent._training import trained_by

EVERY = 50
"""Training steps between two looks at the others while no mode changes here."""
_FIRST = 4  # steps at which to look anyhow
_KEPT = 20  # mode changes of a rank that the others can still see
_COMPARED = 8  # ranks that rank 0 compares with; every other one compares with rank 0
_numbers = itertools.count()


@dataclass(slots=True)
class _Log:
    """What a rank tells the others."""

    step: int = 0
    """Training steps made under this guard."""
    entries: list[tuple[int, str, str]] = field(default_factory=list)
    """From this step on, the modes of all modules as 0 and 1, and the line that set the last of them."""

    def at(self, step: int) -> tuple[str, str] | None:
        """Modes and line at this step; None where that is not known any more."""
        held = [(modes, line) for since, modes, line in self.entries if since <= step]
        return held[-1] if held else None

    def to_bytes(self) -> bytes:
        return json.dumps([self.step, self.entries[-_KEPT:]]).encode()

    @classmethod
    def read(cls, data: bytes) -> _Log:
        step, entries = json.loads(data)
        return cls(step, [(since, modes, line) for since, modes, line in entries])


class RanksDiffer(Rule):
    """`mode.ranks_differ`.

    Each rank writes its modes, with the step since when they hold, to the store that the process group has anyway,
    and reads what others have written; compared are the modes of one and the same step. Never a collective, never a
    wait: where ranks diverge those would hang. So ranks are expected to open their guards in one order.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._name = ""
        self._log = _Log()
        self._version = -1
        self._look_again = False
        self._reported: set[int] = set()
        self._broken = False

    def stepped(self, optimizer: Optimizer) -> None:
        if self._broken or not _several_ranks() or not trained_by(self.watched, optimizer):
            return
        log = self._log
        log.step += 1
        changed = self._version != OBSERVER.version
        if changed:
            self._version = OBSERVER.version
            modes = self._modes()
            if not log.entries or log.entries[-1][1] != modes:
                log.entries.append((log.step, modes, self._line()))
        if changed or self._look_again or log.step <= _FIRST or log.step % EVERY == 0:
            self._exchange()
        self._look_again = changed

    def left(self) -> None:
        if self._log.step and not self._broken and _several_ranks():
            self._exchange()

    def _exchange(self) -> None:
        self._name = self._name or f"torchtap/modes/{next(_numbers)}"
        rank, size = distributed.get_rank(), distributed.get_world_size()
        try:
            store = default_store()
            store.set(f"{self._name}/{rank}", self._log.to_bytes())
            others = range(1, min(size, _COMPARED + 1)) if rank == 0 else (0,)
            for other in others:
                key = f"{self._name}/{other}"
                if other not in self._reported and store.check([key]):
                    self._compare(rank, other, _Log.read(store.get(key)))
        except RuntimeError:  # a rank is gone, and the store with it: its own error tells of that
            self._broken = True

    def _compare(self, rank: int, other: int, theirs: _Log) -> None:
        common = min(self._log.step, theirs.step)
        steps = {since for log in (self._log, theirs) for since, _, _ in log.entries if since <= common}
        for step in sorted(steps | {common}):
            mine, other_one = self._log.at(step), theirs.at(step)
            if mine is None or other_one is None or len(mine[0]) != len(other_one[0]):
                continue
            differing = [
                module
                for module, here, there in zip(self._modules(), mine[0], other_one[0], strict=False)
                if here != there and mode_matters(module)
            ]
            if differing:
                self._reported.add(other)
                self._report(rank, other, step, differing, mine, other_one)
                return

    def _report(
        self,
        rank: int,
        other: int,
        step: int,
        differing: list[nn.Module],
        mine: tuple[str, str],
        theirs: tuple[str, str],
    ) -> None:
        index = next(i for i, module in enumerate(self._modules()) if module is differing[0])
        here, there = (("eval", "train")[int(modes[index])] for modes, _ in (mine, theirs))
        names = ", ".join(self.watched.path(each) or "the model itself" for each in differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        lines = [f"rank {each}: {line}" for each, line in ((rank, mine[1]), (other, theirs[1])) if line]
        self.watched.report(
            Finding(
                id="mode.ranks_differ",
                severity=Severity.WARN,
                where=self.watched.path(differing[0]) or "",
                seen=f"training step {step}: {here} mode on rank {rank}, {there} mode on rank {other} ({names}{more})",
                cause=f"last set by {'; '.join(lines)}" if lines else "set before the guard was entered",
                remedy="the same mode on every rank before each step: `with modes.eval_mode(model):` around what "
                "one rank alone evaluates",
            )
        )

    def _modules(self) -> list[nn.Module]:
        return [module for model in self.watched.models for module in modules(model)]

    def _modes(self) -> str:
        return "".join("1" if mode_of(module) else "0" for module in self._modules())

    def _line(self) -> str:
        kept = OBSERVER.last_change, OBSERVER.last_write  # the second where nothing has changed
        changes: Any = (kept[0].get(each) or kept[1].get(each) for each in self._modules())
        last = max((c.setter for c in changes if c is not None), key=lambda s: s.serial, default=None)
        return told(last) if last is not None else ""


def _several_ranks() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
