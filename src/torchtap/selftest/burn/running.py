"""Start the load in a test process of its own, watch it, and keep what was seen, however it ends.

Its own process, because the first one holds memory of the GPUs, and because what that one found is then safe.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchtap.selftest.burn.records import Burn, Watch
from torchtap.selftest.burn.sampler import Sampler
from torchtap.selftest.burn.saying import Scene, say_scene
from torchtap.selftest.facts import Facts, StepState
from torchtap.selftest.interpreter import users_python
from torchtap.selftest.kernel_log import KernelLog, XidEvent, new_events, read_kernel_log
from torchtap.selftest.limits import BURN_SILENCE_S, BURN_SLACK_S
from torchtap.selftest.probe import BOOT, read_lines
from torchtap.selftest.process import Answer, ask
from torchtap.selftest.status import Device

STEPS = {Device.CPU: "cpu.burn", Device.GPU: "gpu.burn"}


def burn(
    device: Device,
    seconds: float,
    *,
    smi: str | None = None,
    smi_timeout_s: float,
    silence_s: float = BURN_SILENCE_S,
    on_step: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    run: Callable[..., Answer] = ask,
    log: Callable[[], KernelLog] = read_kernel_log,
) -> Burn:
    """Load every GPU (with `Device.CPU` the CPU) for `seconds`, then say what was seen.

    `smi` is the path of nvidia-smi, `smi_timeout_s` the time for each of its answers. The load is taken for hung when
    it says nothing for `silence_s`. Never raises for what the machine does.
    """
    name = STEPS[device]
    before = log() if device is Device.GPU else None
    sampler = (
        Sampler(smi, timeout_s=smi_timeout_s, stop=stop) if smi is not None and device is Device.GPU else None
    )
    if on_step is not None:
        on_step("preparing the load")
    if sampler is not None:
        sampler.start()
    heard = _Heard(name, seconds, sampler, on_step)
    watch: Watch | None = None
    try:
        answer = run(
            [users_python(), "-c", BOOT, name, f"seconds={seconds:g}", f"silence={silence_s:g}"],
            timeout_s=seconds + BURN_SLACK_S + silence_s,
            on_line=heard,
            until=lambda: heard.at + 2 * silence_s,  # it looks itself, and says which GPU
            stop=stop,
        )
    finally:
        if sampler is not None:
            watch = sampler.stop(at_once=stop())
    child = read_lines(answer)
    step = child.step(name)
    if step.state is not StepState.DONE:
        step = replace(step, value=heard.value)
    problem, xids = "not read", tuple[XidEvent, ...]()
    if before is not None and not stop():
        after = log()
        problem = before.problem or after.problem
        xids = () if problem else new_events(before, after)
    return Burn(step=step, child=child, seconds=seconds, watch=watch, xids=xids, log_problem=problem)


def add_burn(
    facts: Facts,
    seconds: float,
    *,
    smi_timeout_s: float,
    silence_s: float = BURN_SILENCE_S,
    on_step: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Facts:
    """The facts, and what a load of so many seconds shows."""
    burned = burn(
        facts.device,
        seconds,
        smi=facts.smi.path if facts.smi is not None else None,
        smi_timeout_s=smi_timeout_s,
        silence_s=silence_s,
        on_step=on_step,
        stop=stop,
    )
    took = {"load": burned.child.answer.seconds}
    return replace(
        facts, burn=burned, interrupted=facts.interrupted or stop(), seconds={**facts.seconds, **took}
    )


class _Heard:
    """Listens to the test process: its newest numbers, and when it last said anything."""

    def __init__(
        self,
        name: str,
        seconds: float,
        sampler: Sampler | None,
        on_step: Callable[[str], None] | None,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._sampler = sampler
        self._on_step = on_step
        self.value: Mapping[str, object] = {}
        self.at = time.monotonic()

    def __call__(self, line: str) -> bool:
        """One line; True for progress, of which only the last is kept, here."""
        self.at = time.monotonic()
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(said, dict) or said.get("state") != "progress" or said.get("step") != self._name:
            return False
        value = said.get("value")
        if isinstance(value, dict):
            self.value = value
            self._tell()
        return True

    def _tell(self) -> None:
        elapsed, gpus = self.value.get("elapsed"), self.value.get("gpus")
        if not isinstance(elapsed, int | float) or not isinstance(gpus, list):
            return
        records: Sequence[Mapping[str, object]] = [each for each in gpus if isinstance(each, dict)]
        if self._sampler is not None and any(each.get("products") for each in records):
            self._sampler.loaded()
        if self._on_step is not None:
            now = self._sampler.now() if self._sampler is not None else {}
            self._on_step(say_scene(Scene(float(elapsed), self._seconds, records, now)))
