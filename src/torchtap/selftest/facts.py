"""Everything that was gathered, as typed records: what checks look at. Nothing here reads or judges.

The readers of this module are strict: a value that is missing or of another type raises `UnreadableError`, so that no
check can take garbage for health.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from torchtap.selftest.check import UnreadableError
from torchtap.selftest.host import Host
from torchtap.selftest.kernel_log import KernelLog
from torchtap.selftest.manifest import Manifest
from torchtap.selftest.process import Answer
from torchtap.selftest.smi import Judgement, ListedGpu, Row
from torchtap.selftest.status import Device

if TYPE_CHECKING:
    from torchtap.selftest.burn.records import Burn

START = "its start"  # the name of what comes before the first step


class StepState(str, Enum):
    """How a step of the test process ended."""

    DONE = "done"
    ERROR = "error"  # a Python exception: `Step.error` holds its text
    CRASHED = "crashed"  # the process was ended by a signal in this step
    HUNG = "hung"  # the time was up in this step
    SILENT = "silent"  # the process ended in this step without a word
    STOPPED = "stopped"  # Ctrl-C, or a signal, in this step
    NOT_REACHED = "not reached"  # it ended before this step
    LEFT_OUT = "left out"  # not asked for, or not possible after what an earlier step found


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the test process: how it ended, and its values."""

    name: str
    state: StepState
    value: Mapping[str, object] = field(default_factory=dict)
    error: str = ""  # "RuntimeError: ...", or why it was left out
    where: str = ""  # the last thing it said it was doing, as in "GPU 1"
    seconds: float = 0.0  # how long it took; where it was ended, since its last word
    end: Answer | None = None  # the end of the process, where it was ended in this step

    def whole(self, key: str) -> int:
        """A whole number. Raises `UnreadableError` for anything else (True and False are no numbers)."""
        value = self.value.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnreadableError(f"{self.name}: {key} is {value!r}, not a whole number")
        return value

    def text(self, key: str) -> str:
        """A text that is not empty. Raises `UnreadableError` for anything else."""
        value = self.value.get(key)
        if not isinstance(value, str) or not value:
            raise UnreadableError(f"{self.name}: {key} is {value!r}, not a text")
        return value

    def maybe_text(self, key: str) -> str | None:
        """A text, or None where the key is there and holds none. Raises `UnreadableError` for anything else."""
        if key in self.value and self.value[key] is None:
            return None
        return self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, possibly empty. Raises `UnreadableError` for anything else."""
        value = self.value.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UnreadableError(f"{self.name}: {key} is {value!r}, not a list of texts")
        return tuple(value)

    def records(self, key: str) -> tuple[Step, ...]:
        """A list of records, each read like a step. Raises `UnreadableError` for anything else or none."""
        value = self.value.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise UnreadableError(f"{self.name}: {key} is {value!r}, not a list of records")
        return tuple(Step(name=self.name, state=self.state, value=item) for item in value)


class NotDoneError(Exception):
    """A step gave no result. Carries the step, and the process's end."""

    def __init__(self, step: Step, child: Child) -> None:
        super().__init__(f"{step.name}: {step.state.value}")
        self.step = step
        self.child = child


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What the test process said, step by step, and how it ended."""

    steps: Mapping[str, Step]
    answer: Answer  # exit status, standard error, time
    finished: bool  # it came to its own end

    def step(self, name: str) -> Step:
        """How a step ended; `NOT_REACHED` where the process never came to it.

        Where it did not even begin, every step ended as its start did.
        """
        return self.steps.get(name) or self.steps.get(START) or Step(name=name, state=StepState.NOT_REACHED)

    def done(self, name: str) -> Step:
        """The step, if it gave a result. Raises `NotDoneError` where it did not, an exception of its own included."""
        step = self.step(name)
        if step.state is not StepState.DONE:
            raise NotDoneError(step, self)
        return step

    @property
    def broken_step(self) -> Step | None:
        """The step in which the process was ended, if it was."""
        bad = (StepState.CRASHED, StepState.HUNG, StepState.SILENT)
        return next((step for step in self.steps.values() if step.state in bad), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiFacts:
    """What nvidia-smi said: every question with its answer, and the rows joined over the questions."""

    path: str | None  # None: not found
    answers: tuple[Answer, ...] = ()
    judgement: Judgement | None = None  # over all answers; None where nothing was asked
    rows: tuple[Row, ...] = ()
    listed: tuple[ListedGpu, ...] = ()  # only where MIG is on
    refused: tuple[str, ...] = ()  # fields this driver does not know
    also: Mapping[str, Answer] = field(
        default_factory=dict
    )  # other questions by name (query.ALSO), where worth it

    @property
    def hung(self) -> bool:
        """Whether a question was not answered in its time."""
        return any(answer.timed_out for answer in self.answers)

    @property
    def raw(self) -> str:
        """Every question and answer as text."""
        parts = []
        for answer in self.answers:
            end = f"ended with {answer.rc}" if answer.rc is not None else "was ended"
            parts.append(
                f"$ {' '.join(answer.command)}\n{answer.text}{answer.errors}[{end}, {answer.seconds:.1f} s]"
            )
        return "\n".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts of one self-test."""

    device: Device
    host: Host
    smi: SmiFacts | None = None  # None: not gathered, because no chosen check reads it
    child: Child | None = None
    kernel: KernelLog | None = None  # None: not read, because no chosen check reads it
    manifest: Manifest | None = None  # None: there is none (outside the image)
    burn: Burn | None = None  # None: no load, or it was not begun
    interrupted: bool = False  # somebody asked to stop: what is missing was not reached
    seconds: Mapping[str, float] = field(default_factory=dict)  # what is read -> how long it took

    @property
    def need_smi(self) -> SmiFacts:
        """nvidia-smi's facts. Raises `UnreadableError` where they were not gathered."""
        if self.smi is None:
            raise UnreadableError("nvidia-smi was not asked")
        return self.smi

    @property
    def need_child(self) -> Child:
        """The test process. Raises `UnreadableError` where it was not run."""
        if self.child is None:
            raise UnreadableError("the test process was not run")
        return self.child

    @property
    def need_kernel(self) -> KernelLog:
        """The kernel log. Raises `UnreadableError` where it was not read."""
        if self.kernel is None:
            raise UnreadableError("the kernel log was not read")
        return self.kernel

    @property
    def need_burn(self) -> Burn:
        """What the load showed. Raises `UnreadableError` where it was not begun."""
        if self.burn is None:
            broken = self.child.broken_step if self.child is not None else None
            why = f", because the test process ended in {broken.name}" if broken is not None else ""
            raise UnreadableError(f"the load was not begun{why}")
        return self.burn

    @property
    def simulated(self) -> bool:
        """Whether libcuda is a test's simulation, by its marker symbol."""
        return self.child is not None and self.child.step("cuda.library").value.get("simulated") is True

    @property
    def cuda_started(self) -> bool:
        """Whether cuInit succeeded."""
        return self.child is not None and self.child.step("cuda.init").value.get("code") == 0
