"""The driver: nvidia-smi answers, and the driver is new enough for this torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchtap.selftest.check import Check, Judged, UnreadableError, failed, passed, skipped, unknown, warned
from torchtap.selftest.facts import Facts
from torchtap.selftest.limits import TOOLKIT_DRIVERS
from torchtap.selftest.smi import Finding, Verdict
from torchtap.selftest.smi.fields import version as version_shape
from torchtap.selftest.words import count, name_gpus, version
from torchtap.variants import (
    CUDA_11_FLOOR,
    CUDA_12_FLOOR,
    CUDA_13_FLOOR,
    Capability,
    Driver,
    fitting_variant,
    parse_version,
)

# Minor-version compatibility: the CUDA major alone decides (variants.py tells the source). torch compares likewise.
FLOORS = {11: CUDA_11_FLOOR, 12: CUDA_12_FLOOR, 13: CUDA_13_FLOOR}
# Findings about the host, not about one GPU, that another check reports.
REPORTED_BY_GPU_STATE = frozenset({"mig_no_instance"})
_WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.RETRY, Verdict.WARN, Verdict.PASS)


def judge_smi(facts: Facts) -> Judged:
    """What nvidia-smi said as a whole. What it said of single GPUs is for the gpu.* checks."""
    smi = facts.need_smi
    if smi.path is None:
        library = facts.child.step("cuda.library").value if facts.child is not None else {}
        if library.get("found") is False:
            return failed("driver_libraries_missing", "neither nvidia-smi nor libcuda.so.1 is here")
        return warned(
            "smi_missing", f"nvidia-smi is not on PATH nor in its usual places{_capabilities(facts)}"
        )
    if smi.judgement is None:
        raise UnreadableError("nvidia-smi was not asked")
    mine = [
        each
        for each in smi.judgement.findings
        if each.gpu is None and each.cause not in REPORTED_BY_GPU_STATE
    ]
    mine += [
        each for each in smi.judgement.findings if each.gpu is not None and each.verdict is Verdict.UNKNOWN
    ]
    if mine:
        return _from_finding(facts, min(mine, key=lambda finding: _WORST_FIRST.index(finding.verdict)))
    names = [row.text("name") for row in smi.rows if row.text("uuid") and row.text("name")]
    if not names:
        raise UnreadableError("no GPU with a name and a UUID in nvidia-smi's answer")
    kinds = ", ".join(
        str(name) if names.count(name) == 1 else f"{names.count(name)} x {name}"
        for name in dict.fromkeys(names)
    )
    return passed(f"{count(len(smi.rows), 'GPU')}: {kinds}", gpus=len(smi.rows), names=names)


def _capabilities(facts: Facts) -> str:
    """Why the toolkit may not have brought nvidia-smi."""
    asked = facts.host.env.get("NVIDIA_DRIVER_CAPABILITIES")
    lacks = asked is not None and not {"utility", "all"} & set(asked.split(","))
    return f"; NVIDIA_DRIVER_CAPABILITIES={asked} lacks utility" if lacks else ""


def _from_finding(facts: Facts, finding: Finding) -> Judged:
    smi = facts.need_smi
    last = smi.answers[-1]
    values = {
        **finding.values,
        "uid": facts.host.uid,
        "rc": last.rc,
        "gpus": name_gpus([finding.gpu], finding.values.get("bus")),
        "index": finding.values.get("bus") or "0",
        "versions": _versions(facts),
    }
    seen = finding.line.strip() or _how_it_ended(facts)
    how = {Verdict.FAIL: failed, Verdict.WARN: warned}.get(finding.verdict, unknown)
    linux = linux_libcuda_in_wsl(facts) if finding.cause == "wsl_blocked" else None
    if linux is not None:
        return how("wsl_linux_driver", f"{seen}; libcuda is {linux}", **values, path=linux)
    return how(finding.cause, seen, **values)


def linux_libcuda_in_wsl(facts: Facts) -> str | None:
    """The loaded libcuda, where this is WSL and it is not Windows': that one lies in /usr/lib/wsl, unversioned."""
    path = facts.child.step("cuda.library").value.get("path") if facts.child is not None else None
    if not facts.host.wsl or not isinstance(path, str) or path.startswith("/usr/lib/wsl/"):
        return None
    return path if re.search(r"\.so\.\d{3}\.", path) else None


def _how_it_ended(facts: Facts) -> str:
    last = facts.need_smi.answers[-1]
    if last.not_started:
        return f"{last.command[0]}: {last.not_started}"
    if last.timed_out:
        stuck = last.stuck_pid
        end = (
            "ended by its pid"
            if stuck is None
            else f"pid {stuck} is stuck in the kernel and could not be ended"
        )
        return f"{last.ending}; {end}"
    first = next((line.strip() for line in last.text.splitlines() if line.strip()), "")
    return f"{last.ending}, first line {first[:60]!r}" if first else f"{last.ending}, nothing printed"


def _versions(facts: Facts) -> str:
    loaded = facts.host.kernel_driver
    return f" (loaded: {loaded})" if loaded else ""


def driver_of(facts: Facts) -> Driver | None:
    """The driver's version: from nvidia-smi, else from the kernel's files; None where nobody tells."""
    rows = facts.smi.rows if facts.smi is not None else ()
    texts = [row.text(name) for name in ("driver_version", "kmd_version") for row in rows]
    for text in (*texts, facts.host.kernel_driver):
        if text:
            return parse_version(version_shape(text).partition(" ")[0])
    return None


