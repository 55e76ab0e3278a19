"""What is known after a load: plain records, bounded in size however long it lasted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from torchtap.selftest.facts import Child, Step, StepState
from torchtap.selftest.kernel_log import XidEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One value of one GPU, as it was read under load: how often, the extremes, the first, the last, the mean."""

    count: int
    first: float
    last: float
    least: float
    most: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedGpu:
    """One GPU as nvidia-smi reported it, second by second.

    A field is in `readings` when the GPU reported it at all, and in `unread` when it held an error or garbage.
    """

    index: int
    name: str = ""
    bus: str = ""
    lost: str = ""  # how it went out of reach; "" if it never did
    lost_after_s: float = 0.0
    readings: Mapping[str, Readings] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    slowed: Mapping[str, int] = field(
        default_factory=dict
    )  # by what (`sampler.SLOWED`) -> in how many readings
    replays: tuple[int | None, int | None] = (None, None)  # PCIe replays before and after
    course: tuple[Mapping[str, float], ...] = ()  # at most `limits.BURN_COURSE_POINTS` moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What nvidia-smi said during a load."""

    asked: int = 0  # under load
    unread: int = 0  # of those: no answer, or none that can be read
    why: str = ""  # the last reason for one that could not be read
    hung: bool = False  # it gave no answer in its time again and again, so it was asked no more
    waited_s: float = 0.0  # for each of those
    gone: str = ""  # what it said in place of any GPU, when that was its last word
    gpus: tuple[WatchedGpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """All that a load has shown. `step.value` holds the numbers, also where it did not come to its end."""

    step: Step
    child: Child
    seconds: float  # how long it was to last
    watch: Watch | None = None  # None: there is no nvidia-smi, or no GPU by design
    xids: tuple[XidEvent, ...] = ()  # written to the kernel log meanwhile
    log_problem: str = "not read"  # why the kernel log could not be read; "" where it was

    def describe(self) -> str:
        """All of it as text, without the course: the evidence of the checks that look at it."""
        numbers = {key: value for key, value in self.step.value.items() if key != "gpus"}
        gpus = self.step.value.get("gpus")
        lines = [
            f"{self.step.name}: {self.step.state.value} {self.step.error}".rstrip(),
            json.dumps(numbers, default=str),
        ]
        lines += [json.dumps(each, default=str) for each in gpus] if isinstance(gpus, list) else []
        if self.watch is not None:
            watch = self.watch
            lines.append(
                f"nvidia-smi: asked {watch.asked} times, {watch.unread} not readable {watch.why}".rstrip()
            )
            lines += [
                json.dumps({**asdict(gpu), "course": len(gpu.course)}, default=str) for gpu in watch.gpus
            ]
        lines += [xid.line for xid in self.xids]
        if self.step.state not in (StepState.DONE, StepState.STOPPED):
            lines.append(self.child.answer.errors.strip())
        return "\n".join(line for line in lines if line)
