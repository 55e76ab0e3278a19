"""What cuInit's codes mean: code -> name and causes, the first whose condition holds.

Codes and names: cuda.h (CUresult). Causes: torch with a libcuda that returns each code, and the public reports named
in docs/selftest.md. A code that is not here is `cuda_error`, with the name that libcuda itself gives it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torchtap.selftest.choosing import chooses_gpus, hides_every_gpu, missing_names
from torchtap.selftest.facts import Facts
from torchtap.selftest.log_events import Event, failures_here
from torchtap.selftest.references import has_nvswitch
from torchtap.selftest.smi import CellState, Row
from torchtap.selftest.smi.forms import read_query
from torchtap.selftest.smi.texts import HMM_ERROR

Condition = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Code:
    """One code: its name, and (condition, cause id) pairs in the order they are tried; the last always holds."""

    name: str
    causes: tuple[tuple[Condition, str], ...]

    def cause(self, facts: Facts) -> str:
        """The cause, given everything else that is known."""
        return next(cause for holds, cause in self.causes if holds(facts))


def always(_: Facts) -> bool:
    """The last condition of every code."""
    return True


# -- Device nodes ----------------------------------------------------------------------------------------------------
def uvm_not_loaded(facts: Facts) -> bool:
    """Whether /proc/devices lists the driver and not nvidia-uvm."""
    return facts.host.uvm_registered is False


def lacks_uvm(facts: Facts) -> bool:
    """Whether GPU nodes are here and /dev/nvidia-uvm is not."""
    paths = {node.path for node in facts.host.nodes}
    return "/dev/nvidiactl" in paths and "/dev/nvidia-uvm" not in paths


def lacks_mig_nodes(facts: Facts) -> bool:
    """Whether MIG is on and none of the nodes that open an instance is in this container; a host makes them itself."""
    if not facts.host.container:
        return False
    mig = any(row.text("mig.mode.current") == "Enabled" for row in _rows(facts))
    return mig and facts.host.mig_nodes == 0


# -- libcuda ---------------------------------------------------------------------------------------------------------
def is_compat(path: str) -> bool:
    """Whether a file lies in a folder of a cuda-compat package.

    >>> is_compat("/usr/local/cuda-13.0/compat/libcuda.so.1"), is_compat("/opt/compat32/lib/libcuda.so.1")
    (True, False)
    """
    return re.search(r"/(?:compat|cuda-compat[^/]*)(?:/|:|$)", path) is not None


def compat_first(facts: Facts) -> bool:
    """Whether libcuda comes from a compat folder: by the file that is loaded, else by the loader path."""
    path = facts.child.step("cuda.library").value.get("path") if facts.child is not None else None
    return is_compat(path if isinstance(path, str) else facts.host.env.get("LD_LIBRARY_PATH", ""))


# -- What nvidia-smi said --------------------------------------------------------------------------------------------
def is_exclusive(facts: Facts) -> bool:
    """Whether a GPU lets one process at a time compute."""
    return any((row.text("compute_mode") or "").startswith("Exclusive") for row in _rows(facts))


def lacks_licence(facts: Facts) -> bool:
    """Whether a virtual GPU says that it has no licence."""
    answer = facts.smi.also.get("licence") if facts.smi is not None else None
    leaves = read_query(answer.text) if answer is not None else ()
    status = [value for _, (path, value) in leaves if path[-1] == "License Status"]
    return any(value and not value.startswith(("Licensed", "N/A")) for value in status)


def fabric_is_not_it(facts: Facts) -> bool:
    """Whether every GPU says that its fabric is up, or is a board that has none."""
    rows = _rows(facts)
    return bool(rows) and all(_fabric_is_fine(row) for row in rows)


def _fabric_is_fine(row: Row) -> bool:
    if (row.text("fabric.state"), row.text("fabric.status")) == ("Completed", "Success"):
        return True
    # Boards with NVSwitch older than Hopper tell no fabric, so [N/A] says nothing there.
    told = "fabric.state" in row.cells and row.cells["fabric.state"].state is CellState.NOT_REPORTED
    return told and not has_nvswitch(row.text("name") or "")


def _rows(facts: Facts) -> tuple[Row, ...]:
    return facts.smi.rows if facts.smi is not None else ()


# -- The kernel and its log ------------------------------------------------------------------------------------------
def has_hmm_error(facts: Facts) -> bool:
    """Whether the kernel log, where it can be read, tells that nvidia-uvm could not reserve addresses."""
    lines = facts.kernel.lines if facts.kernel is not None else ()
    return any(HMM_ERROR.search(line.text) for line in lines)


def has_no_filter(facts: Facts) -> bool:
    """Whether no seccomp filter is at work in this process."""
    return facts.host.seccomp == 0


def logged(cause: str) -> Condition:
    """Whether the newest failure in the kernel log that can stop CUDA is this one."""

    def holds(facts: Facts) -> bool:
        event = event_behind(facts)
        return event is not None and event.finding.cause == cause

    return holds


def event_behind(facts: Facts) -> Event | None:
    """The newest failure in the kernel log that can stop CUDA."""
    return next((event for event in failures_here(facts) if event.finding.cause in LOGGED), None)


LOGGED = ("gpu_fell_off_bus", "gsp_timeout", "power_cable", "init_failed", "recovery_needed", "xid_reset")
_LOGGED = tuple((logged(cause), cause) for cause in LOGGED)

CODES: dict[int, Code] = {
    3: Code("CUDA_ERROR_NOT_INITIALIZED", ((always, "cuda_incomplete_driver"),)),
    34: Code("CUDA_ERROR_STUB_LIBRARY", ((always, "libcuda_stub"),)),
    46: Code(
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        (
            (lacks_licence, "vgpu_refused"),
            *_LOGGED,
            (is_exclusive, "gpu_held_alone"),
            (always, "gpu_busy"),
        ),
    ),
    100: Code(
        "CUDA_ERROR_NO_DEVICE",
        (
            (hides_every_gpu, "cuda_visible_devices"),
            (uvm_not_loaded, "uvm_not_loaded"),
            (lacks_uvm, "uvm_missing"),
            (lacks_mig_nodes, "mig_nodes_missing"),
            *_LOGGED,
            (always, "no_cuda_device"),
        ),
    ),
    101: Code(
        "CUDA_ERROR_INVALID_DEVICE",
        (
            (lambda facts: bool(missing_names(facts)), "invalid_device_ordinal"),
            (lambda facts: chooses_gpus(facts) and missing_names(facts) is None, "device_ordinal_doubted"),
            *_LOGGED,
            (always, "cuda_error"),
        ),
    ),
    304: Code(
        "CUDA_ERROR_OPERATING_SYSTEM",
        (*_LOGGED, (has_no_filter, "driver_call_failed"), (always, "os_call_failed")),
    ),
    802: Code(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        (
            (has_hmm_error, "hmm_error"),
            (fabric_is_not_it, "not_ready_without_fabric"),
            (always, "fabric_manager_missing"),
        ),
    ),
    803: Code(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ((compat_first, "libcuda_compat"), (always, "driver_library_mismatch")),
    ),
    804: Code("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", ((always, "compat_not_supported"),)),
    999: Code(
        "CUDA_ERROR_UNKNOWN",
        (
            (uvm_not_loaded, "uvm_not_loaded"),
            (lacks_uvm, "uvm_missing"),
            (has_hmm_error, "hmm_error"),
            *_LOGGED,
            (always, "cuda_unknown_error"),
        ),
    ),
}
UNKNOWN_CODE = "cuda_error"
# What "busy or unavailable" means, whoever says it: cuInit, or a later step's first use of a GPU.
BUSY = CODES[46]
BUSY_CAUSES = tuple(cause for _, cause in BUSY.causes)


def cause_of(facts: Facts) -> str | None:
    """The cause behind cuInit's code; None where it gave none, or 0."""
    code = facts.child.step("cuda.init").value.get("code") if facts.child is not None else None
    if not isinstance(code, int) or isinstance(code, bool) or code == 0:
        return None
    known = CODES.get(code)
    return known.cause(facts) if known is not None else UNKNOWN_CODE
