"""Mistakes with modes that raise nothing. A rule is a file; `RULES` names them all."""

from __future__ import annotations

from torchtap.modes.silent._rule import Rule
from torchtap.modes.silent.batchnorm_frozen import BatchNormFrozen
from torchtap.modes.silent.built_in_forward import BuiltInForward
from torchtap.modes.silent.changed_after_forward import ChangedAfterForward
from torchtap.modes.silent.compiled import Compiled
from torchtap.modes.silent.dropout_by_construction import DropoutByConstruction
from torchtap.modes.silent.dropout_changed import DropoutChanged
from torchtap.modes.silent.frozen_in_train import FrozenInTrain
from torchtap.modes.silent.no_effect import NoEffect
from torchtap.modes.silent.not_restored import NotRestored
from torchtap.modes.silent.ranks_differ import RanksDiffer
from torchtap.modes.silent.train_in_evaluation import TrainInEvaluation
from torchtap.modes.silent.train_overridden import TrainOverridden
from torchtap.modes.silent.unreached import Unreached
from torchtap.modes.silent.unregistered import Unregistered

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
    # mistakes in how the model is built
    Unregistered,
    TrainOverridden,
    BuiltInForward,
    DropoutByConstruction,
    BatchNormFrozen,
    # what is not seen
    Compiled,
)
