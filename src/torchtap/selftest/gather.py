"""Gather what the chosen checks read, in the one order that does not disturb what it looks at.

The picture of /dev and /sys comes first, because nvidia-smi and cuInit create device nodes when they run as root; then
nvidia-smi; then the test process. After an nvidia-smi that hung, nothing touches the GPU again: it would hang too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from torchtap.selftest.check import Check
from torchtap.selftest.child.steps import STEPS, with_needed
from torchtap.selftest.facts import Child, Facts, SmiFacts
from torchtap.selftest.host import read_host
from torchtap.selftest.kernel_log import KMSG, read_kernel_log
from torchtap.selftest.limits import FULL_TAKES, SMI_TIMEOUT_S
from torchtap.selftest.manifest import read_manifest
from torchtap.selftest.probe import run_child
from torchtap.selftest.process import ask
from torchtap.selftest.query import TIMEOUT_VARIABLE, ask_smi
from torchtap.selftest.status import Device, Level

# What is said to a person while it runs.
DOING = {
    "host": "looking at the host",
    "smi": "asking nvidia-smi",
    **{name: plan.doing for name, plan in STEPS.items() if plan.doing},
}


class SettingError(ValueError):
    """A setting of the self-test cannot be used: which one, what is allowed, what it is."""


def gather(
    checks: Iterable[Check],
    device: Device,
    *,
    timeout_s: float | None = None,
    on_step: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Facts:
    """Read what `checks` read. `timeout_s` replaces the time-outs; `on_step` hears in words what is being done.

    `stop` is asked several times a second; when it says yes, what runs is ended and the rest is not begun.

    Raises `SettingError` for an unusable TORCHTAP_SMI_TIMEOUT, and for nothing that the machine does.
    """
    reads = [read for check in checks for read in check.reads]
    fields = list(dict.fromkeys(read.removeprefix("smi:") for read in reads if read.startswith("smi:")))
    steps = list(dict.fromkeys(read.removeprefix("child:") for read in reads if read.startswith("child:")))
    also = [read.removeprefix("ask:") for read in reads if read.startswith("ask:")]
    smi_timeout_s = timeout_s if timeout_s is not None else smi_timeout(os.environ)
    seconds: dict[str, float] = {}

    def say(what: str) -> None:
        if on_step is not None and what in DOING:
            on_step(DOING[what] + how_far(what, steps))

    say("host")
    began = time.monotonic()
    host = read_host()
    seconds["host"] = time.monotonic() - began
    kernel = read_kernel_log() if KMSG in reads and device is Device.GPU else None
    smi: SmiFacts | None = None
    if fields and device is Device.GPU:
        say("smi")
        asked = ask_smi(fields, also=also, timeout_s=smi_timeout_s, run=partial(ask, stop=stop))
        smi = None if stop() else asked  # half an answer could be taken for a broken nvidia-smi
        seconds["smi"] = sum(answer.seconds for answer in asked.answers)
    if device is Device.CPU:
        steps = [step for step in steps if not STEPS[step].on_gpu]
    elif smi is not None and smi.hung:
        steps = [step for step in steps if not STEPS[step].asks_driver]
    child: Child | None = None
    if steps and not stop():
        child = run_child(steps, timeout_s=timeout_s, on_step=say, stop=stop)
        seconds |= {f"child:{name}": step.seconds for name, step in child.steps.items()}
    return Facts(
        device=device,
        host=host,
        kernel=kernel,
        smi=smi,
        child=child,
        manifest=read_manifest(),
        interrupted=stop(),
        seconds=seconds,
    )


def how_far(name: str, steps: Iterable[str]) -> str:
    """Behind the words for a step: the how-manieth it is, where they take minutes in all. Empty for level quick.

    >>> how_far("gpu.matmul", ["gpu.matmul", "gpu.speed"])
    ' (5 of 6; 2 to 5 min in all)'
    """
    names = with_needed(steps)
    if name not in names or all(STEPS[each].level is Level.QUICK for each in names):
        return ""
    return f" ({names.index(name) + 1} of {len(names)}; {FULL_TAKES} in all)"


def smi_timeout(env: Mapping[str, str]) -> float:
    """Seconds to wait for each nvidia-smi. Raises `SettingError`.

    >>> smi_timeout({"TORCHTAP_SMI_TIMEOUT": "2.5"}), smi_timeout({})
    (2.5, 20.0)
    """
    text = env.get(TIMEOUT_VARIABLE, "")
    if not text:
        return SMI_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise SettingError(f"{TIMEOUT_VARIABLE} must be seconds, above 0 and at most 3600; it is {text!r}")
    return seconds
