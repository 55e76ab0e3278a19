"""What training uses beyond single computations: DataLoader workers, torch.compile, recurrent networks."""

from __future__ import annotations

import re
from collections.abc import Callable

from torchtap.selftest.check import Check, Judged, Scope, UnreadableError, failed, passed, skipped, warned
from torchtap.selftest.checks.numbers import compared
from torchtap.selftest.checks.which import READS
from torchtap.selftest.facts import Facts, StepState
from torchtap.selftest.host import SHARED_MEMORY
from torchtap.selftest.status import Level
from torchtap.selftest.words import count

# What Inductor and Triton say where something they need is not installed.
MISSING: tuple[tuple[str, str], ...] = (
    (r"Python\.h: No such file or directory", "python_headers_missing"),
    (r"No working C\+\+ compiler found|Failed to find C compiler", "compiler_missing"),
    (r"No such file or directory: '[^']*(?:gcc|g\+\+|cc|c\+\+|clang)'", "compiler_missing"),
    (r"TritonMissing|Cannot find a working triton", "triton_missing"),
)


def missing(facts: Facts, step: str) -> tuple[str, str] | None:
    """(cause, the words that say so) where a step of compiling ended because a program is not installed."""
    said = facts.need_child.step(step)
    if said.state is not StepState.ERROR:
        return None
    for pattern, cause in MISSING:
        if words := re.search(pattern, said.error):
            return cause, words[0]
    return None


def compiling(step: str, cause: str) -> Callable[[Facts], Judged]:
    """A judge for a step that compiles: a missing program is a warning, because everything else works without it."""
    right = compared(step, cause)

    def judge(facts: Facts) -> Judged:
        found = missing(facts, step)
        if found is None:
            return right(facts)
        if step != "cpu.compile" and missing(facts, "cpu.compile") is not None:
            return skipped("needs", "needs torch.compile", need="torch.compile")
        return warned(found[0], found[1], error=found[1])

    return judge


def judge_workers(facts: Facts) -> Judged:
    """Batches that came through workers; where they did not, whether /dev/shm had room for them."""
    step = facts.need_child.done("host.workers")
    workers, needed = step.whole("workers"), step.whole("needed_mib")
    checked, wrong = step.whole("checked"), step.whole("wrong")
    error, room = step.maybe_text("error"), step.value.get("shm_mib")
    free = step.value.get("shm_free_mib")
    values: dict[str, object] = {
        "workers": workers,
        "shm_mib": room,
        "shm_free_mib": free,
        "needed_mib": needed,
    }
    if wrong < 0 or checked < 0 or (checked == 0 and error is None):
        raise UnreadableError(f"host.workers: {dict(step.value)!r}")
    if wrong:
        texts = {"wrong": f"{wrong:,}", "checked": f"{checked:,}"}
        return failed("workers_wrong", f"{wrong:,} of {count(checked, 'value')} wrong", **values, **texts)
    if error is None:
        return passed(f"{count(checked, 'value')} right through {count(workers, 'worker')}", **values)
    first = error.strip().splitlines()[0]
    if not isinstance(room, int) or (isinstance(free, int) and free < needed):
        has = f"{free} MiB free of {room} MiB" if isinstance(room, int) else "not there"
        return warned(
            "workers_without_room", f"{SHARED_MEMORY}: {has}; {first}", **values, room=has, error=first
        )
    return failed("workers_failed", first, **values, error=first)


CPU_CHECKS = (
    Check(
        id="host.workers",
        title="Do workers of a DataLoader hand over their batches?",
        reads=("child:host.workers",),
        needs=("torch.build", "host.shm"),
        judge=judge_workers,
        causes=("workers_without_room", "workers_wrong", "workers_failed"),
        on_error="workers_failed",
        scope=Scope.ANY,
        level=Level.FULL,
        source="192 MiB under way at once, three times Docker's default /dev/shm (limits.py)",
        see="df -h /dev/shm",
    ),
    Check(
        id="torch.compile",
        title="Does torch.compile work on the CPU?",
        reads=("child:cpu.compile",),
        needs=("torch.build",),
        judge=compiling("cpu.compile", "wrong_numbers_cpu"),
        causes=("compiler_missing", "python_headers_missing", "wrong_numbers_cpu", "compile_failed"),
        on_error="compile_failed",
        scope=Scope.ANY,
        level=Level.FULL,
        source="whole numbers, compared exactly with the same function not compiled",
        see="c++ --version",
    ),
)
GPU_CHECKS = (
    Check(
        id="gpu.recurrent",
        title="Do LSTM and GRU train through cuDNN as without it, in fp32 and mixed precision?",
        reads=("child:gpu.recurrent", *READS),
        needs=("gpu.rnn",),
        judge=compared("gpu.recurrent", "rnn_differs"),
        causes=("rnn_differs", "cudnn_mixed", "cudnn_refuses_gpu", "cudnn_failed", "gpu_memory_full"),
        on_error="cudnn_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="cuDNN on against cuDNN off, within limits.LSTM_TOLERANCE; autocast within limits.AMP_TOLERANCE",
    ),
    Check(
        id="gpu.compile",
        title="Does torch.compile work on every GPU?",
        reads=("child:gpu.compile", "child:cpu.compile", *READS),
        needs=("gpu.matmul",),
        judge=compiling("gpu.compile", "wrong_numbers"),
        causes=(
            "compiler_missing",
            "python_headers_missing",
            "triton_missing",
            "wrong_numbers",
            "compile_failed",
        ),
        on_error="compile_failed",
        scope=Scope.REAL_GPU,
        level=Level.FULL,
        source="whole numbers, compared exactly with the same function not compiled",
        see="cc --version",
    ),
)
