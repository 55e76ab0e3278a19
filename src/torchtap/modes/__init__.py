"""Train and eval mode: reproduce, see and avoid what goes wrong with them.

- `emulate_cudnn()`: cuDNN's rule for RNNs on a CPU, with the genuine autograd node and error text.
- `differentiable_eval(model)`: outputs of eval mode and a backward pass that works on cuDNN.
- `describe(model)`: which module is in which mode, what the mode changes there, and what looks odd.
"""

from __future__ import annotations

from torchtap.modes._findings import Finding, Severity
from torchtap.modes.backward import BackwardReport, check_backward
from torchtap.modes.emulate import emulate_cudnn
from torchtap.modes.fixes import differentiable_eval, eval_mode, preserve_modes, without_cudnn
from torchtap.modes.guard import Guard, guard
from torchtap.modes.tree import ModeTree, describe

__all__ = [
    "BackwardReport",
    "Finding",
    "Guard",
    "ModeTree",
    "Severity",
    "check_backward",
    "describe",
    "differentiable_eval",
    "emulate_cudnn",
    "guard",
]
