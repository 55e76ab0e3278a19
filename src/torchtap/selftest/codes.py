"""What cuInit's codes mean: code -> name and causes, the first whose condition holds.

Codes and names: cuda.h (CUresult). Causes: torch with a libcuda that returns each code, and the public reports named
in docs/selftest.md. A code that is not here is `cuda_error`, with the name that libcuda itself gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchtap.selftest.facts import Facts
from torchtap.selftest.smi.texts import HMM_ERROR


@dataclass(frozen=True, slots=True)
class Code:
    """One code: its name, and (condition, cause id) pairs in the order they are tried; the last always holds."""

    name: str
    causes: tuple[tuple[Callable[[Facts], bool], str], ...]

    def cause(self, facts: Facts) -> str:
        """The cause, given everything else that is known."""
        return next(cause for holds, cause in self.causes if holds(facts))


def always(_: Facts) -> bool:
    """The last condition of every code."""
    return True


def chooses_gpus(facts: Facts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES is set at all."""
    return "CUDA_VISIBLE_DEVICES" in facts.host.env


def hides_every_gpu(facts: Facts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves nothing: CUDA stops reading it at the first entry that does not exist.

    An index is only known to be wrong where nvidia-smi told how many GPUs there are.
    """
    if not chooses_gpus(facts):
        return False
    first = facts.host.env["CUDA_VISIBLE_DEVICES"].partition(",")[0].strip()
    rows = facts.smi.rows if facts.smi is not None else ()
    if first.isdecimal():
        return bool(rows) and int(first) >= len(rows)
    uuids = [row.text("uuid") or "" for row in rows]
    uuids += [mig for gpu in (facts.smi.listed if facts.smi is not None else ()) for mig in gpu.mig]
    return not first.startswith(("GPU-", "MIG-")) or (
        bool(rows) and not any(uuid.startswith(first) for uuid in uuids)
    )


def lacks_uvm(facts: Facts) -> bool:
    """Whether GPU nodes are here and /dev/nvidia-uvm is not."""
    paths = {node.path for node in facts.host.nodes}
    return "/dev/nvidiactl" in paths and "/dev/nvidia-uvm" not in paths


def compat_first(facts: Facts) -> bool:
    """Whether a compat folder is on the loader path."""
    return "/compat" in facts.host.env.get("LD_LIBRARY_PATH", "")


def has_hmm_error(facts: Facts) -> bool:
    """Whether the kernel log, where it can be read, tells that nvidia-uvm could not reserve addresses."""
    lines = facts.kernel.lines if facts.kernel is not None else ()
    return any(HMM_ERROR.search(line.text) for line in lines)


CODES: dict[int, Code] = {
    3: Code("CUDA_ERROR_NOT_INITIALIZED", ((always, "cuda_incomplete_driver"),)),
    34: Code("CUDA_ERROR_STUB_LIBRARY", ((always, "libcuda_stub"),)),
    46: Code("CUDA_ERROR_DEVICE_UNAVAILABLE", ((always, "gpu_busy"),)),
    100: Code(
        "CUDA_ERROR_NO_DEVICE",
        ((hides_every_gpu, "cuda_visible_devices"), (lacks_uvm, "uvm_missing"), (always, "no_cuda_device")),
    ),
    101: Code(
        "CUDA_ERROR_INVALID_DEVICE", ((chooses_gpus, "invalid_device_ordinal"), (always, "no_cuda_device"))
    ),
    304: Code("CUDA_ERROR_OPERATING_SYSTEM", ((always, "os_call_failed"),)),
    802: Code(
        "CUDA_ERROR_SYSTEM_NOT_READY", ((has_hmm_error, "hmm_error"), (always, "fabric_manager_missing"))
    ),
    803: Code(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ((compat_first, "libcuda_compat"), (always, "driver_library_mismatch")),
    ),
    804: Code("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", ((always, "compat_not_supported"),)),
    999: Code(
        "CUDA_ERROR_UNKNOWN",
        ((lacks_uvm, "uvm_missing"), (has_hmm_error, "hmm_error"), (always, "cuda_unknown_error")),
    ),
}
UNKNOWN_CODE = "cuda_error"
