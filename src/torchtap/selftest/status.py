"""The words of a self-test: statuses, levels, devices, and the closed set of remedies.

Everything here is data that users type, read in a report or match in JSON. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Status(str, Enum):
    """What one check says. Only `PASS` and `WARN` are good; `UNKNOWN` means that nobody can say."""

    PASS = "pass"  # noqa: S105  # no password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


# In "3 passed, 1 failed".
COUNTED = {
    Status.PASS: "passed",
    Status.WARN: "warned",
    Status.FAIL: "failed",
    Status.UNKNOWN: "unknown",
    Status.SKIP: "skipped",
}


class Level(str, Enum):
    """How much time a check may take. Each level includes the ones before it."""

    QUICK = "quick"  # seconds: at every start, needs no root
    FULL = "full"  # minutes: also speed, memory, GPUs together; for a new host
    BURN = "burn"  # as long as asked: also hours of load

    def includes(self, other: Level) -> bool:
        """Whether a self-test of this level runs checks of the other.

        >>> Level.FULL.includes(Level.QUICK), Level.FULL.includes(Level.BURN)
        (True, False)
        """
        order = list(Level)
        return order.index(other) <= order.index(self)


class Device(str, Enum):
    """Whether this machine is meant to have a GPU."""

    GPU = "gpu"
    CPU = "cpu"  # no GPU, by design: checks of a GPU are skipped


class Remedy(str, Enum):
    """What a person does about a cause. A closed set, so that a fleet can count and automate by it."""

    RECREATE_CONTAINER = "recreate_container"  # remove it and start a new one, with other options
    FIX_ENVIRONMENT = "fix_environment"  # change or unset a variable, then run again
    FIX_PERMISSIONS = "fix_permissions"  # of device nodes: groups, modes, SELinux
    FIX_IMAGE = "fix_image"  # take driver files out of the image; rebuild
    CHANGE_VARIANT = "change_variant"  # another image variant fits this driver or GPU
    REINSTALL_TORCH = "reinstall_torch"  # the Python packages are not what they should be
    INSTALL_DRIVER = "install_driver"  # on the host
    UPDATE_DRIVER = "update_driver"  # on the host
    LOAD_DRIVER = "load_driver"  # on the host: load kernel modules, create device nodes
    CONFIGURE_HOST = "configure_host"  # a service or setting outside the container
    CONFIGURE_GPU = "configure_gpu"  # MIG, compute mode
    FREE_GPU = "free_gpu"  # another process holds it
    RESET_GPU = "reset_gpu"  # or reboot the host where a reset is refused
    REBOOT_HOST = "reboot_host"
    CHECK_HARDWARE = "check_hardware"  # power, cooling, seating
    REPLACE_GPU = "replace_gpu"  # return it to the vendor
    ATTACH_GPU = "attach_gpu"  # this machine has none; or say so: --device cpu
    RUN_AGAIN = "run_again"  # more time, or another way of asking
    REPORT_BUG = "report_bug"  # Torchtap's own fault


_WORST_FIRST = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS)


def worst(statuses: Iterable[Status]) -> Status:
    """The verdict over many statuses: fail, else unknown, else warn, else pass.

    Skips do not count, and nothing but skips is `UNKNOWN`: a self-test in which no check ran proves nothing.

    >>> worst([Status.PASS, Status.SKIP, Status.WARN]).value
    'warn'
    >>> worst([Status.SKIP]).value
    'unknown'
    """
    found = set(statuses)
    return next((status for status in _WORST_FIRST if status in found), Status.UNKNOWN)