def judge_version(facts: Facts) -> Judged:
    """The driver against what this torch needs; without its number, the CUDA version it speaks."""
    torch = facts.need_child.done("torch.import")
    cuda = torch.maybe_text("cuda")
    if cuda is None:
        return skipped("not_applicable", "this torch is built without CUDA")
    major = int(cuda.partition(".")[0]) if cuda.partition(".")[0].isdecimal() else None
    floor = facts.manifest.driver_floor if facts.manifest is not None else None
    floor = floor or (FLOORS.get(major) if major is not None else None)
    if floor is None or major is None:
        raise UnreadableError(f"no driver floor is known for CUDA {cuda}")
    driver = driver_of(facts)
    if driver is not None:
        return _compare(facts, driver, floor, f"PyTorch with CUDA {cuda}")
    spoken = facts.need_child.step("cuda.init").value.get("cuda")
    if not isinstance(spoken, str) or not spoken.partition(".")[0].isdecimal():
        return unknown("version_unreadable", "no version anywhere", floor=version(floor))
    spoken_major = int(spoken.partition(".")[0])
    if spoken_major >= major:
        return passed(f"speaks CUDA {spoken} (its own number is not readable)", cuda=spoken)
    values = {
        "driver": f"for CUDA {spoken}",
        "floor": f"one for CUDA {major}",
        "build": f"PyTorch with CUDA {cuda}",
    }
    at_least = FLOORS.get(spoken_major, ())  # what a driver that speaks this CUDA must be
    return _too_old(facts, at_least, f"speaks CUDA {spoken}; {cuda} is needed", values)


def _compare(facts: Facts, driver: Driver, floor: Driver, build: str) -> Judged:
    values = {"driver": version(driver), "floor": version(floor), "build": build}
    seen = f"{version(driver)} (needed: {version(floor)})"
    if own := _toolkits_own(build, driver):
        seen = f"{version(driver)} (needed: {version(floor)}; its CUDA came with {version(own)}, which PTX may need)"
    return passed(seen, **values) if driver >= floor else _too_old(facts, driver, seen, values)


def _toolkits_own(build: str, driver: Driver) -> Driver | None:
    """The driver that this CUDA came with, where it is newer: then minor-version compatibility is at work."""
    major, _, minor = build.rpartition(" ")[2].partition(".")
    known = TOOLKIT_DRIVERS.get((int(major), int(minor))) if major.isdecimal() and minor.isdecimal() else None
    return known if known is not None and driver < known else None


def _too_old(facts: Facts, driver: Driver, seen: str, values: Mapping[str, object]) -> Judged:
    fits = fitting_variant(driver, _capability(facts))
    if fits is None:
        return failed("driver_too_old_for_all", seen, **values)
    return failed("driver_too_old", seen, **values, fits=fits.name)


def _capability(facts: Facts) -> Capability | None:
    """The lowest compute capability that nvidia-smi reports; None where it reports none."""
    rows = facts.smi.rows if facts.smi is not None else ()
    texts = [text for row in rows if (text := row.text("compute_cap"))]
    pairs = [text.split(".") for text in texts]
    return min(((int(major), int(minor)) for major, minor in pairs), default=None)


CHECKS = (
    Check(
        id="driver.smi",
        title="Does nvidia-smi answer, and what does it say?",
        reads=(
            "smi:index",
            "smi:name",
            "smi:uuid",
            "smi:pci.bus_id",
            "smi:memory.total",
            "child:cuda.library",
            "env:NVIDIA_DRIVER_CAPABILITIES",
            "/dev/kmsg",
        ),
        needs=("device.nodes",),
        judge=judge_smi,
        causes=(
            "smi_missing",
            "smi_hung",
            "smi_broken",
            "smi_crashed",
            "smi_unreadable",
            "smi_too_long",
            "smi_exit_code",
            "field_refused",
            "usage_error",
            "driver_not_loaded",
            "driver_library_mismatch",
            "driver_libraries_missing",
            "devices_revoked",
            "no_permission",
            "no_devices",
            "wsl_blocked",
            "wsl_linux_driver",
            "foreign_nvml",
            "gpu_lost",
            "gpu_fell_off_bus",
            "gpu_requires_reset",
            "power_cable",
            "interrupt_issue",
            "inforom_corrupt",
            "nvml_error",
        ),
        source="recorded outputs: tests/fixtures/smi/MANIFEST.md; exit codes: man nvidia-smi, and binaries 470-550",
        see="nvidia-smi",
    ),
    Check(
        id="driver.version",
        title="Is the driver new enough for this PyTorch?",
        reads=(
            "smi:driver_version",
            "smi:kmd_version",
            "smi:compute_cap",
            "/proc/driver/nvidia/version",
            "/sys/module/nvidia/version",
            "child:torch.import",
            "child:cuda.init",
            "manifest",
        ),
        needs=("torch.build", "device.nodes", "driver.smi"),
        judge=judge_version,
        causes=("driver_too_old", "driver_too_old_for_all", "version_unreadable"),
        source="CUDA release notes, minor-version compatibility: 13.x needs 580.65.06, 12.x 525.60.13, 11.x 450.80.02",
        see="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
    ),
)
