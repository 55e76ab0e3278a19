"""CUDA: libcuda, cuInit, and torch's own start of CUDA."""

from __future__ import annotations

import re

from torchtap.selftest.check import Check, Judged, Scope, UnreadableError, failed, passed, warned
from torchtap.selftest.checks.driver import driver_of, linux_libcuda_in_wsl
from torchtap.selftest.codes import (
    BUSY_CAUSES,
    CODES,
    LOGGED,
    UNKNOWN_CODE,
    cause_of,
    event_behind,
    is_compat,
)
from torchtap.selftest.compat import covered_by
from torchtap.selftest.facts import Facts, NotDoneError
from torchtap.selftest.log_events import index_at
from torchtap.selftest.status import Status
from torchtap.selftest.words import count, name_gpus
from torchtap.variants import Capability, fitting_variant


def judge_library(facts: Facts) -> Judged:
    """Which libcuda is loaded, and whether it belongs to the loaded kernel module."""
    step = facts.need_child.done("cuda.library")
    if step.value.get("found") is not True:
        return _judge_no_library(facts, step.text("error"))
    path = step.text("path")
    nvml = step.maybe_text("nvml_path")
    if "/stubs/" in path:
        return failed("libcuda_stub", path, path=path)
    if is_compat(path):
        return warned("libcuda_compat", path, path=path)
    if linux_libcuda_in_wsl(facts) and not facts.cuda_started and not facts.simulated:
        return failed("wsl_linux_driver", path, path=path)
    versions = {
        "libcuda": _file_version(path),
        "libnvidia-ml": _file_version(nvml or ""),
        "kernel module": facts.host.kernel_driver,
    }
    known = {name: version for name, version in versions.items() if version}
    if len(set(known.values())) > 1 and not facts.simulated:
        seen = ", ".join(f"{name} {version}" for name, version in known.items())
        return failed("driver_library_mismatch", seen, versions=f": {seen}", **known)
    asked = _lacks_compute(facts)
    if asked and facts.host.container and not facts.simulated:
        return warned("libcuda_not_given", path, path=path, capabilities=asked)
    return passed(path, path=path, **known)


def _judge_no_library(facts: Facts, error: str) -> Judged:
    # dlopen says which file it did not find: libcuda itself, or one that libcuda needs.
    if not error.startswith("libcuda.so.1: cannot open shared object file: No such file"):
        return failed("libcuda_broken", error, error=error)
    capabilities = _lacks_compute(facts)
    if capabilities is not None:
        why = f"NVIDIA_DRIVER_CAPABILITIES={capabilities} lacks compute"
    elif facts.host.container:
        why = "the driver's libraries were not added to this container"
    else:
        why = "the driver is installed in part only"
    return failed("libcuda_missing", "libcuda.so.1 is not on the loader path", capabilities=why)


def _lacks_compute(facts: Facts) -> str | None:
    """NVIDIA_DRIVER_CAPABILITIES, where it is set without compute; then the toolkit adds no libcuda."""
    asked = facts.host.env.get("NVIDIA_DRIVER_CAPABILITIES")
    return None if asked is None or {"compute", "all"} & set(asked.split(",")) else asked


def _file_version(path: str) -> str | None:
    found = re.search(r"\.so\.(\d{3}(?:\.\d+)+)$", path)
    return found[1] if found else None


def judge_simulated(facts: Facts) -> Judged:
    """Whether libcuda carries the marker of Torchtap's own tests."""
    step = facts.need_child.done("cuda.library")
    simulated = step.value.get("simulated")
    if not isinstance(simulated, bool):
        raise UnreadableError(f"cuda.library: simulated is {simulated!r}")
    if simulated:
        return warned("simulated", "libcuda carries the mark of a simulation", path=step.value.get("path"))
    return passed("libcuda carries no mark of a simulation")


def judge_init(facts: Facts) -> Judged:
    """cuInit's code."""
    step = facts.need_child.done("cuda.init")
    code, speaks = step.whole("code"), step.maybe_text("cuda")
    visible = facts.host.env.get("CUDA_VISIBLE_DEVICES", "")
    values: dict[str, object] = {"code": code, "cuda": speaks, "visible": visible or "''"}
    if code:
        known = CODES.get(code)
        name = known.name if known is not None else str(step.value.get("name") or "unknown to libcuda")
        cause = cause_of(facts) or UNKNOWN_CODE
        seen = f"cuInit gives {code}, {name}"
        values |= {
            "name": name,
            "path": facts.need_child.step("cuda.library").value.get("path"),
            "versions": "",
        }
        event = event_behind(facts) if cause in LOGGED else None
        if event is not None:
            seen = f"{seen}; {event}"
            bus = str(event.finding.values.get("bus") or "")
            index = index_at(facts.smi.rows if facts.smi is not None else (), bus) if bus else None
            values |= {**event.finding.values, "gpus": name_gpus([index], bus or None), "index": index or 0}
        return failed(cause, seen, **values)
    devices = step.whole("count")
    if devices <= 0 and not facts.simulated:
        return failed("no_cuda_device", "cuInit works, but there are 0 devices", **values)
    return passed(f"{count(devices, 'device')}, driver for CUDA {speaks}", **values, count=devices)


def named_by_init(facts: Facts) -> str | None:
    """The cause that `cuda.init` gives; None where it gives none, or is not judged because of libcuda."""
    try:
        return None if judge_library(facts).status is Status.FAIL else cause_of(facts)
    except (NotDoneError, UnreadableError):
        return None


