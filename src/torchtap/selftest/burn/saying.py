"""The line that is shown while the machine is under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchtap.selftest.burn.sampler import POWER, TEMPERATURE
from torchtap.selftest.words import count

# With more GPUs than this the line would not fit: the range over all of them.
MANY = 2


class Scene(NamedTuple):
    """A moment of the load: seconds since its beginning, of how many, what it found, and nvidia-smi's readings."""

    elapsed: float
    seconds: float
    gpus: Sequence[Mapping[str, object]]
    readings: Mapping[int, Mapping[str, float]]


def say_scene(scene: Scene) -> str:
    """One line: how far, how many errors, then each GPU's speed, temperature and power.

    >>> say_scene(Scene(61, 600, [{"index": 0, "tflops": 748.2, "wrong": 0}], {0: {TEMPERATURE: 64, POWER: 690.5}}))
    'burn 1:01 of 10:00, 0 wrong values; GPU 0: 748 TFLOP/s, 64 C, 690 W'
    """
    if not any(_number(each.get("products")) or _number(each.get("tflops")) for each in scene.gpus):
        return "filling the memory"
    wrong = int(sum(_number(each.get("wrong")) for each in scene.gpus))
    head = f"burn {_clock(scene.elapsed)} of {_clock(scene.seconds)}, {count(wrong, 'wrong value')}"
    speeds = [_number(each.get("tflops")) for each in scene.gpus]
    if len(scene.gpus) > MANY:
        now = [scene.readings.get(int(_number(each.get("index"))), {}) for each in scene.gpus]
        parts = [_range(speeds, "TFLOP/s")]
        for name, unit in ((TEMPERATURE, "C"), (POWER, "W")):
            if values := [each[name] for each in now if name in each]:
                parts.append(_range(values, unit))
        return f"{head}; {count(len(scene.gpus), 'GPU')}: {', '.join(parts)}"
    return "; ".join(
        [head, *(_one(each, speed, scene) for each, speed in zip(scene.gpus, speeds, strict=True))]
    )


def _one(record: Mapping[str, object], speed: float, scene: Scene) -> str:
    index = int(_number(record.get("index")))
    now = scene.readings.get(index, {})
    parts = [_range([speed], "TFLOP/s")]
    parts += [f"{now[name]:.0f} {unit}" for name, unit in ((TEMPERATURE, "C"), (POWER, "W")) if name in now]
    return f"{'CPU' if index < 0 else f'GPU {index}'}: {', '.join(parts)}"


def _range(values: Sequence[float], unit: str) -> str:
    least, most = (f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in (min(values), max(values)))
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _clock(seconds: float) -> str:
    """
    >>> _clock(61), _clock(3725)
    ('1:01', '1:02:05')
    """
    whole = max(int(seconds), 0)
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
