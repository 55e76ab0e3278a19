"""What NVML says of a GPU while it works: link, clocks, and why clocks are held back. By ctypes, without nvidia-smi.

Asked in the middle of a computation, when a process that starts first would come too late. Every reading is None where
NVML is not here or does not tell it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# Name -> (function of NVML, its argument between handle and result). nvml.h: NVML_CLOCK_SM is 1.
_READINGS: Mapping[str, tuple[str, tuple[int, ...], type[ctypes._SimpleCData[int]]]] = {
    "pcie_gen": ("nvmlDeviceGetCurrPcieLinkGeneration", (), ctypes.c_uint),
    "max_pcie_gen": ("nvmlDeviceGetMaxPcieLinkGeneration", (), ctypes.c_uint),  # of this GPU in this slot
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", (), ctypes.c_uint),
    "sm_mhz": ("nvmlDeviceGetClockInfo", (1,), ctypes.c_uint),
    "max_sm_mhz": ("nvmlDeviceGetMaxClockInfo", (1,), ctypes.c_uint),
    "reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", (), ctypes.c_ulonglong),
}


class Nvml:
    """One GPU, by the bus id or the UUID that torch tells."""

    def __init__(self, *, bus_id: str | None, uuid: str | None, library: ctypes.CDLL | None = None) -> None:
        self._handle: ctypes.c_void_p | None = None
        try:
            self._library = library if library is not None else ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        for name, text in (
            ("nvmlDeviceGetHandleByUUID", uuid),
            ("nvmlDeviceGetHandleByPciBusId_v2", bus_id),
        ):
            handle = ctypes.c_void_p()
            if text and self._call("nvmlInit_v2") and self._call(name, text.encode(), ctypes.byref(handle)):
                self._handle = handle
                return

    def read(self, *names: str) -> dict[str, int | None]:
        """The readings of these names: "pcie_gen", "max_pcie_gen", "pcie_width", "sm_mhz", "max_sm_mhz", "reasons"."""
        return {name: self._read(name) for name in names}

    def _read(self, name: str) -> int | None:
        if self._handle is None:
            return None
        function, arguments, kind = _READINGS[name]
        value = kind()
        if not self._call(function, self._handle, *arguments, ctypes.byref(value)):
            return None
        return int(value.value)

    def _call(self, function: str, *arguments: object) -> bool:
        try:
            return int(getattr(self._library, function)(*arguments)) == 0
        except AttributeError:
            return False
