"""All checks, in the order in which causes are looked for: the first one that fails names the first cause.

A check that did not pass stops those that need it, so one fault gives one cause and not a list of its consequences.
"""

from torchtap.selftest.check import Check
from torchtap.selftest.checks import (
    burn,
    cpu,
    cuda,
    device,
    driver,
    equals,
    gpu,
    host,
    kernel,
    memory,
    sharing,
    speed,
    together,
    torch_build,
    training,
)

CHECKS: tuple[Check, ...] = (
    *torch_build.CHECKS,
    *cpu.CHECKS,
    *device.CHECKS,
    *driver.CHECKS,
    *gpu.STATE_CHECKS,
    sharing.FREE,
    sharing.LICENCE,
    *equals.CHECKS,
    *kernel.CHECKS,
    *host.CHECKS,
    *training.CPU_CHECKS,
    *cuda.CHECKS,
    sharing.VISIBLE,
    *gpu.COMPUTE_CHECKS,
    *memory.CHECKS,
    *speed.CHECKS,
    *training.GPU_CHECKS,
    *together.CHECKS,
    *burn.CHECKS,
)

__all__ = ["CHECKS"]
