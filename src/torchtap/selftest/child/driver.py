"""The driver without torch: device nodes, libcuda and cuInit, through ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
import re

from torchtap.selftest.child.mapped import mapped
from torchtap.selftest.child.running import LeaveOutError, Reporter, Values

MARKER = "torchtap_simulated_gpu"


def open_nodes(_: Reporter) -> Values:
    """Open each device node for reading and writing: only that shows what a device cgroup or SELinux allows.

    They stay open: without persistence mode the driver would start the GPU again for each opening.
    """
    names = sorted(name for name in os.listdir("/dev") if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|dxg", name))  # noqa: PTH208
    nodes: dict[str, str] = {}
    for name in names:
        path = f"/dev/{name}"
        try:
            os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            nodes[path] = errno.errorcode.get(error.errno or 0, str(error.errno))
        else:
            nodes[path] = "ok"
    return {"nodes": nodes}


def cuda_library(reporter: Reporter) -> Values:
    """Load the driver's two libraries, and say which files that were."""
    values: Values = {"simulated": False, "error": None}
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {**values, "found": False, "error": str(error), "path": None, "nvml_path": None}
    try:
        values["simulated"] = ctypes.c_int.in_dll(library, MARKER).value != 0
    except ValueError:
        values["simulated"] = False
    reporter.cuda = library
    reporter.simulated = values["simulated"]
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        nvml = None
    else:
        nvml = next(iter(mapped("libnvidia-ml.so")), None)
    return {**values, "found": True, "path": next(iter(mapped("libcuda.so")), None), "nvml_path": nvml}


def cuda_init(reporter: Reporter) -> Values:
    """cuInit(0) as plain C: its code says more than torch, which often says nothing at all."""
    library = reporter.cuda
    if library is None:
        raise LeaveOutError("libcuda is not here")
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    has_version = library.cuDriverGetVersion(ctypes.byref(version)) == 0
    code = int(library.cuInit(0))
    reporter.cuda_code = code
    if code == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    return {
        "code": code,
        "name": _code_name(library, code),
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}" if has_version else None,
        "count": count.value,
    }


def _code_name(library: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    try:
        library.cuGetErrorName(code, ctypes.byref(name))
    except AttributeError:
        return ""
    return (name.value or b"").decode("ascii", "replace")
