"""nvidia-smi's sentences and exit codes, and the kernel log's: what each means.

Sentences: real binaries 340 to 550 run without a driver or over NVIDIA's mock NVML, and public reports (see
tests/fixtures/smi/MANIFEST.md); the words after a colon are nvml.h's error strings. Exit codes: nvidia-smi's man page,
and those it leaves out as seen in the binaries (17, 18). Xid numbers: NVIDIA's Xid catalogue, immediate actions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchtap.selftest.smi.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Sentence:
    """A pattern (searched, case ignored) and what it means. Named groups become values of the finding."""

    pattern: re.Pattern[str]
    verdict: Verdict
    cause: str


def _s(pattern: str, cause: str, verdict: Verdict = Verdict.FAIL) -> Sentence:
    return Sentence(re.compile(pattern, re.IGNORECASE), verdict, cause)


# NVML's error strings after "Failed to initialize NVML:" or "Unable to determine the device handle for GPU ...:".
NVML_ERRORS: tuple[tuple[str, str], ...] = (
    ("driver/library version mismatch", "driver_library_mismatch"),
    ("insufficient permissions", "no_permission"),
    ("driver not loaded", "driver_not_loaded"),
    ("nvml shared library not found", "driver_libraries_missing"),
    ("function not found", "foreign_nvml"),
    ("gpu access blocked by the operating system", "wsl_blocked"),
    ("gpu is lost", "gpu_lost"),
    ("gpu requires reset", "gpu_requires_reset"),
    ("insufficient external power", "power_cable"),
    ("interrupt request issue", "interrupt_issue"),
    ("corrupted inforom", "inforom_corrupt"),
)
# "Unknown Error" says where it was said: at the start, that the container lost its devices; for one GPU, that the
# driver knows it but cannot reach it.
INIT_FAILED = re.compile(r"(?:Failed to initialize NVML|nvml error):\s*(?P<reason>.*)", re.IGNORECASE)
INIT_UNKNOWN = "devices_revoked"
# Three spellings: "GPU 0000:3B:00.0:" (old), "GPU0000:5E:00.0:" (535-550), "GPU0: 0000:61:00.0:" (from 572).
# The bus id is in all of them, an index only in the last: so the bus id says which GPU it is.
NO_HANDLE = re.compile(
    r"Unable to (?:determine|detect) the device handle for gpu\s?(?:\d+:\s)?"
    r"(?:(?P<bus>[0-9A-F]+(?::[0-9A-F]+)+\.[0-9A-F]+):\s*)?(?P<reason>.*)",
    re.IGNORECASE,
)
HANDLE_UNKNOWN = "gpu_fell_off_bus"

# The one sentence that comes beside a whole answer. The bus id ends after one digit: a row may follow without a break.
INFOROM = re.compile(
    r"(?:WARNING: )?infoROM is corrupted(?: at gpu (?P<bus>[0-9A-F:]+\.[0-9A-F]))?", re.IGNORECASE
)

# How shells say "command not found": bash's translations (de, fr, es, it, pt, nl, pl, ru, ja, ko, zh), from memory.
_NOT_FOUND = (
    "(?:command )?not found|(?:Kommando|Befehl) nicht gefunden|commande introuvable|orden no encontrada"
    "|comando non trovato|comando não encontrado|opdracht niet gevonden|nie znaleziono polecenia"
    "|команда не найдена|コマンドが見つかりません|명령어?[를을]? ?찾을 수 (?:없음|없습니다)"
    "|未找到(?:命令|指令)|找不到(?:命令|指令)"
)
SENTENCES: tuple[Sentence, ...] = (
    _s(r'Field "?(?P<field>[^"\s]+)"? is not a valid field to query', "field_refused", Verdict.RETRY),
    _s(
        r"Option \S+ is not recognized|Invalid combination of input arguments|ERROR: Option",
        "usage_error",
        Verdict.RETRY,
    ),
    _s(r"couldn't communicate with the NVIDIA driver", "driver_not_loaded"),
    _s(
        r"couldn't find libnvidia-ml|libnvidia-ml\.so(?:\.1)?: cannot open shared object",
        "driver_libraries_missing",
    ),
    _s(r"Mismatch in versions between nvidia-smi and NVML", "foreign_nvml"),
    _s(r"No devices were found", "no_devices"),
    _s(r"GPU is lost|GPU has been lost", "gpu_lost"),
    _s(r"fallen off the bus", "gpu_fell_off_bus"),
    _s(r"GPU requires reset", "gpu_requires_reset"),
    _s(r"GPU access blocked by the operating system", "wsl_blocked"),
    Sentence(INFOROM, Verdict.WARN, "inforom_corrupt"),
    _s(r"power cables? (?:are|is) not properly attached|external power", "power_cable"),
    _s(r"\bSegmentation fault|^Aborted\b|Aborted +\(core dumped\)", "smi_crashed"),
    # A shell's, sudo's or an engine's words in place of nvidia-smi's.
    _s(
        rf"nvidia-smi['\"]? ?[:\uff1a] ?(?:{_NOT_FOUND})|command not found: nvidia-smi|Command 'nvidia-smi' not found"
        r"|nvidia-smi['\"]?: (?:executable file not found|No such file or directory)"
        r"|cannot access '?\S*nvidia-smi|'nvidia-smi' is not recognized",
        "smi_missing",
    ),
    # The loader's words: an nvidia-smi of another distribution than the container's.
    _s(
        r"(?P<error>(?:version )?\W?GLIBC(?:XX)?_[\d.]+\W? not found"
        r"|error while loading shared libraries: .*|Error (?:loading shared library|relocating) .*"
        r"|symbol lookup error: .*)",
        "smi_broken",
    ),
    _s(r"nvidia-smi['\"]?: (?P<error>Permission denied|cannot execute.*|Exec format error)", "smi_broken"),
)
# What nvidia-smi adds where the only GPU could not be reached: no cause beside the one that says why.
CONSEQUENCE = "no_devices"
# Lines that only accompany the ones above.
COMPANIONS = re.compile(
    r"NVML library version:|Are you sure you are using nvidia-smi provided|Please also try adding directory"
    r"|Failed to properly shut down NVML|Failed to query device index",
    re.IGNORECASE,
)

# What an exit code says where cells and text said nothing.
EXIT_CODES: dict[int, tuple[Verdict, str]] = {
    2: (Verdict.RETRY, "usage_error"),
    4: (Verdict.FAIL, "no_permission"),
    6: (Verdict.FAIL, "no_devices"),
    8: (Verdict.FAIL, "power_cable"),
    9: (Verdict.FAIL, "driver_not_loaded"),
    10: (Verdict.FAIL, "interrupt_issue"),
    12: (Verdict.FAIL, "driver_libraries_missing"),
    13: (Verdict.FAIL, "foreign_nvml"),
    14: (Verdict.WARN, "inforom_corrupt"),
    15: (Verdict.FAIL, "gpu_lost"),
    17: (Verdict.FAIL, "wsl_blocked"),
    18: (Verdict.FAIL, "driver_library_mismatch"),
    126: (Verdict.FAIL, "smi_broken"),
    127: (Verdict.FAIL, "smi_missing"),
}
# Codes that a killer leaves when it was not nvidia-smi that ended: `timeout` (124), SIGKILL and SIGTERM; and what a
# shell says then.
KILLED_AFTER_WAITING = frozenset({124, 137, 143, -9, -15})
KILLED = re.compile(r"\s*(?:Killed|Terminated)?\s*")

# A row of the list of processes: its first cell is a GPU's UUID or address, a process's number, or none.
PROCESS_ROW = re.compile(
    r"\s*(?:GPU-[0-9a-f-]{36}|[0-9a-f]{4,8}:[0-9a-f:.]+|\d+|\[[^,\]]*\]) *,", re.IGNORECASE
)

# What stands around an answer that was copied from a terminal: prompts, the head of `watch`, and colours, also as
# `process.visible` writes them.
COLOURS = re.compile(r"(?:\x1b|\\x1b)\[[0-9;?]*[A-Za-z]")
PROMPT = re.compile(
    r"^[^|,\n]{0,80}[$#>%\u276f] ?(?P<command>(?:sudo (?:-\w+ )*)?(?:\S*/)?(?:nvidia-smi|dmesg|journalctl)\b.*)$"
    r"|^[\w.@~:/\[\]() -]{0,80}[$#] *$|^[\w.-]+@[\w.-]+ [^|,%\n]{0,60}% *$|^Every \d+(?:\.\d+)?s: .*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Xids:
    """Xid numbers that mean the same."""

    verdict: Verdict | None  # None: a fault of the program that ran, or an event that needs nothing
    cause: str
    numbers: frozenset[int] = field(default_factory=frozenset)


XIDS: tuple[Xids, ...] = (
    Xids(Verdict.FAIL, "gsp_timeout", frozenset({119, 120})),
    Xids(Verdict.FAIL, "gpu_fell_off_bus", frozenset({79})),
    Xids(Verdict.FAIL, "remap_failed", frozenset({64})),
    Xids(Verdict.FAIL, "ecc_uncorrected", frozenset({48, 95, 140})),
    Xids(Verdict.FAIL, "nvlink_error", frozenset({74})),
    Xids(Verdict.FAIL, "power_cable", frozenset({54})),
    Xids(Verdict.FAIL, "xid_reset", frozenset({46, 62, 109, 110, 136, 143, 155, 156, 158})),
    # RESTART_APP and IGNORE in the catalogue; 45 only reports that a process was ended. Not 63 and 94, which tell of
    # memory errors that were repaired or contained: DCGM warns of both, so they are among the others.
    Xids(None, "", frozenset({13, 31, 43, 45, 92, 121, 137, 157})),
    # 154 only says that the recovery action changed: to what stands in the line (KERNEL_SENTENCES).
    Xids(None, "", frozenset({154})),
)
OTHER_XID = Xids(Verdict.WARN, "xid_other")
# Not NVSwitch's SXid, which has numbers of its own. Of a MIG device the address is followed by its instances,
# " GPU-I:05 GPU-CI:00" (NVIDIA's open kernel modules, kernel_rc.c).
XID = re.compile(r"(?<!S)Xid \((?:PCI:)?(?P<bus>[0-9a-f:.]*)[^()]*\): ?(?P<xid>\d+)", re.IGNORECASE)
HMM_ERROR = re.compile(r"nvidia-uvm: .*request_free_mem_region\(\) err -34", re.IGNORECASE)
KERNEL_SENTENCES: tuple[Sentence, ...] = (
    _s(r"fallen off the bus", "gpu_fell_off_bus"),
    _s(r"power cables? (?:are|is) not properly attached|not have the necessary power cables", "power_cable"),
    _s(r"GPU_IS_LOST|GPU is lost|GPU has been lost", "gpu_lost"),
    _s(r"rpcRecvPoll timed ?out|waiting for RPC (?:response )?from (?:GPU\d* )?GSP", "gsp_timeout"),
    # The kernel's own watch over processes that wait in a driver.
    _s(r"INFO: task nvidia-smi:\d+ blocked for more than (?P<waited_s>\d+) seconds", "smi_hung"),
    _s(
        r"INFO: task (?P<task>(?:nvidia|nv_|UVM |irq/\d+-nvidia)[^:]*):\d+ blocked for more than (?P<waited_s>\d+)",
        "driver_blocked",
    ),
    _s(
        r"nvidia [0-9a-f:.]+: (?:AER: )?(?:PCIe Bus Error: severity=)?"
        r"(?P<severity>Uncorrect(?:ed|able)) \(Fatal\)",
        "pcie_error",
    ),
    _s(
        r"nvidia [0-9a-f:.]+: (?:AER: )?(?:PCIe Bus Error: severity=)?"
        r"(?P<severity>Uncorrect(?:ed|able)) \(Non-Fatal\)",
        "pcie_error",
        Verdict.WARN,
    ),
    _s(
        r"nvidia: probe of \S+ failed with error|RmInitAdapter|rm_init_adapter failed"
        r"|No NVIDIA (?:GPU|graphics adapter|devices) (?:found|probed)"
        r"|probe routine failed|None of the NVIDIA (?:graphics adapters|devices) were|not supported by (?:the|open)\b"
        r"|requires use of the NVIDIA open kernel modules|supported through the NVIDIA \d+\.xx Legacy|BAR\d is 0M @",
        "init_failed",
    ),
    _s(r"recovery action changed from .* to 0x[0-9a-f]+ \((?!None\))(?P<action>[^)]+)\)", "recovery_needed"),
    Sentence(HMM_ERROR, Verdict.FAIL, "hmm_error"),
    _s(r"SXid \([^)]*\): \d+, Fatal", "nvlink_error"),
    _s(r"API mismatch: the (?:client|NVIDIA kernel module)", "driver_library_mismatch"),
)
# A port tells of the device below it, which may be any; so it counts only for a GPU that the log knows by its driver.
PORT_ERROR = re.compile(
    r"AER: Uncorrect(?:ed|able) \((?P<severity>Fatal|Non-Fatal)\) error.*"
    r"\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.",
    re.IGNORECASE,
)
DRIVEN_BUS = re.compile(
    r"(?:NVRM: .*|\bnvidia )\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\b", re.IGNORECASE
)
# What only follows from another finding of the same log: left out beside its reason.
KERNEL_CONSEQUENCES: dict[str, frozenset[str]] = {
    "init_failed": frozenset({"power_cable"}),
    "gpu_lost": frozenset({"gpu_fell_off_bus"}),
    "smi_hung": frozenset({"gsp_timeout", "gpu_fell_off_bus", "gpu_lost"}),
    "driver_blocked": frozenset({"gsp_timeout", "gpu_fell_off_bus", "gpu_lost", "smi_hung"}),
}
KERNEL_BUS = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?\b", re.IGNORECASE)
# Every way in which a line of the kernel log is written: dmesg (seconds, -T, -H, iso), journalctl, syslog, or bare.
KERNEL_LINE = re.compile(
    r"^(?:<\d+>)?\[[\s+]*\d+\.\d+\]|^\[\w{3} \w{3} [\s\d]\d \d\d:\d\d:\d\d \d{4}\]|^\[\w{3}\d{1,2} \d\d:\d\d\]"
    r"|^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[,.]\d+\S* |\bkernel: |^-- (?:Logs begin|Journal begins|Boot|No entries|Reboot)"
    r"|\b(?:NVRM|nvidia-uvm|nvidia-nvswitch\d*|nvidia-nvlink|nvidia-modeset|nvidia): |\[drm:nv|\bnvidia [0-9a-f:.]+: "
)
# The driver was loaded anew: what it wrote before is of a life that is over.
DRIVER_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX", re.IGNORECASE)

# `nvidia-smi -q`: the end of a leaf's path -> the field it is. Checked from the end, case ignored.
QUERY_LEAVES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Product Name",), "name"),
    (("GPU UUID",), "uuid"),
    (("Pending Page Blacklist",), "retired_pages.pending"),
    (("Retired Pages", "Pending"), "retired_pages.pending"),
    (("Unrepairable Memory",), "unrepairable_memory"),
    (("Channel Repair Pending",), "repair.channel"),
    (("TPC Repair Pending",), "repair.tpc"),
    (("Health", "Summary"), "fabric.health.summary"),
    (("Retired Pages", "Double Bit ECC"), "retired_pages.double_bit.count"),
    (("Remapped Rows", "Uncorrectable Error"), "remapped_rows.uncorrectable"),
    (("Remapped Rows", "Pending"), "remapped_rows.pending"),
    (("Remapped Rows", "Remapping Failure Occurred"), "remapped_rows.failure"),
    (("SRAM Threshold Exceeded",), "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"),
    (("GPU Recovery Action",), "gpu_recovery_action"),
    (("GPU Reset Status", "Reset Required"), "reset_status.reset_required"),
    (("GPU Reset Status", "Drain and Reset Recommended"), "reset_status.drain_and_reset_recommended"),
    (("GPU Current Temp",), "temperature.gpu"),
    (("GPU T.Limit Temp",), "temperature.gpu.tlimit"),
    (("FB Memory Usage", "Total"), "memory.total"),
    (("FB Memory Usage", "Used"), "memory.used"),
    (("ECC Mode", "Current"), "ecc.mode.current"),
    (("Link Width", "Current"), "pcie.link.width.current"),
    (("Link Width", "Max"), "pcie.link.width.max"),
    (("MIG Mode", "Current"), "mig.mode.current"),
    (("Compute Mode",), "compute_mode"),
    (("Persistence Mode",), "persistence_mode"),
    (("Fabric", "State"), "fabric.state"),
    (("Fabric", "Status"), "fabric.status"),
)
# Uncorrected errors are split by where they happened; any of them counts. Older drivers write "Double Bit".
QUERY_ECC = re.compile(
    r"(?P<when>Volatile|Aggregate)\b.*\b(?:Uncorrectable|Uncorrected|Double Bit)\b", re.IGNORECASE
)
# Clock reasons by their names there: "Active" is the same as the reason's bit.
QUERY_CLOCKS = {
    "hw slowdown": "clocks_event_reasons.hw_slowdown",
    "sw thermal slowdown": "clocks_event_reasons.sw_thermal_slowdown",
    "hw thermal slowdown": "clocks_event_reasons.hw_thermal_slowdown",
    "hw power brake slowdown": "clocks_event_reasons.hw_power_brake_slowdown",
}
