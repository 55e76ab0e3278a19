"""A good load of ten minutes on one H200, to judge and to change. Written down, not measured."""

from __future__ import annotations

from collections.abc import Mapping

from torchtap.selftest.burn.records import Burn, Readings, Watch, WatchedGpu
from torchtap.selftest.burn.sampler import BUSY, CLOCKS, ECC, POWER, SM_CLOCK, TEMPERATURE
from torchtap.selftest.facts import Child, Step, StepState
from torchtap.selftest.limits import BURN_SLICES
from torchtap.selftest.process import Answer

SECONDS = 600.0
NUMBERS: Mapping[str, object] = {
    "index": 0,
    "name": "NVIDIA H200",
    "type": "bfloat16",
    "size": 8192,
    "memory_mib": 129_024,
    "products": 380_000,
    "checked": 380_000 * 8192**2,
    "wrong": 0,
    "tflops": 696.4,
    "course": [700.0, 699.0, *[696.0] * (BURN_SLICES - 2)],
}


def readings(least: float, most: float, count: int = 590) -> Readings:
    """Readings that rise from `least` to `most`."""
    return Readings(count=count, first=least, last=most, least=least, most=most, mean=(least + most) / 2)


def watched(index: int = 0, **changes: object) -> WatchedGpu:
    """A GPU that is well under load."""
    values: dict[str, object] = {
        "index": index,
        "name": "NVIDIA H200",
        "bus": f"00000000:4{index + 1}:00.0",
        "readings": {
            TEMPERATURE: readings(31, 68),
            POWER: readings(640, 700),
            SM_CLOCK: readings(1700, 1980),
            BUSY: readings(100, 100),
            CLOCKS: readings(0, 4),
            ECC: readings(0, 0, 592),
        },
        "replays": (0, 0),
        "course": ({"s": 0.0, TEMPERATURE: 31.0, POWER: 640.0, SM_CLOCK: 1980.0},),
    }
    return WatchedGpu(**{**values, **changes})  # type: ignore[arg-type]


def good_burn(*numbers: Mapping[str, object], gpus: tuple[WatchedGpu, ...] = (), **watch: object) -> Burn:
    """A load that found nothing. `numbers`: what differs, a GPU each; `gpus`, `watch`: what nvidia-smi said."""
    found = [{**NUMBERS, "index": n, **each} for n, each in enumerate(numbers or ({},))]
    step = Step(
        name="gpu.burn", state=StepState.DONE, value={"elapsed": SECONDS, "gpus": found}, seconds=SECONDS + 20
    )
    said: dict[str, object] = {"asked": 590, "gpus": gpus or tuple(watched(n) for n in range(len(found)))}
    return Burn(
        step=step,
        child=Child(
            steps={step.name: step},
            answer=Answer(command=("child",), rc=0, seconds=SECONDS + 30),
            finished=True,
        ),
        seconds=SECONDS,
        watch=Watch(**{**said, **watch}),  # type: ignore[arg-type]
        log_problem="",
    )
