"""The CPU computes too: on a machine without a GPU that is what there is to test, and a GPU is compared with it."""

from __future__ import annotations

from torchtap.selftest.check import Check, Scope
from torchtap.selftest.checks.numbers import compared

CHECKS = (
    Check(
        id="cpu.matmul",
        title="Does a matrix product on the CPU give the exact result?",
        reads=("child:cpu.matmul",),
        needs=("torch.build",),
        judge=compared("cpu.matmul", "wrong_numbers_cpu"),
        causes=("wrong_numbers_cpu", "computation_failed"),
        on_error="computation_failed",
        scope=Scope.ANY,
        source="whole numbers, exact in 64-bit integers (limits.py)",
    ),
    Check(
        id="cpu.rnn",
        title="Does an LSTM on the CPU run forward and backward as its formula says?",
        reads=("child:cpu.rnn",),
        needs=("torch.build",),
        judge=compared("cpu.rnn", "wrong_numbers_cpu"),
        causes=("wrong_numbers_cpu", "computation_failed"),
        on_error="computation_failed",
        scope=Scope.ANY,
        source="the definition of torch.nn.LSTM, within limits.LSTM_TOLERANCE",
    ),
)