def judge_torch_cuda(facts: Facts) -> Judged:
    """torch's start of CUDA, and whether it sees as many GPUs as nvidia-smi lists."""
    gpus = facts.need_child.done("torch.cuda").records("gpus")
    names = [gpu.text("name") for gpu in gpus]
    rows = facts.smi.rows if facts.smi is not None else ()
    # CUDA_VISIBLE_DEVICES chooses among them, and with MIG on one process sees one instance.
    chosen = "CUDA_VISIBLE_DEVICES" in facts.host.env
    mig = any(row.text("mig.mode.current") == "Enabled" for row in rows)
    values = {"usable": len(gpus), "listed": len(rows), "names": names}
    seen = f"{count(len(gpus), 'GPU')}: {', '.join(dict.fromkeys(names))}"
    if rows and not chosen and not mig and len(gpus) != len(rows):
        return failed("gpus_missing_in_cuda", f"{seen}; nvidia-smi lists {len(rows)}", **values)
    return passed(f"{seen}{' (CUDA_VISIBLE_DEVICES chooses)' if chosen else ''}", **values)


def judge_arch(facts: Facts) -> Judged:
    """Each GPU's compute capability against the code in this torch."""
    gpus = facts.need_child.done("torch.cuda").records("gpus")
    arch_list = facts.need_child.done("torch.build").texts("arch_list")
    how = {gpu.whole("index"): (_capability(gpu.text("capability")), gpu.text("name")) for gpu in gpus}
    covered = {index: covered_by(arch_list, at) for index, (at, _) in how.items()}
    for lack, cause, say in ((None, "arch_unsupported", failed), ("ptx", "arch_from_ptx", warned)):
        bad = [index for index, cover in covered.items() if cover == lack]
        if not bad:
            continue
        capability, name = how[bad[0]]
        which = f"{name_gpus(bad)} ({name}, sm_{capability[0]}{capability[1]})"
        fits = fitting_variant(driver_of(facts) or (), capability)
        return say(
            "arch_unsupported_by_all" if fits is None else cause,
            f"{which}; built for {' '.join(arch_list)}",
            gpus=which,
            index=bad[0],
            capability=f"{capability[0]}{capability[1]}",
            arch_list=" ".join(arch_list),
            fits=fits.name if fits is not None else None,
        )
    return passed(", ".join(sorted({f"sm_{major}{minor}" for (major, minor), _ in how.values()})))


def _capability(text: str) -> Capability:
    found = re.fullmatch(r"(\d+)\.(\d)", text, re.ASCII)
    if not found:
        raise UnreadableError(f"torch.cuda: capability is {text!r}")
    return int(found[1]), int(found[2])


CHECKS = (
    Check(
        id="lib.libcuda",
        title="Is the driver's libcuda here, and is it the right one?",
        reads=(
            "child:cuda.library",
            "/proc/driver/nvidia/version",
            "/sys/module/nvidia/version",
            "env:NVIDIA_DRIVER_CAPABILITIES",
            "env:LD_LIBRARY_PATH",
        ),
        needs=("device.nodes", "driver.smi"),
        judge=judge_library,
        causes=(
            "libcuda_missing",
            "libcuda_broken",
            "libcuda_stub",
            "libcuda_compat",
            "libcuda_not_given",
            "wsl_linux_driver",
            "driver_library_mismatch",
        ),
        source="nerdctl#1023; CUDA error 34, 803, 804 (cuda.h)",
        see="ldconfig -p | grep libcuda",
    ),
    Check(
        id="gpu.simulated",
        title="Is this a real GPU?",
        reads=("child:cuda.library",),
        needs=("lib.libcuda",),
        judge=judge_simulated,
        causes=("simulated",),
        source="docs/decisions.md: the marker symbol of the tests' libcuda",
    ),
    Check(
        id="cuda.init",
        title="Does CUDA start?",
        reads=(
            "child:cuda.init",
            "env:CUDA_VISIBLE_DEVICES",
            "/dev/nvidia-uvm",
            "/dev/nvidia-caps",
            "/proc/devices",
            "/proc/self/status",
            "/dev/kmsg",
            "smi:compute_mode",
            "smi:mig.mode.current",
            "smi:fabric.state",
            "smi:fabric.status",
            "smi:pci.bus_id",
            "ask:licence",
        ),
        needs=("device.nodes", "driver.smi", "gpu.state", "lib.libcuda"),
        judge=judge_init,
        causes=(
            *dict.fromkeys(cause for code in CODES.values() for _, cause in code.causes),
            UNKNOWN_CODE,
        ),
        on_error="libcuda_broken",
        source="cuda.h (CUresult); codes.py",
        see="python -c 'import ctypes; print(ctypes.CDLL(\"libcuda.so.1\").cuInit(0))'",
    ),
    Check(
        id="torch.cuda",
        title="Does PyTorch start CUDA, and see every GPU?",
        reads=("child:torch.cuda", "smi:index", "smi:mig.mode.current", "env:CUDA_VISIBLE_DEVICES"),
        needs=("torch.build", "driver.version", "cuda.init"),
        judge=judge_torch_cuda,
        causes=(
            "torch_cuda_failed",
            "gpus_missing_in_cuda",
            *BUSY_CAUSES,
            "gpu_memory_full",
        ),
        on_error="torch_cuda_failed",
        scope=Scope.REAL_GPU,
        source="torch.cuda.init(); pytorch#130181 (MIG)",
        see="python -c 'import torch; torch.cuda.init(); print(torch.cuda.device_count())'",
    ),
    Check(
        id="torch.arch",
        title="Has this PyTorch code for these GPUs?",
        reads=("child:torch.cuda", "child:torch.build", "smi:driver_version"),
        needs=("torch.cuda",),
        judge=judge_arch,
        causes=("arch_unsupported", "arch_unsupported_by_all", "arch_from_ptx"),
        scope=Scope.REAL_GPU,
        source="torch.cuda._check_capability; variants.py",
        see="python -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())'",
    ),
)
