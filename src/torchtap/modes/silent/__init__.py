"""Mistakes with modes that raise nothing. A rule is a file; `RULES` names them all."""

from __future__ import annotations

from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent.changed_after_forward import ChangedAfterForward
from torchtap.modes.silent.dropout_changed import DropoutChanged
from torchtap.modes.silent.frozen_in_train import FrozenInTrain
from torchtap.modes.silent.no_effect import NoEffect
from torchtap.modes.silent.not_restored import NotRestored
from torchtap.modes.silent.ranks_differ import RanksDiffer
from torchtap.modes.silent.train_in_evaluation import TrainInEvaluation
from torchtap.modes.silent.unreached import Unreached

RULES: tuple[type[Rule], ...] = (
    # mistakes that show in time
    NotRestored,
    TrainInEvaluation,
    Unreached,
    ChangedAfterForward,
    DropoutChanged,
    FrozenInTrain,
    NoEffect,
    RanksDiffer,
)
