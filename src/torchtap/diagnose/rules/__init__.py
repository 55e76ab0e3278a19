"""All rules, the likeliest root cause first: of findings that do not explain each other, the earlier is told first."""

from __future__ import annotations

from torchtap.diagnose.rule import Rule
from torchtap.diagnose.rules import (
    activations,
    data,
    gradients,
    normalising,
    numbers,
    optimizing,
    outputs,
    ranks,
)

_FAMILIES = (optimizing, gradients, activations, normalising, numbers, data, outputs, ranks)
_BY_ID = {rule.id: rule for family in _FAMILIES for rule in family.RULES}

_ORDER = (
    "ranks.nonfinite",
    "ranks.gradients_differ",
    "ranks.out_of_sync",
    "ranks.steps_differ",
    "ranks.gradient_far_off",
    "nonfinite.input",
    "optimizer.other_parameters",
    "fp16.underflow",
    "gradients.cleared_before_step",
    "lr.zero",
    "parameter.undone",
    "optimizer.never_steps",
    "optimizer.no_effect",
    "parameter.rounded",
    "gradients.never_cleared",
    "gradients.cleared_rarely",
    "parameter.equal_units",
    "optimizer.frozen_moves",
    "parameter.shared_storage",
    "parameter.copied_not_tied",
    "input.constant",
    "embedding.untouched",
    "output.softmax_twice",
    "output.sigmoid_twice",
    "init.too_wide",
    "input.unscaled",
    "lr.collapsed",
    "lr.bounces",
    "weight_decay.too_large",
    "dropout.nearly_all",
    "activation.exploding",
    "recurrence.exploding",
    "update.too_large",
    "init.too_small",
    "activation.vanishing",
    "fp16.overflow",
    "gradient.exploding",
    "gradient.grows",
    "activation.grows",
    "activation.saturated",
    "softmax.one_choice",
    "attention.collapse",
    "layernorm.below_eps",
    "gradient.vanishing",
    "relu.dead",
    "batchnorm.tiny_batch",
    "batchnorm.momentum",
    "batchnorm.mismatch",
    "nonfinite.first",
    "parameter.no_gradient",
    "parameter.unused",
    "optimizer.misses_parameters",
    "parameter.frozen_inside",
    "mode.evaluation",
    "loss.nonfinite",
    "batch.same",
    "update.too_small",
    "output.constant",
    "parameter.never_updated",
    "loss.diverged",
    "loss.flat",
)

RULES: tuple[Rule, ...] = tuple(_BY_ID[name] for name in _ORDER)

__all__ = ["RULES"]
