"""Machines, as facts: a name, how they differ from a good host, and the one cause that must be named first.

Shared by the tests of checks, of reports and of texts. Rows of nvidia-smi come from the recorded H200 (examples.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchtap.selftest.burn.examples import good_burn, readings, watched
from torchtap.selftest.burn.records import WatchedGpu
from torchtap.selftest.burn.sampler import BRAKE, ECC, HEAT
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.child.steps import STEPS
from torchtap.selftest.examples import (
    GOOD_STEPS,
    H200,
    HOST,
    NVLINKS,
    PACKAGES,
    T4,
    child_answer,
    good,
    smi_answers,
)
from torchtap.selftest.facts import Facts, SmiFacts, Step, StepState
from torchtap.selftest.host import Host, Node, PciGpu
from torchtap.selftest.kernel_log import XidEvent, read_text
from torchtap.selftest.manifest import Manifest
from torchtap.selftest.probe import read_lines
from torchtap.selftest.process import Answer
from torchtap.selftest.query import ask_smi
from torchtap.selftest.status import Device

MANIFEST = Manifest(
    path="/opt/torchtap/manifest.json",
    variant="cu130",
    torch="2.14.1",
    cuda="13.0",
    cudnn=92400,
    arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    driver_floor=(580, 65, 6),
    nccl="2.30.7",
    triton="3.8.0",
    packages=PACKAGES,
)
YOURS = "/run/torchtap/env/lib/python3.12/site-packages"
MISSING = "libcuda.so.1: cannot open shared object file: No such file or directory"


@dataclass(frozen=True)
class Scenario:
    """One machine and what must be said of it: (check, status, cause) of the first finding; None for a pass."""

    name: str
    facts: Facts
    check: str
    status: str
    cause: str


def steps(**changes: Mapping[str, object] | None) -> dict[str, Mapping[str, object]]:
    """The good steps with values changed (`__` for a dot); None leaves the step out."""
    named = {name.replace("__", "."): change for name, change in changes.items()}
    merged: dict[str, Mapping[str, object]] = {}
    for name, value in GOOD_STEPS.items():
        change = named.get(name, {})
        if change is not None:
            merged[name] = {**value, **change}
    return merged


def child(dies_in: str = "", rc: int | None = 0, **changes: Mapping[str, object] | None) -> Facts:
    return replace(good(), child=read_lines(child_answer(steps(**changes), dies_in=dies_in, rc=rc)))


def error(step: str, text: str) -> Facts:
    """A step that ended in an exception; those that need it were left out, as the process itself does."""
    bad, lines = {step}, []
    for name, value in GOOD_STEPS.items():
        end: dict[str, object] = {"state": "done", "value": value}
        if name == step:
            end = {"state": "error", "error": text}
        elif bad & set(STEPS[name].after):
            bad.add(name)
            end = {"state": "left out", "error": f"{step} failed"}
        lines += [{"step": name, "state": "start"}, {"step": name, "seconds": 0.1, **end}]
    said = "".join(json.dumps(line) + "\n" for line in [*lines, {"state": "end"}])
    return replace(good(), child=read_lines(Answer(command=("child",), text=said, rc=0)))


def together(count: int, **changes: Mapping[str, object] | None) -> dict[str, Mapping[str, object]]:
    """The good steps of a host with this many GPUs: copies between each pair, and NCCL."""
    merged = dict(steps(**changes))
    if count > 1:
        pairs = [
            {"from": one, "to": other, "access": True, "checked": 8388608, "wrong": 0, "gb_s": 240.5}
            for one in range(count)
            for other in range(count)
            if one != other
        ]
        merged["gpu.peers"] = {"gpus": pairs}
        merged["gpu.nccl"] = {"count": count, "checked": count * 67108864, "wrong": 0, "bus_gb_s": 310.4}
    return merged


def two(**changes: Mapping[str, object]) -> Facts:
    """Two H200; the values of steps changed."""
    facts = rows({}, {})
    assert facts.child is not None
    values = {name: step.value for name, step in facts.child.steps.items()}
    for name, change in changes.items():
        values[name.replace("__", ".")] = {**values[name.replace("__", ".")], **change}
    return replace(facts, child=read_lines(child_answer(values)))


def good_records(step: str) -> list[dict[str, Any]]:
    """What a step says of each GPU, on a good host."""
    records = GOOD_STEPS[step]["gpus"]
    assert isinstance(records, list)
    return records


def each(step: str, *changes: Mapping[str, object]) -> dict[str, object]:
    """One record a GPU, like the good one with values changed."""
    (record,) = good_records(step)
    return {"gpus": [{**record, "index": n, **change} for n, change in enumerate(changes)]}


def speeds(**rates: float) -> dict[str, object]:
    """The good rates with some changed."""
    (record,) = good_records("gpu.speed")
    return {"tflops": {**record["tflops"], **rates}}


def rows(*changes: Mapping[str, str]) -> Facts:
    gpus = [
        {**H200, "index": str(n), "uuid": f"{H200['uuid'][:-1]}{n}", **change}
        for n, change in enumerate(changes)
    ]
    count = len(gpus)
    seen = [
        {
            "index": n,
            "name": "NVIDIA H200",
            "capability": "9.0",
            "memory_mib": 143156,
            "uuid": gpu["uuid"],
            "bus_id": None,
        }
        for n, gpu in enumerate(gpus)
    ]
    answered = replace(
        good(), child=read_lines(child_answer(together(count, torch__cuda={"gpus": seen})))
    ).child
    return replace(good(), smi=smi_answers(gpus), child=answered)


def denied(*checks: str) -> dict[str, str]:
    """Cells of these checks that this user may not read."""
    fields = [read for check in CHECKS if check.id in checks for read in check.reads]
    return {name.removeprefix("smi:"): "[Insufficient Permissions]" for name in fields}


def silent() -> dict[str, str]:
    """A GPU that says who it is, and [N/A] to everything else."""
    return {
        name: "[N/A]"
        for name in H200
        if name not in ("index", "name", "uuid", "pci.bus_id", "driver_version")
    }


def said(text: str, rc: int = 255, **options: object) -> Facts:
    """nvidia-smi prints this and nothing else; CUDA does not start either."""
    answer = Answer(command=("nvidia-smi",), text=text, rc=rc, seconds=0.1)
    facts = child(cuda__init={"code": 999, "count": 0}, torch__cuda=None)
    return replace(facts, smi=asked(replace(answer, **options)))  # type: ignore[arg-type]


def asked(answer: Answer) -> SmiFacts:
    return ask_smi(["index"], find=lambda: "/usr/bin/nvidia-smi", run=lambda *_, **__: answer)


def bare(**changes: object) -> Facts:
    """No device node: nvidia-smi and libcuda are not here either."""
    host = replace(HOST, **{"nodes": (), "env": {}, **changes})  # type: ignore[arg-type]
    no_cuda = {"found": False, "path": None, "nvml_path": None, "error": MISSING}
    facts = child(nodes={"nodes": {}}, cuda__library=no_cuda, cuda__init=None, torch__cuda=None)
    return replace(facts, host=host, smi=SmiFacts(path=None))


def code(number: int, host: Host = HOST, name: str = "") -> Facts:
    facts = child(cuda__init={"code": number, "name": name, "count": 0}, torch__cuda=None)
    return replace(facts, host=host)


def env(**variables: str) -> Host:
    return replace(HOST, env={**HOST.env, **variables})


def driver(version: str, capability: str = "7.5") -> Facts:
    library = {"path": f"/usr/lib/libcuda.so.{version}", "nvml_path": None}
    gpu = {**T4, "driver_version": version, "compute_cap": capability}
    facts = child(cuda__library=library, torch__cuda=None)
    return replace(facts, smi=smi_answers([gpu]), host=replace(HOST, driver_text="", module_version=version))


def opened(**nodes: str) -> Facts:
    """Opening nodes says this; CUDA does not start."""
    facts = said("Failed to initialize NVML: Unknown Error")
    named = {f"/dev/{name}": end for name, end in nodes.items()}
    return replace(
        facts,
        child=child(nodes={"nodes": named}, cuda__init={"code": 100, "count": 0}, torch__cuda=None).child,
    )


SECOND = {**H200, "index": "1", "uuid": f"{H200['uuid'][:-1]}1", "memory.used": "520"}
LINKED = "".join(
    f"GPU {n}: NVIDIA H200 (UUID: {gpu['uuid']})\n{NVLINKS}" for n, gpu in enumerate((H200, SECOND))
)


def other(**answers: str) -> Facts:
    """Two GPUs, and what nvidia-smi says to questions of `query.ALSO`."""
    return replace(rows({}, {}), smi=smi_answers([H200, SECOND], **answers))


def vgpu(status: str) -> Facts:
    said = f"GPU 00000000:02:00.0\n    vGPU Software Licensed Product\n        License Status : {status}\n"
    return replace(good(), smi=smi_answers([{**H200, "name": "NVIDIA H200-141C"}], licence=said))


def host(**changes: object) -> Facts:
    return replace(good(), host=replace(HOST, **changes))  # type: ignore[arg-type]


HMM = "nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap[pid:9] request_free_mem_region() err -34"


def logged(*lines: str, ago: float = 60.0, **changes: object) -> Facts:
    """The kernel log says this, so many seconds ago."""
    text = "".join(f"[ {90_000.0 - ago:.6f}] {line}\n" for line in lines)
    return replace(good(), kernel=read_text("[    0.5] Linux version 6.8\n" + text, now=90_000.0), **changes)  # type: ignore[arg-type]


def xid(number: int, text: str = "pid=4242, name=python, words", *, ago: float = 60.0) -> Facts:
    return logged(f"NVRM: Xid (PCI:0000:41:00): {number}, {text}", ago=ago)


def gpu(check: str, **values: object) -> Facts:
    changed: Mapping[str, object] = {"gpus": [{"index": 0, "checked": 8320, "wrong": 0, **values}]}
    return replace(good(), child=read_lines(child_answer({**GOOD_STEPS, check: changed})))


def failing(step: str, text: str) -> Facts:
    """Two GPUs, and a step that ended in an exception."""
    facts = two()
    assert facts.child is not None
    bad = Step(name=step, state=StepState.ERROR, error=text)
    return replace(facts, child=replace(facts.child, steps={**facts.child.steps, step: bad}))


def loaded(
    *numbers: Mapping[str, object],
    state: StepState = StepState.DONE,
    rc: int | None = 0,
    error: str = "",
    where: str = "",
    xids: tuple[XidEvent, ...] = (),
    gpus: tuple[WatchedGpu, ...] = (),
    **watch: object,
) -> Facts:
    """A good host, and what its load showed: numbers a GPU, the end of the step, what nvidia-smi said."""
    burn = good_burn(*numbers, gpus=gpus, **watch)
    answer = replace(burn.child.answer, rc=rc, timed_out=rc is None)
    step = replace(burn.step, state=state, error=error, where=where, end=answer)
    child = replace(burn.child, steps={step.name: step}, answer=answer)
    return replace(good(), burn=replace(burn, step=step, child=child, xids=xids))


def ended(step: str, state: StepState, answer: Answer) -> Facts:
    """A step that ended the process: after a crash the rest ran in another one, after a hang nothing more did."""
    facts = good()
    assert facts.child is not None
    names = list(facts.child.steps)
    hung = state is StepState.HUNG
    before = (
        {name: facts.child.steps[name] for name in names[: names.index(step)]} if hung else facts.child.steps
    )
    bad = Step(name=step, state=state, where="GPU 0", seconds=120.0, end=answer)
    return replace(facts, child=replace(facts.child, steps={**before, step: bad}, finished=False))


def left(step: str, answer: Answer) -> Facts:
    """The process ended in this step, and what it had said until then."""
    names = list(GOOD_STEPS)
    until = {name: GOOD_STEPS[name] for name in names[: names.index(step)]}
    text = child_answer(until, dies_in=step).text
    return replace(good(), child=read_lines(replace(answer, text=text)))


# A name, the step, how the process ended, the cause.
ENDS = (
    ("torch aborts", "cpu.matmul", Answer(command=("child",), rc=-6), "torch_crashed"),
    ("an instruction is missing", "cpu.matmul", Answer(command=("child",), rc=-4), "torch_crashed"),
    ("no memory left", "cpu.matmul", Answer(command=("child",), rc=-9), "child_killed"),
    ("no memory left on the GPU's side", "gpu.matmul", Answer(command=("child",), rc=-9), "child_killed"),
    ("a slow machine", "cpu.matmul", Answer(command=("child",), timed_out=True, seconds=30.0), "child_slow"),
    (
        "with words",
        "cpu.matmul",
        Answer(command=("child",), rc=2, errors="Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so.\n"),
        "child_ended",
    ),
    ("too many words", "cpu.matmul", Answer(command=("child",), too_long=True, errors="x\n"), "child_ended"),
)
STATUS_ALONE = {"fabric.state": "[N/A]", "fabric.status": "Failure"}
NO_UVM = replace(HOST, nodes=tuple(node for node in HOST.nodes if "uvm" not in node.path))
OFF_BUS = "Unable to determine the device handle for GPU0000:5E:00.0: Unknown Error"
ARCH = {"gpus": [{"index": 0, "name": "Tesla V100-SXM2-16GB", "capability": "7.0", "memory_mib": 16160}]}
KEPLER = {"gpus": [{"index": 0, "name": "Tesla K80", "capability": "3.7", "memory_mib": 11441}]}

WSL = replace(
    HOST,
    nodes=(Node(path="/dev/dxg", mode=0o20666, uid=0, gid=0, usable=True),),
    module_loaded=False,
    driver_text="",
    module_version="",
    pci=(),
    wsl=True,
    container=None,
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124\n"
NOT_COMMUNICATING = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)


def blocked(libcuda: str) -> Facts:
    """Windows keeps the GPU; this libcuda is loaded."""
    facts = said("Failed to initialize NVML: GPU access blocked by the operating system", rc=17)
    library = {"path": libcuda, "nvml_path": None}
    started = child(cuda__library=library, cuda__init={"code": 999, "count": 0}, torch__cuda=None)
    return replace(facts, child=started.child)


def unseen(answer: Answer) -> Facts:
    """A container that sees neither nodes nor driver, and what nvidia-smi says there."""
    return replace(bare(module_loaded=False, pci=(), driver_text="", module_version=""), smi=asked(answer))


NO_FABRIC = {**H200, "fabric.state": "[N/A]", "fabric.status": "[N/A]"}


def mig_listed() -> Facts:
    """MIG is on, and an instance is listed."""
    gpu = {**H200, "mig.mode.current": "Enabled"}
    listed = (
        f"GPU 0: NVIDIA H200 (UUID: {H200['uuid']})\n  MIG 1g.18gb Device 0: (UUID: MIG-{H200['uuid'][4:]})\n"
    )

    def run(command: Sequence[str], **_: object) -> Answer:
        fields = command[1].partition("=")[2].split(",")
        text = listed if command[1] == "-L" else ", ".join(gpu.get(name, "[N/A]") for name in fields)
        return Answer(command=tuple(command), text=text, rc=0)

    return replace(
        good(), smi=ask_smi(["mig.mode.current", "compute_cap"], find=lambda: "nvidia-smi", run=run)
    )


SCENARIOS = [
    Scenario("all is well", good(), "", "pass", ""),
    Scenario("all is well, in the image", replace(good(), manifest=MANIFEST), "", "pass", ""),
    # device.nodes
    Scenario(
        "bare host without GPU",
        bare(container=None, module_loaded=False, pci=(), driver_text="", module_version=""),
        "device.nodes",
        "fail",
        "no_gpu_in_host",
    ),
    Scenario(
        "container on such a host",
        bare(module_loaded=False, pci=()),
        "device.nodes",
        "fail",
        "no_gpu_in_container",
    ),
    Scenario("container without --gpus", bare(), "device.nodes", "fail", "container_without_gpu"),
    Scenario(
        "hidden by the image's variable",
        bare(env={"NVIDIA_VISIBLE_DEVICES": "void"}),
        "device.nodes",
        "fail",
        "gpu_hidden_from_container",
    ),
    Scenario("no /sys", bare(module_loaded=None, pci=None), "device.nodes", "fail", "nothing_visible"),
    Scenario(
        "driver not loaded",
        bare(module_loaded=False, pci=(PciGpu(address="0000:41:00.0", driver=""),)),
        "device.nodes",
        "fail",
        "driver_not_loaded",
    ),
    Scenario(
        "nouveau",
        bare(module_loaded=False, pci=(PciGpu(address="0000:41:00.0", driver="nouveau"),), container=None),
        "device.nodes",
        "fail",
        "nouveau_bound",
    ),
    Scenario(
        "vfio",
        bare(module_loaded=False, pci=(PciGpu(address="0000:41:00.0", driver="vfio-pci"),), container=None),
        "device.nodes",
        "fail",
        "vfio_bound",
    ),
    Scenario("nodes missing on a host", bare(container=None), "device.nodes", "fail", "nodes_missing"),
    Scenario("WSL without a GPU", bare(container=None, wsl=True), "device.nodes", "fail", "wsl_no_gpu"),
    Scenario(
        "a container in WSL",
        bare(wsl=True, module_loaded=False, pci=()),
        "device.nodes",
        "fail",
        "nothing_visible",
    ),
    Scenario(
        "TCC mode",
        replace(blocked("/usr/lib/wsl/drivers/nv_dispi/libcuda.so.1.1"), host=WSL),
        "driver.smi",
        "fail",
        "wsl_blocked",
    ),
    Scenario(
        "a Linux driver in WSL",
        replace(blocked("/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06"), host=WSL),
        "driver.smi",
        "fail",
        "wsl_linux_driver",
    ),
    Scenario(
        "a Linux libcuda in WSL, nvidia-smi works",
        replace(
            child(
                cuda__library={"path": "/usr/lib/x86_64-linux-gnu/libcuda.so.590.48.01", "nvml_path": None},
                cuda__init={"code": 100, "count": 0},
                torch__cuda=None,
            ),
            host=WSL,
        ),
        "lib.libcuda",
        "fail",
        "wsl_linux_driver",
    ),
    Scenario(
        "no nodes, other versions",
        unseen(Answer(command=("nvidia-smi",), text=MISMATCH, rc=18)),
        "driver.smi",
        "fail",
        "driver_library_mismatch",
    ),
    Scenario(
        "no nodes, a hang",
        unseen(Answer(command=("nvidia-smi",), timed_out=True, seconds=20.0)),
        "driver.smi",
        "fail",
        "smi_hung",
    ),
    Scenario(
        "no nodes, no driver",
        unseen(Answer(command=("nvidia-smi",), text=NOT_COMMUNICATING, rc=9)),
        "device.nodes",
        "fail",
        "no_gpu_in_container",
    ),
    Scenario("cgroup lost the devices", opened(nvidia0="EPERM"), "device.nodes", "fail", "devices_revoked"),
    Scenario("nodes of another group", opened(nvidiactl="EACCES"), "device.nodes", "fail", "no_permission"),
    Scenario("stale node", opened(nvidiactl="ENXIO"), "device.nodes", "fail", "node_stale"),
    # driver.smi
    Scenario(
        "nvidia-smi hangs",
        replace(
            child(nodes=None, cuda__init=None, cpu__rnn=None, torch__cuda=None, cpu__compile=None),
            smi=asked(Answer(command=("nvidia-smi",), timed_out=True, seconds=20.0, stuck_pid=4711)),
        ),
        "driver.smi",
        "fail",
        "smi_hung",
    ),
    Scenario(
        "no nvidia-smi, CUDA works",
        replace(good(), smi=SmiFacts(path=None)),
        "driver.smi",
        "warn",
        "smi_missing",
    ),
    Scenario(
        "devices without libraries",
        replace(bare(), host=HOST),
        "driver.smi",
        "fail",
        "driver_libraries_missing",
    ),
    Scenario(
        "a file that cannot run",
        said("", not_started="Exec format error"),
        "driver.smi",
        "fail",
        "smi_broken",
    ),
    Scenario("nvidia-smi crashes", said("", rc=-11), "driver.smi", "fail", "smi_crashed"),
    Scenario("nvidia-smi babbles", said("lorem ipsum", rc=0), "driver.smi", "unknown", "smi_unreadable"),
    Scenario(
        "a usage error", said("ERROR: Option --x is not recognized."), "driver.smi", "unknown", "usage_error"
    ),
    Scenario(
        "a field of ours is refused",
        said('Field "index" is not a valid field to query.', rc=2),
        "driver.smi",
        "unknown",
        "field_refused",
    ),
    Scenario(
        "libraries of another version",
        said(
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124", rc=18
        ),
        "driver.smi",
        "fail",
        "driver_library_mismatch",
    ),
    Scenario("no devices", said("No devices were found", rc=6), "driver.smi", "fail", "no_devices"),
    Scenario(
        "foreign library",
        said(
            "Mismatch in versions between nvidia-smi and NVML.\nAre you sure you are using nvidia-smi provided"
        ),
        "driver.smi",
        "fail",
        "foreign_nvml",
    ),
    Scenario("off the bus", said(OFF_BUS), "driver.smi", "fail", "gpu_fell_off_bus"),
    Scenario(
        "power",
        said("Failed to initialize NVML: Insufficient External Power"),
        "driver.smi",
        "fail",
        "power_cable",
    ),
    Scenario("interrupts", said("", rc=10), "driver.smi", "fail", "interrupt_issue"),
    Scenario(
        "a new word of NVML", said("Failed to initialize NVML: Moon"), "driver.smi", "fail", "nvml_error"
    ),
    Scenario(
        "nvidia-smi never stops printing",
        said("xxx", rc=None, too_long=True),  # type: ignore[arg-type]
        "driver.smi",
        "unknown",
        "smi_too_long",
    ),
    # gpu.state, gpu.ecc, gpu.clocks, gpu.pcie
    Scenario(
        "one of two lost",
        rows({}, {name: "[GPU is lost]" for name in H200 if name not in ("index", "name", "uuid")}),
        "gpu.state",
        "fail",
        "gpu_lost",
    ),
    Scenario(
        "reset", rows({"memory.total": "[GPU requires reset]"}), "gpu.state", "fail", "gpu_requires_reset"
    ),
    Scenario("action", rows({"gpu_recovery_action": "Reset"}), "gpu.state", "fail", "recovery_needed"),
    Scenario("error cell", rows({"temperature.gpu": "ERR!"}), "gpu.state", "fail", "gpu_unreadable"),
    Scenario("a silent GPU beside an equal one", rows({}, silent()), "gpu.state", "unknown", "not_told"),
    Scenario(
        "no clock reasons of one of two",
        rows({"clocks_throttle_reasons.active": "[N/A]"}, {}),
        "gpu.clocks",
        "unknown",
        "not_told",
    ),
    Scenario(
        "ECC on, errors not told",
        rows({"ecc.errors.uncorrected.volatile.total": "[N/A]"}),
        "gpu.ecc",
        "unknown",
        "not_told",
    ),
    Scenario("fabric status alone", rows(STATUS_ALONE), "gpu.state", "fail", "fabric_not_ready"),
    Scenario(
        "a riser",
        rows({"pcie.link.width.current": "1", "pcie.link.width.max": "1"}),
        "gpu.pcie",
        "warn",
        "pcie_slot",
    ),
    Scenario(
        "more lanes than there are",
        rows({"pcie.link.width.max": "8"}),
        "driver.smi",
        "unknown",
        "smi_unreadable",
    ),
    Scenario(
        "one UUID twice",
        rows({}, {"uuid": f"{H200['uuid'][:-1]}0"}),
        "driver.smi",
        "unknown",
        "smi_unreadable",
    ),
    Scenario(
        "broken sensor",
        rows({"temperature.gpu.tlimit": "[Unknown Error]"}),
        "gpu.state",
        "warn",
        "field_unreadable",
    ),
    Scenario(
        "an error instead of the action",
        rows({}, {"gpu_recovery_action": "[Unknown Error]"}),
        "driver.smi",
        "unknown",
        "smi_unreadable",
    ),
    Scenario("state not permitted", rows(denied("gpu.state")), "gpu.state", "unknown", "cells_denied"),
    Scenario(
        "nothing permitted of one of two",
        rows({}, denied("gpu.state", "gpu.ecc", "gpu.clocks", "gpu.pcie")),
        "gpu.state",
        "unknown",
        "cells_denied",
    ),
    Scenario("ECC of one of two", rows({}, denied("gpu.ecc")), "gpu.ecc", "unknown", "cells_denied"),
    Scenario(
        "MIG without instances",
        replace(
            rows({"mig.mode.current": "Enabled"}),
            smi=ask_smi(
                ["mig.mode.current"],
                find=lambda: "nvidia-smi",
                run=lambda command, **_: Answer(
                    command=tuple(command),
                    text=(
                        f"GPU 0: NVIDIA H200 (UUID: {H200['uuid']})\n"
                        if command[1] == "-L"
                        else ", ".join(
                            {**H200, "mig.mode.current": "Enabled"}.get(name, "[N/A]")
                            for name in command[1].partition("=")[2].split(",")
                        )
                    ),
                    rc=0,
                ),
            ),
        ),
        "gpu.state",
        "fail",
        "mig_no_instance",
    ),
    Scenario("prohibited", rows({"compute_mode": "Prohibited"}), "gpu.state", "fail", "compute_prohibited"),
    Scenario(
        "exclusive", rows({"compute_mode": "Exclusive_Process"}), "gpu.state", "warn", "compute_exclusive"
    ),
    Scenario("fabric", rows({"fabric.state": "In Progress"}), "gpu.state", "fail", "fabric_not_ready"),
    Scenario(
        "memory errors",
        rows({}, {"ecc.errors.uncorrected.volatile.total": "7"}),
        "gpu.ecc",
        "fail",
        "ecc_uncorrected",
    ),
    Scenario(
        "old errors",
        rows({"ecc.errors.uncorrected.aggregate.total": "2"}),
        "gpu.ecc",
        "warn",
        "ecc_uncorrected_earlier",
    ),
    Scenario(
        "SRAM",
        rows({"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "Yes"}),
        "gpu.ecc",
        "fail",
        "ecc_threshold",
    ),
    Scenario("remap pending", rows({"remapped_rows.pending": "Yes"}), "gpu.ecc", "fail", "remap_pending"),
    Scenario("remap failed", rows({"remapped_rows.failure": "Yes"}), "gpu.ecc", "fail", "remap_failed"),
    Scenario(
        "remap exhausted", rows({"remapped_rows.uncorrectable": "600"}), "gpu.ecc", "fail", "remap_exhausted"
    ),
    Scenario("retirement", rows({"retired_pages.pending": "Yes"}), "gpu.ecc", "fail", "retirement_pending"),
    Scenario("pages", rows({"retired_pages.double_bit.count": "20"}), "gpu.ecc", "warn", "pages_retired"),
    Scenario(
        "heat", rows({"clocks_throttle_reasons.active": "0x48"}), "gpu.clocks", "warn", "thermal_slowdown"
    ),
    Scenario("brake", rows({"clocks_throttle_reasons.active": "0x80"}), "gpu.clocks", "warn", "power_brake"),
    Scenario(
        "slowdown", rows({"clocks_throttle_reasons.active": "0x8"}), "gpu.clocks", "warn", "hw_slowdown"
    ),
    Scenario("hot", rows({"temperature.gpu": "88"}), "gpu.clocks", "warn", "too_hot"),
    Scenario("narrow", rows({"pcie.link.width.current": "8"}), "gpu.pcie", "warn", "pcie_narrow"),
    # gpu.free, gpu.licence, gpu.nvlink, gpu.firmware
    Scenario("memory in use", rows({"memory.used": "1025"}), "gpu.free", "warn", "gpu_in_use"),
    Scenario(
        "a process on the second GPU",
        other(processes=f"{SECOND['uuid']}, 4711, 520\n"),
        "gpu.free",
        "warn",
        "gpu_in_use",
    ),
    Scenario(
        "a vGPU without a licence",
        vgpu("Unlicensed (Unrestricted)"),
        "gpu.licence",
        "warn",
        "vgpu_unlicensed",
    ),
    Scenario(
        "one link is down on both",
        other(nvlink=LINKED.replace("Link 17: 26.562 GB/s", "Link 17: <inactive>")),
        "gpu.nvlink",
        "fail",
        "nvlink_down",
    ),
    Scenario(
        "one link is down on both, bridged boards",
        other(
            nvlink=LINKED.replace("Link 17: 26.562 GB/s", "Link 17: <inactive>").replace("H200", "H100 NVL")
        ),
        "gpu.nvlink",
        "warn",
        "nvlink_partly",
    ),
    Scenario(
        "no link behind an NVSwitch",
        other(nvlink=LINKED.replace("26.562 GB/s", "<inactive>")),
        "gpu.nvlink",
        "fail",
        "nvlink_all_down",
    ),
    Scenario(
        "fewer links than the other",
        other(nvlink="<inactive>".join(LINKED.rsplit("26.562 GB/s", 1))),
        "gpu.nvlink",
        "fail",
        "nvlink_inactive",
    ),
    Scenario(
        "another VBIOS",
        rows({}, {"vbios_version": "96.00.89.00.01"}, {}),
        "gpu.firmware",
        "warn",
        "firmware_differs",
    ),
    # host.*
    Scenario("little shared memory", host(shared_memory=64 << 20), "host.shm", "warn", "shm_small"),
    Scenario(
        "Docker's shared memory, two GPUs",
        replace(rows({}, {}), host=host(shared_memory=64 << 20).host),
        "host.shm",
        "fail",
        "shm_too_small",
    ),
    Scenario("no size of it", host(shared_memory=None), "host.shm", "unknown", "unreadable"),
    Scenario(
        "locked memory, InfiniBand",
        host(infiniband=True, limits={"memlock": 65536, "nofile": 1024 << 10}),
        "host.limits",
        "warn",
        "memlock_limited",
    ),
    Scenario(
        "open files", host(limits={"memlock": -1, "nofile": 1024}), "host.limits", "warn", "few_open_files"
    ),
    # env.visible
    Scenario(
        "a second GPU that is not here",
        replace(good(), host=env(CUDA_VISIBLE_DEVICES="0,1")),
        "env.visible",
        "fail",
        "visible_not_here",
    ),
    # kernel.log
    Scenario("Xid 79", xid(79), "kernel.log", "fail", "gpu_fell_off_bus"),
    Scenario(
        "a damaged infoROM",
        rows({"inforom.checksum_validation": "invalid"}),
        "gpu.state",
        "warn",
        "inforom_corrupt",
    ),
    Scenario(
        "a blocked nvidia-smi in the log",
        logged("INFO: task nvidia-smi:4321 blocked for more than 120 seconds."),
        "kernel.log",
        "fail",
        "smi_hung",
    ),
    Scenario(
        "a blocked driver in the log",
        logged("INFO: task nvidia-modeset/:321 blocked for more than 120 seconds."),
        "kernel.log",
        "fail",
        "driver_blocked",
    ),
    Scenario(
        "a PCIe error",
        logged("nvidia 0000:41:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
        "kernel.log",
        "fail",
        "pcie_error",
    ),
    Scenario(
        "a lost GPU in the log",
        logged("NVRM: nvGpuOpsReportFatalError: NV_ERR_GPU_IS_LOST"),
        "kernel.log",
        "fail",
        "gpu_lost",
    ),
    Scenario("Xid 119", xid(119), "kernel.log", "fail", "gsp_timeout"),
    Scenario("Xid 48", xid(48), "kernel.log", "fail", "ecc_uncorrected"),
    Scenario("Xid 64", xid(64), "kernel.log", "fail", "remap_failed"),
    Scenario("Xid 74", xid(74), "kernel.log", "fail", "nvlink_error"),
    Scenario("Xid 54", xid(54), "kernel.log", "fail", "power_cable"),
    Scenario("Xid 62", xid(62), "kernel.log", "fail", "xid_reset"),
    Scenario(
        "Xid 154",
        xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)"),
        "kernel.log",
        "fail",
        "recovery_needed",
    ),
    Scenario("an Xid that nobody knows", xid(999), "kernel.log", "warn", "xid_other"),
    Scenario("Xid 79, a day ago", xid(79, ago=86_000), "kernel.log", "warn", "xid_earlier"),
    Scenario(
        "RmInitAdapter",
        logged("NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x65:1792)"),
        "kernel.log",
        "fail",
        "init_failed",
    ),
    # driver.version
    Scenario("old driver", driver("550.163.01"), "driver.version", "fail", "driver_too_old"),
    Scenario("very old driver", driver("470.82.01"), "driver.version", "fail", "driver_too_old_for_all"),
    Scenario(
        "no version anywhere",
        replace(
            child(cuda__init={"cuda": None}),
            smi=smi_answers([{**H200, "driver_version": "[N/A]"}]),
            host=replace(HOST, driver_text="", module_version=""),
        ),
        "driver.version",
        "unknown",
        "version_unreadable",
    ),
    # lib.libcuda
    Scenario(
        "utility only, and a libcuda of the image",
        replace(good(), host=env(NVIDIA_DRIVER_CAPABILITIES="utility")),
        "lib.libcuda",
        "warn",
        "libcuda_not_given",
    ),
    Scenario(
        "utility only",
        replace(
            child(cuda__library={"found": False, "error": MISSING}, cuda__init=None, torch__cuda=None),
            host=env(NVIDIA_DRIVER_CAPABILITIES="utility"),
        ),
        "lib.libcuda",
        "fail",
        "libcuda_missing",
    ),
    Scenario(
        "incomplete libcuda",
        child(cuda__library={"found": False, "error": "libnvidia-x.so.590: cannot open shared object file"}),
        "lib.libcuda",
        "fail",
        "libcuda_broken",
    ),
    Scenario(
        "stubs first",
        child(cuda__library={"path": "/usr/local/cuda/lib64/stubs/libcuda.so"}),
        "lib.libcuda",
        "fail",
        "libcuda_stub",
    ),
    Scenario(
        "compat first",
        child(cuda__library={"path": "/usr/local/cuda/compat/libcuda.so.575.57.08"}),
        "lib.libcuda",
        "warn",
        "libcuda_compat",
    ),
    Scenario(
        "simulated",
        child(cuda__library={"simulated": True}, torch__cuda=None),
        "gpu.simulated",
        "warn",
        "simulated",
    ),
    # cuda.init
    Scenario("3", code(3), "cuda.init", "fail", "cuda_incomplete_driver"),
    Scenario("34", code(34), "cuda.init", "fail", "libcuda_stub"),
    Scenario("46", code(46), "cuda.init", "fail", "gpu_busy"),
    Scenario(
        "46, vGPU without a licence",
        replace(code(46), smi=vgpu("Unlicensed (Unrestricted)").smi),
        "cuda.init",
        "fail",
        "vgpu_refused",
    ),
    Scenario(
        "46, vGPU whose licence has expired",
        replace(code(46), smi=vgpu("Expired").smi),
        "cuda.init",
        "fail",
        "vgpu_refused",
    ),
    Scenario(
        "46, vGPU with a licence",
        replace(code(46), smi=vgpu("Licensed (Expiry: 2027-1-1 0:0:0 GMT)").smi),
        "cuda.init",
        "fail",
        "gpu_busy",
    ),
    Scenario(
        "46, exclusive mode",
        replace(code(46), smi=smi_answers([{**H200, "compute_mode": "Exclusive_Process"}])),
        "cuda.init",
        "fail",
        "gpu_held_alone",
    ),
    Scenario(
        "torch finds a GPU busy, exclusive mode",
        replace(
            error("torch.cuda", "RuntimeError: CUDA-capable device(s) is/are busy or unavailable"),
            smi=smi_answers([{**H200, "compute_mode": "Exclusive_Process"}]),
        ),
        "torch.cuda",
        "fail",
        "gpu_held_alone",
    ),
    Scenario("100", code(100), "cuda.init", "fail", "no_cuda_device"),
    Scenario(
        "100, all hidden",
        code(100, env(CUDA_VISIBLE_DEVICES="")),
        "cuda.init",
        "fail",
        "cuda_visible_devices",
    ),
    Scenario(
        "0 devices, no error",
        child(cuda__init={"code": 0, "count": 0}, torch__cuda=None),
        "cuda.init",
        "fail",
        "no_cuda_device",
    ),
    Scenario("100, no uvm", code(100, NO_UVM), "cuda.init", "fail", "uvm_missing"),
    Scenario(
        "101", code(101, env(CUDA_VISIBLE_DEVICES="0,7")), "cuda.init", "fail", "invalid_device_ordinal"
    ),
    Scenario("101, nothing chosen", code(101), "cuda.init", "fail", "cuda_error"),
    Scenario(
        "101, a valid choice", code(101, env(CUDA_VISIBLE_DEVICES="0")), "cuda.init", "fail", "cuda_error"
    ),
    Scenario(
        "101, nobody lists the GPUs",
        replace(code(101, env(CUDA_VISIBLE_DEVICES="0")), smi=SmiFacts(path=None)),
        "cuda.init",
        "fail",
        "device_ordinal_doubted",
    ),
    Scenario(
        "304, no seccomp filter",
        code(304, replace(HOST, seccomp=0)),
        "cuda.init",
        "fail",
        "driver_call_failed",
    ),
    Scenario("304, a filter", code(304, replace(HOST, seccomp=2)), "cuda.init", "fail", "os_call_failed"),
    Scenario(
        "304, Xid 79", replace(code(304), kernel=xid(79).kernel), "cuda.init", "fail", "gpu_fell_off_bus"
    ),
    Scenario(
        "999, Xid 79", replace(code(999), kernel=xid(79).kernel), "cuda.init", "fail", "gpu_fell_off_bus"
    ),
    Scenario("999, Xid 62", replace(code(999), kernel=xid(62).kernel), "cuda.init", "fail", "xid_reset"),
    Scenario(
        "999, the module is not loaded",
        code(999, replace(NO_UVM, uvm_registered=False)),
        "cuda.init",
        "fail",
        "uvm_not_loaded",
    ),
    Scenario(
        "100, only the node is missing",
        code(100, replace(NO_UVM, uvm_registered=True)),
        "cuda.init",
        "fail",
        "uvm_missing",
    ),
    Scenario(
        "100, MIG without its nodes",
        replace(code(100, replace(HOST, mig_nodes=0)), smi=mig_listed().smi),
        "cuda.init",
        "fail",
        "mig_nodes_missing",
    ),
    Scenario(
        "100, MIG with its nodes",
        replace(code(100, replace(HOST, mig_nodes=2)), smi=mig_listed().smi),
        "cuda.init",
        "fail",
        "no_cuda_device",
    ),
    Scenario("304", code(304), "cuda.init", "fail", "os_call_failed"),
    Scenario("802", code(802), "cuda.init", "fail", "not_ready_without_fabric"),  # its fabric is up
    Scenario(
        "802, a board without NVSwitch",
        replace(code(802), smi=smi_answers([{**NO_FABRIC, "name": "NVIDIA L40S"}])),
        "cuda.init",
        "fail",
        "not_ready_without_fabric",
    ),
    Scenario(
        "802, a board that tells no fabric",
        replace(code(802), smi=smi_answers([{**NO_FABRIC, "name": "NVIDIA A100-SXM4-80GB"}])),
        "cuda.init",
        "fail",
        "fabric_manager_missing",
    ),
    Scenario(
        "802, HMM in the log", replace(code(802), kernel=logged(HMM).kernel), "cuda.init", "fail", "hmm_error"
    ),
    Scenario(
        "803, compat by ld.so.conf",
        child(
            cuda__library={"path": "/usr/local/cuda-13.0/compat/libcuda.so.590.48.01", "nvml_path": None},
            cuda__init={"code": 803, "count": 0},
            torch__cuda=None,
        ),
        "cuda.init",
        "fail",
        "libcuda_compat",
    ),
    Scenario(
        "803, a folder that is called alike",
        code(803, env(LD_LIBRARY_PATH="/opt/compat32/lib:/usr/local/cuda/compat")),
        "cuda.init",
        "fail",
        "driver_library_mismatch",
    ),
    Scenario("803", code(803), "cuda.init", "fail", "driver_library_mismatch"),
    Scenario("804", code(804), "cuda.init", "fail", "compat_not_supported"),
    Scenario("999", code(999), "cuda.init", "fail", "cuda_unknown_error"),
    Scenario("999, no uvm", code(999, NO_UVM), "cuda.init", "fail", "uvm_missing"),
    Scenario("another code", code(719, name="CUDA_ERROR_LAUNCH_FAILED"), "cuda.init", "fail", "cuda_error"),
    # torch.*
    Scenario(
        "no torch",
        error("torch.import", "ModuleNotFoundError: No module named 'torch'"),
        "torch.build",
        "fail",
        "torch_missing",
    ),
    Scenario(
        "CPU wheel on a GPU host",
        child(torch__import={"version": "2.14.1+cpu", "cuda": None}, torch__build={"arch_list": []}),
        "torch.build",
        "fail",
        "cpu_only_build",
    ),
    Scenario(
        "another torch in the image",
        replace(child(torch__import={"version": "2.13.0+cu130"}), manifest=MANIFEST),
        "torch.build",
        "warn",
        "torch_drift",
    ),
    Scenario(
        "a copy of the same torch over the image's",
        replace(
            child(torch__import={"version": "2.14.1+cu130", "file": f"{YOURS}/torch/__init__.py"}),
            manifest=MANIFEST,
        ),
        "torch.build",
        "warn",
        "torch_drift",
    ),
    Scenario(
        "another Triton over the image's",
        replace(
            child(torch__build={"triton": "3.5.0", "triton_file": f"{YOURS}/triton/__init__.py"}),
            manifest=MANIFEST,
        ),
        "torch.build",
        "warn",
        "torch_drift",
    ),
    Scenario(
        "another NCCL by LD_LIBRARY_PATH",
        replace(
            child(torch__build={"nccl": "2.27.5", "nccl_file": "/usr/lib/libnccl.so.2"}), manifest=MANIFEST
        ),
        "torch.build",
        "warn",
        "torch_drift",
    ),
    Scenario(
        "a broken manifest",
        replace(good(), manifest=Manifest(path="/opt/torchtap/manifest.json", error="not JSON")),
        "torch.build",
        "unknown",
        "manifest_unreadable",
    ),
    Scenario(
        "another cuDNN",
        child(torch__cudnn={"version": 91002, "files": ["/usr/lib/x86_64-linux-gnu/libcudnn.so.9"]}),
        "torch.cudnn",
        "warn",
        "cudnn_drift",
    ),
    Scenario(
        "mixed cuDNN",
        error(
            "torch.cudnn",
            "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 24, 0)",
        ),
        "torch.cudnn",
        "fail",
        "cudnn_mixed",
    ),
    Scenario(
        "torch does not start",
        error("torch.cuda", "RuntimeError: odd"),
        "torch.cuda",
        "fail",
        "torch_cuda_failed",
    ),
    Scenario(
        "torch finds the GPU busy",
        error("torch.cuda", "RuntimeError: CUDA-capable device(s) is/are busy or unavailable"),
        "torch.cuda",
        "fail",
        "gpu_busy",
    ),
    Scenario(
        "torch misses a GPU",
        replace(rows({}, {}), child=child().child),
        "torch.cuda",
        "fail",
        "gpus_missing_in_cuda",
    ),
    Scenario("Volta with cu130", child(torch__cuda=ARCH), "torch.arch", "fail", "arch_unsupported"),
    Scenario("Kepler", child(torch__cuda=KEPLER), "torch.arch", "fail", "arch_unsupported_by_all"),
    Scenario(
        "PTX only",
        child(torch__build={"arch_list": ["sm_75", "compute_75"]}),
        "torch.arch",
        "warn",
        "arch_from_ptx",
    ),
    # numbers
    Scenario("wrong product", gpu("gpu.matmul", wrong=3), "gpu.matmul", "fail", "wrong_numbers"),
    Scenario(
        "no kernel",
        error("gpu.matmul", "AcceleratorError: no kernel image is available"),
        "gpu.matmul",
        "fail",
        "kernel_missing",
    ),
    Scenario(
        "memory full",
        error("gpu.matmul", "OutOfMemoryError: CUDA out of memory."),
        "gpu.matmul",
        "fail",
        "gpu_memory_full",
    ),
    Scenario(
        "a kernel fails",
        error("gpu.matmul", "AcceleratorError: unspecified launch failure"),
        "gpu.matmul",
        "fail",
        "kernel_failed",
    ),
    Scenario(
        "Volta with a new cuDNN",
        error("gpu.cudnn", "RuntimeError: cuDNN version 92400 is not compatible with devices with SM < 7.5."),
        "gpu.cudnn",
        "fail",
        "cudnn_refuses_gpu",
    ),
    Scenario(
        "cuDNN fails",
        error("gpu.cudnn", "RuntimeError: CUDNN_STATUS_NOT_INITIALIZED"),
        "gpu.cudnn",
        "fail",
        "cudnn_failed",
    ),
    Scenario("another LSTM", gpu("gpu.rnn", wrong=1), "gpu.rnn", "fail", "rnn_differs"),
    Scenario("a bad CPU", gpu("cpu.matmul", wrong=1, index=-1), "cpu.matmul", "fail", "wrong_numbers_cpu"),
    Scenario(
        "no LSTM on the CPU", error("cpu.rnn", "RuntimeError: odd"), "cpu.rnn", "fail", "computation_failed"
    ),
    # level full
    *(
        Scenario(f"the process ends: {name}", left(step, answer), step, "fail", cause)
        for name, step, answer, cause in ENDS
    ),
    Scenario(
        "a step of level full crashes",
        ended("gpu.memory", StepState.CRASHED, Answer(command=("child",), rc=-11, seconds=20.0)),
        "gpu.memory",
        "fail",
        "child_crashed",
    ),
    Scenario(
        "a step of level full hangs",
        ended("gpu.memory", StepState.HUNG, Answer(command=("child",), timed_out=True, seconds=140.0)),
        "gpu.memory",
        "fail",
        "child_hung",
    ),
    Scenario(
        "memory that forgets",
        two(gpu__memory=each("gpu.memory", {}, {"wrong": 3, "worst": "address"})),
        "gpu.memory",
        "fail",
        "memory_wrong",
    ),
    Scenario(
        "memory held by another",
        child(gpu__memory=each("gpu.memory", {"tested_mib": 20000})),
        "gpu.memory",
        "warn",
        "memory_held",
    ),
    Scenario(
        "no memory left to test",
        child(gpu__memory=each("gpu.memory", {"tested_mib": 0, "checked": 0})),
        "gpu.memory",
        "fail",
        "gpu_memory_full",
    ),
    Scenario(
        "slow memory",
        child(gpu__bandwidth=each("gpu.bandwidth", {"gb_s": 2900.0})),
        "gpu.bandwidth",
        "warn",
        "bandwidth_low",
    ),
    Scenario(
        "very slow memory",
        child(gpu__bandwidth=each("gpu.bandwidth", {"gb_s": 1200.0})),
        "gpu.bandwidth",
        "fail",
        "bandwidth_low",
    ),
    Scenario(
        "a slow link",
        child(gpu__transfer=each("gpu.transfer", {"from_gpu": 12.0})),
        "gpu.transfer",
        "fail",
        "transfer_low",
    ),
    Scenario(
        "a link of an old generation",
        child(gpu__transfer=each("gpu.transfer", {"pcie_gen": 4, "to_gpu": 27.0, "from_gpu": 27.0})),
        "gpu.transfer",
        "warn",
        "pcie_slow",
    ),
    Scenario(
        "heat under load",
        child(gpu__speed=each("gpu.speed", {"reasons": 0x40, "sm_mhz": 900})),
        "gpu.throttle",
        "fail",
        "thermal_slowdown",
    ),
    Scenario(
        "a locked clock",
        child(gpu__speed=each("gpu.speed", {"reasons": 0, "sm_mhz": 1200})),
        "gpu.throttle",
        "warn",
        "clocks_low",
    ),
    Scenario(
        "slow products",
        child(gpu__speed=each("gpu.speed", speeds(bf16=500.0))),
        "gpu.speed",
        "warn",
        "speed_low",
    ),
    Scenario(
        "large products wrong",
        child(gpu__speed=each("gpu.speed", {"wrong": 1})),
        "gpu.speed",
        "fail",
        "wrong_numbers",
    ),
    Scenario(
        "one of two is slower",
        two(gpu__bandwidth=each("gpu.bandwidth", {}, {"gb_s": 3500.0})),
        "gpu.equals",
        "warn",
        "slower_than_equals",
    ),
    Scenario(
        "GRU differs",
        gpu("gpu.recurrent", wrong=2, what="GRU amp"),
        "gpu.recurrent",
        "fail",
        "rnn_differs",
    ),
    Scenario(
        "copies between GPUs arrive changed",
        two(
            gpu__peers={"gpus": [{"from": 0, "to": 1, "access": True, "checked": 8, "wrong": 3, "gb_s": 3.0}]}
        ),
        "gpu.peers",
        "fail",
        "peer_copy_wrong",
    ),
    Scenario("a wrong sum", two(gpu__nccl={"wrong": 1}), "gpu.nccl", "fail", "nccl_wrong"),
    Scenario("a slow NCCL", two(gpu__nccl={"bus_gb_s": 1.5}), "gpu.nccl", "warn", "nccl_slow"),
    Scenario(
        "NCCL fails",
        failing("gpu.nccl", "RuntimeError: ncclSystemError: System call failed"),
        "gpu.nccl",
        "fail",
        "nccl_failed",
    ),
    Scenario(
        "NCCL without room",
        failing(
            "gpu.nccl",
            "RuntimeError: Error while creating shared memory segment /dev/shm/nccl-x1 (size 9637888), "
            "error: No space left on device (28)",
        ),
        "gpu.nccl",
        "fail",
        "nccl_shm",
    ),
    Scenario(
        "workers without room",
        child(
            host__workers={
                "shm_mib": 64,
                "shm_free_mib": 64,
                "checked": 0,
                "error": "DataLoader timed out after 60 seconds",
            }
        ),
        "host.workers",
        "warn",
        "workers_without_room",
    ),
    Scenario(
        "workers that cannot be started",
        child(host__workers={"checked": 0, "error": "[Errno 11] Resource temporarily unavailable"}),
        "host.workers",
        "fail",
        "workers_failed",
    ),
    Scenario("changed batches", child(host__workers={"wrong": 4}), "host.workers", "fail", "workers_wrong"),
    Scenario(
        "no compiler",
        error(
            "cpu.compile",
            "InductorError: InvalidCxxCompiler: No working C++ compiler found in "
            "torch._inductor.config.cpp.cxx: (None, 'g++')",
        ),
        "torch.compile",
        "warn",
        "compiler_missing",
    ),
    Scenario(
        "no headers of Python",
        error(
            "gpu.compile", "CalledProcessError: main.c:4:10: fatal error: Python.h: No such file or directory"
        ),
        "gpu.compile",
        "warn",
        "python_headers_missing",
    ),
    Scenario(
        "no Triton",
        error("gpu.compile", "TritonMissing: Cannot find a working triton installation."),
        "gpu.compile",
        "warn",
        "triton_missing",
    ),
    Scenario(
        "compiling fails",
        error("gpu.compile", "InductorError: AssertionError: odd"),
        "gpu.compile",
        "fail",
        "compile_failed",
    ),
    # the process
    Scenario(
        "crash",
        child("gpu.matmul", -6, gpu__matmul=None, gpu__cudnn=None, gpu__rnn=None),
        "gpu.matmul",
        "fail",
        "child_crashed",
    ),
    Scenario(
        "hang",
        child(
            "cuda.init",
            None,
            cuda__init=None,
            cpu__rnn=None,
            torch__cuda=None,
            gpu__matmul=None,
            gpu__cudnn=None,
            gpu__rnn=None,
        ),
        "cuda.init",
        "fail",
        "child_hung",
    ),
    Scenario(
        "silence",
        child("torch.cuda", 0, torch__cuda=None, gpu__matmul=None, gpu__cudnn=None, gpu__rnn=None),
        "torch.cuda",
        "fail",
        "child_silent",
    ),
    Scenario(
        "garbage for a number",
        gpu("gpu.matmul", wrong="none"),
        "gpu.matmul",
        "unknown",
        "unreadable",
    ),
    Scenario(
        "interrupted",
        replace(bare(), device=Device.CPU, child=None, interrupted=True),
        "torch.build",
        "unknown",
        "interrupted",
    ),
    # under load
    Scenario(
        "a GPU vanishes under load",
        loaded({}, {}, gpus=(watched(0), watched(1, lost="[GPU is lost]", lost_after_s=132.0))),
        "burn.lost",
        "fail",
        "load_gpu_lost",
    ),
    Scenario(
        "a GPU vanishes and takes the test process along",
        loaded({}, state=StepState.CRASHED, rc=-6, gone="No devices were found"),
        "burn.lost",
        "fail",
        "load_gpu_lost",
    ),
    Scenario(
        "nvidia-smi hangs under load", loaded({}, hung=True, waited_s=20.0), "burn.lost", "fail", "smi_hung"
    ),
    Scenario(
        "too few readings",
        loaded({}, unread=300, why="it said nothing"),
        "burn.lost",
        "unknown",
        "unreadable",
    ),
    Scenario(
        "new memory errors",
        loaded({}, gpus=(watched(0, readings={**watched().readings, ECC: readings(2, 5)}),)),
        "burn.ecc",
        "fail",
        "load_ecc",
    ),
    Scenario(
        "a new Xid",
        loaded(
            {}, xids=(XidEvent(at=90_100.0, bus="0000:41:00", xid=94, line="NVRM: Xid (PCI:0000:41:00): 94"),)
        ),
        "burn.xid",
        "fail",
        "load_xid",
    ),
    Scenario("a wrong value under load", loaded({}, {"wrong": 3}), "burn.numbers", "fail", "wrong_numbers"),
    Scenario(
        "a wrong value on the CPU under load",
        replace(loaded({"wrong": 1, "index": -1}), device=Device.CPU),
        "burn.numbers",
        "fail",
        "wrong_numbers_cpu",
    ),
    Scenario(
        "a crash under load",
        loaded({}, state=StepState.CRASHED, rc=-6),
        "burn.numbers",
        "fail",
        "child_crashed",
    ),
    Scenario(
        "a hang under load", loaded({}, state=StepState.HUNG, rc=None), "burn.numbers", "fail", "child_hung"
    ),
    Scenario(
        "a stalled GPU",
        loaded({}, state=StepState.ERROR, error="StalledError: no product came back in 60 s", where="GPU 0"),
        "burn.numbers",
        "fail",
        "load_stalled",
    ),
    Scenario(
        "slowed down by heat",
        loaded({}, gpus=(watched(0, slowed={HEAT: 60}),)),
        "burn.thermal",
        "fail",
        "load_hot",
    ),
    Scenario(
        "power brake",
        loaded({}, gpus=(watched(0, slowed={BRAKE: 1}),)),
        "burn.power",
        "fail",
        "load_power_brake",
    ),
    Scenario(
        "PCIe replays",
        loaded({}, gpus=(watched(0, replays=(10, 91)),)),
        "burn.pcie",
        "fail",
        "load_pcie_replays",
    ),
    Scenario("an outlier", loaded({}, {}, {}, {"tflops": 500.0}), "burn.steady", "fail", "load_slower"),
    Scenario("a slow GPU", loaded({}, {"tflops": 600.0}), "burn.steady", "warn", "load_slower"),
    Scenario(
        "a GPU that fades",
        loaded({"course": [700.0] * 18 + [600.0] * 2}),
        "burn.steady",
        "warn",
        "load_fading",
    ),
    Scenario(
        "interrupted under load",
        replace(
            loaded({}, state=StepState.STOPPED, rc=None, gpus=(watched(0, replays=(0, None)),)),
            interrupted=True,
        ),
        "burn.numbers",
        "unknown",
        "load_interrupted",
    ),
    # by design
    Scenario("no GPU by design", replace(bare(), device=Device.CPU), "", "pass", ""),
]
