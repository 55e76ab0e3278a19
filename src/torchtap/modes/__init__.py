"""Train and eval mode: reproduce, see and avoid what goes wrong with them.

- `emulate_cudnn()`: cuDNN's rule for RNNs on a CPU, with the genuine autograd node and error text.
  `TORCHTAP_EMULATE_CUDNN=1` opens it for the whole process when this is imported.
- `check_backward(loss, model)`: which RNN calls would make backward raise on cuDNN, told before it runs.
- `guard(model)`: watches a training run; names module, line and remedy when backward raises, and silent mistakes.
- `eval_mode(model)`, `preserve_modes(model)`, `differentiable_eval(model)`, `without_cudnn()`: fixes that restore.
- `describe(model)`: which module is in which mode, what the mode changes there, and what looks odd.
"""

from __future__ import annotations

import os

from torchtap._findings import Finding, Severity
from torchtap._switch import emulation_asked
from torchtap.modes._warn import ModeWarning
from torchtap.modes.backward import BackwardReport, check_backward
from torchtap.modes.emulate import emulate_cudnn, emulate_in_this_process
from torchtap.modes.fixes import differentiable_eval, eval_mode, preserve_modes, without_cudnn
from torchtap.modes.guard import Guard, guard
from torchtap.modes.tree import ModeTree, describe

__all__ = [
    "BackwardReport",
    "Finding",
    "Guard",
    "ModeTree",
    "ModeWarning",
    "Severity",
    "check_backward",
    "describe",
    "differentiable_eval",
    "emulate_cudnn",
    "eval_mode",
    "guard",
    "preserve_modes",
    "without_cudnn",
]

if emulation_asked(os.environ):
    emulate_in_this_process()
