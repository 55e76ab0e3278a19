"""Reports from recorded facts, to look at: a good host, one with a warning, several bad ones.

The rows are recorded nvidia-smi answers (utkuozdemir/nvidia_gpu_exporter@e656cd8: one idle H200, driver 590.48.01);
what the test process would have said on those hosts is written down here, not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torchtap.selftest.burn.examples import good_burn
from torchtap.selftest.check import Check
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.expect import Expected, expectations
from torchtap.selftest.facts import Facts, SmiFacts
from torchtap.selftest.host import Host, Node, PciGpu
from torchtap.selftest.identity import identify
from torchtap.selftest.kernel_log import KernelLog
from torchtap.selftest.probe import read_lines
from torchtap.selftest.process import Answer
from torchtap.selftest.query import ALSO, ask_smi
from torchtap.selftest.result import Report
from torchtap.selftest.runner import judge_all
from torchtap.selftest.smi.fields import ALIASES
from torchtap.selftest.status import Device, Level

H200: Mapping[str, str] = {
    "index": "0",
    "name": "NVIDIA H200",
    "uuid": "GPU-11111111-2222-3333-4444-555555555500",
    "pci.bus_id": "00000000:41:00.0",
    "driver_version": "590.48.01",
    "compute_cap": "9.0",
    "memory.total": "143771",
    "memory.used": "0",
    "persistence_mode": "Enabled",
    "ecc.mode.current": "Enabled",
    "vbios_version": "96.00.A5.00.01",
    "inforom.image": "G520.0280.00.05",
    "inforom.checksum_validation": "valid",
    "temperature.gpu": "28",
    "compute_mode": "Default",
    "mig.mode.current": "Disabled",
    "gpu_recovery_action": "None",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
}
T4: Mapping[str, str] = {
    **dict.fromkeys(H200, "[N/A]"),
    "index": "0",
    "name": "Tesla T4",
    "uuid": "GPU-11111111-2222-3333-4444-555555555500",
    "pci.bus_id": "00000000:00:1D.0",
    "driver_version": "550.163.01",
    "compute_cap": "7.5",
    "memory.total": "15360",
    "memory.used": "2",
    "vbios_version": "90.04.38.00.03",
    "temperature.gpu": "29",
    "compute_mode": "Default",
    "ecc.errors.uncorrected.volatile.total": "0",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
}
_NODES = ("nvidia-uvm", "nvidia0", "nvidiactl")
HOST = Host(
    nodes=tuple(Node(path=f"/dev/{name}", mode=0o20666, uid=0, gid=0, usable=True) for name in _NODES),
    module_loaded=True,
    driver_text="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build\n",
    module_version="590.48.01",
    pci=(PciGpu(address="0000:41:00.0", driver="nvidia"),),
    wsl=False,
    container="docker",
    env={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
    uid=1000,
    shared_memory=8 << 30,
    limits={"memlock": -1, "nofile": 1_048_576, "stack": 67_108_864},
)
PACKAGES = "/opt/torchtap/venv/lib/python3.12/site-packages"
STARTED = 1796060897.0  # 2026-11-30T17:48:17Z
# What the steps say on a good host with one GPU: name -> values.
GOOD_STEPS: Mapping[str, Mapping[str, object]] = {
    "torch.import": {"version": "2.14.1+cu130", "cuda": "13.0", "file": f"{PACKAGES}/torch/__init__.py"},
    "torch.build": {
        "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        "nccl": "2.30.7",
        "nccl_file": f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2",
        "triton": "3.8.0",
        "triton_file": f"{PACKAGES}/triton/__init__.py",
    },
    "torch.cudnn": {"version": 92400, "files": []},
    "cpu.matmul": {"gpus": [{"index": -1, "checked": 262144, "wrong": 0}]},
    "host.workers": {
        "workers": 4,
        "needed_mib": 192,
        "shm_mib": 8192,
        "shm_free_mib": 8192,
        "checked": 75497472,
        "wrong": 0,
        "error": None,
    },
    "nodes": {"nodes": {f"/dev/{name}": "ok" for name in _NODES}},
    "cuda.library": {
        "found": True,
        "simulated": False,
        "path": "/usr/lib/x86_64-linux-gnu/libcuda.so.590.48.01",
        "nvml_path": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.590.48.01",
        "error": None,
    },
    "cuda.init": {"code": 0, "name": "CUDA_SUCCESS", "cuda": "13.1", "count": 1},
    "cpu.rnn": {"gpus": [{"index": -1, "checked": 8320, "wrong": 0}]},
    "torch.cuda": {
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "capability": "9.0",
                "memory_mib": 143156,
                "uuid": "GPU-11111111-2222-3333-4444-555555555500",
                "bus_id": "00000000:41:00.0",
            }
        ]
    },
    "gpu.matmul": {"gpus": [{"index": 0, "checked": 524288, "wrong": 0}]},
    "gpu.cudnn": {"gpus": [{"index": 0, "checked": 18432, "wrong": 0}]},
    "gpu.rnn": {"gpus": [{"index": 0, "checked": 8320, "wrong": 0}]},
    # One H200 was measured at these rates (769 to 798 TFLOP/s in bf16, 4300 GB/s); the other numbers are made up.
    "gpu.memory": {
        "gpus": [
            {
                "index": 0,
                "total_mib": 143156,
                "integrated": False,
                "tested_mib": 128000,
                "checked": 100663296000,
                "wrong": 0,
                "worst": None,
            }
        ]
    },
    "gpu.bandwidth": {"gpus": [{"index": 0, "gb_s": 4312.0}]},
    "gpu.transfer": {
        "gpus": [
            {
                "index": 0,
                "to_gpu": 55.1,
                "from_gpu": 54.9,
                "pcie_gen": 5,
                "max_pcie_gen": 5,
                "pcie_width": 16,
            }
        ]
    },
    "gpu.speed": {
        "gpus": [
            {
                "index": 0,
                "size": 8192,
                "checked": 32768,
                "wrong": 0,
                "tflops": {"fp32": 51.2, "tf32": 401.0, "fp16": 742.0, "bf16": 781.0},
                "sm_mhz": 1830,
                "max_sm_mhz": 1980,
                "reasons": 4,
            }
        ]
    },
    "gpu.recurrent": {
        "gpus": [
            {"index": 0, "what": what, "checked": 175104, "wrong": 0}
            for what in ("LSTM fp32", "LSTM amp", "GRU fp32", "GRU amp")
        ]
    },
    "gpu.compile": {"gpus": [{"index": 0, "checked": 256, "wrong": 0}]},
    "cpu.compile": {"gpus": [{"index": -1, "checked": 256, "wrong": 0}]},
}


def child_answer(
    steps: Mapping[str, Mapping[str, object]], *, dies_in: str = "", rc: int | None = 0
) -> Answer:
    """What the test process prints for these values; `dies_in` starts one more step and says nothing after it."""
    lines: list[dict[str, object]] = []
    for name, value in steps.items():
        lines.append({"step": name, "state": "start"})
        lines.append({"step": name, "state": "done", "value": value, "seconds": 0.1})
    lines.append({"step": dies_in, "state": "start"} if dies_in else {"state": "end"})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return Answer(
        command=("child",), text=text, rc=rc, seconds=60.0 if rc is None else 3.0, timed_out=rc is None
    )


NVLINKS = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))


def smi_answers(gpus: Sequence[Mapping[str, str]], **other: str) -> SmiFacts:
    """What `ask_smi` makes of an nvidia-smi with these GPUs. `other`: its answers to the questions of `query.ALSO`."""
    fields = [
        read.removeprefix("smi:") for check in CHECKS for read in check.reads if read.startswith("smi:")
    ]

    links = "".join(f"GPU {n}: {gpu['name']} (UUID: {gpu['uuid']})\n{NVLINKS}" for n, gpu in enumerate(gpus))

    def run(command: Sequence[str], *, timeout_s: float) -> Answer:  # noqa: ARG001  # the signature of process.ask
        for name, question in ALSO.items():
            if tuple(command[1:]) == question.options:
                return Answer(
                    command=tuple(command), text=other.get(name, links if name == "nvlink" else ""), rc=0
                )
        asked = command[1].partition("=")[2].split(",") if "=" in command[1] else []
        lines = [", ".join(gpu.get(ALIASES.get(name, name), "[N/A]") for name in asked) for gpu in gpus]
        return Answer(command=tuple(command), text="\n".join(lines) + "\n", rc=0, seconds=0.1)

    return ask_smi(fields, also=tuple(ALSO), find=lambda: "/usr/bin/nvidia-smi", run=run)


def good() -> Facts:
    """The facts of a good host with one H200."""
    return Facts(
        device=Device.GPU,
        host=HOST,
        kernel=KernelLog(now=90_000.0, since=0.5),
        smi=smi_answers([H200]),
        child=read_lines(child_answer(GOOD_STEPS)),
        burn=good_burn(),
    )


def examples() -> Iterator[tuple[str, Report]]:
    """Titles and reports: pass, warning, failures."""
    fine = good()
    yield "all is well", _report(fine)
    worn = {**H200, "ecc.errors.uncorrected.aggregate.total": "2", "pcie.link.width.current": "8"}
    yield "warnings", _report(replace(fine, smi=smi_answers([worn])))
    second = {
        **dict.fromkeys(H200, "[GPU is lost]"),
        "index": "1",
        "name": "NVIDIA H200",
        "uuid": H200["uuid"][:-1] + "1",
    }
    yield "the level burn", _report(fine, level=Level.BURN)
    expected = expectations(Expected(gpus=8, name="H200", driver=(580,)))
    yield "fewer GPUs than expected", _report(replace(fine, host=replace(HOST, container=None)), expected)
    yield "a lost GPU", _report(replace(fine, smi=smi_answers([H200, second])))
    old = replace(
        fine, smi=smi_answers([T4]), host=replace(HOST, driver_text="", module_version="550.163.01")
    )
    library = {**GOOD_STEPS["cuda.library"], "path": "/usr/lib/libcuda.so.550.163.01", "nvml_path": None}
    steps = {**_until("cuda.init"), "cuda.library": library, "cpu.rnn": GOOD_STEPS["cpu.rnn"]}
    yield "a driver that is too old", _report(replace(old, child=read_lines(child_answer(steps))))
    bare = replace(HOST, nodes=(), env={})
    none = replace(fine, host=bare, smi=SmiFacts(path=None), child=read_lines(child_answer(_no_cuda())))
    yield "a container without a GPU", _report(none)
    hung = Answer(command=("nvidia-smi",), seconds=20.0, timed_out=True, stuck_pid=4711)
    stuck = ask_smi(["index"], find=lambda: "/usr/bin/nvidia-smi", run=lambda *_, **__: hung)
    yield (
        "nvidia-smi hangs",
        _report(replace(fine, smi=stuck, child=read_lines(child_answer(_until("cpu.matmul"))))),
    )
    crash = child_answer(_until("torch.cuda"), dies_in="gpu.matmul", rc=-6)
    yield "the driver crashes", _report(replace(fine, child=read_lines(crash)))
    by_design = Facts(device=Device.CPU, host=bare, child=read_lines(child_answer(_without_gpu())))
    yield "no GPU, by design", _report(by_design)


def _until(last: str) -> dict[str, Mapping[str, object]]:
    names = list(GOOD_STEPS)
    return {name: GOOD_STEPS[name] for name in names[: names.index(last) + 1]}


def _without_gpu() -> dict[str, Mapping[str, object]]:
    return {**_until("cpu.matmul"), "cpu.rnn": GOOD_STEPS["cpu.rnn"]}


def _no_cuda() -> dict[str, Mapping[str, object]]:
    missing = "libcuda.so.1: cannot open shared object file: No such file or directory"
    library = {"found": False, "simulated": False, "path": None, "nvml_path": None, "error": missing}
    return {**_without_gpu(), "nodes": {"nodes": {}}, "cuda.library": library}


def _report(facts: Facts, expected: Sequence[Check] = (), *, level: Level = Level.QUICK) -> Report:
    seconds = 24.0 if facts.smi is not None and any(answer.timed_out for answer in facts.smi.answers) else 4.2
    if level is Level.BURN:
        seconds = 780.0
    chosen = [check for check in CHECKS if level.includes(check.level)]
    return Report(
        results=judge_all([*chosen, *expected], facts),
        device=facts.device.value,
        level=level.value,
        seconds=seconds,
        torchtap="0.1.0",
        identity=replace(identify(facts, {"TORCHTAP_HOST": "node017"}, STARTED), kernel="6.8.0-60-generic"),
    )
