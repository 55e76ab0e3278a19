"""Which image variant fits a driver and a GPU, where only the GPU's name is known; and torch's rule for code.

Drivers before 510 have no `compute_cap`, and a table never shows it: then the name decides. Capabilities: NVIDIA's
list of CUDA GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchtap.variants import EXCLUDED, PREFERENCE, VARIANTS, Capability, Driver

# First match wins, so what is told apart by a longer name comes first. Searched in the name without case; the table of
# nvidia-smi cuts names, as in "NVIDIA RTX PRO 6000 Blac...". M10, MX and Quadro M and K: from memory, unverified.
CAPABILITY_BY_NAME: tuple[tuple[str, Capability], ...] = (
    (r"\bGB10\b", (12, 1)),
    (r"\bThor\b|Jetson T[45]000|\bT[45]000\b", (11, 0)),
    (r"\bG?B300\b", (10, 3)),
    (r"\b(?:G?B200|B100)\b", (10, 0)),
    (r"\b(?:GH200|H200|H100|H800|H20)\b", (9, 0)),
    (r"\b(?:L40[SG]?|L4|L20|L2)\b|RTX 40[5-9]0|RTX \d+ (?:SFF )?Ada", (8, 9)),
    (r"RTX PRO \d|RTX 50[5-9]0", (12, 0)),
    (r"Orin", (8, 7)),
    (r"\b(?:A40|A10[GM]?|A16|A2)\b|RTX A\d{3,4}|RTX 30[5-9]0|RTX 2050|\bMX570\b", (8, 6)),
    (r"\b(?:A100X?|A800|A30X?)\b", (8, 0)),
    (r"\bT4G?\b|RTX 20[678]0|GTX 16\d0|Quadro RTX|Titan RTX|\bMX[45]50\b", (7, 5)),
    (r"\bT(?:400|500|550|600|1000|1200|2000)\b", (7, 5)),
    (r"Xavier", (7, 2)),
    (r"\bV100|Titan V\b|GV100", (7, 0)),
    (r"\bG?P100\b", (6, 0)),
    (r"GTX Titan X\b|\b(?:M40|M60|M4|M6)\b|Quadro M(?:[3-6]\d00M?|2000)\b", (5, 2)),
    (r"GTX 9[56]0M|GTX 7[45]0|\bM10\b|Quadro M\d|Quadro K(?:620|1200|2200)\b|\bMX1[13]0\b", (5, 0)),
    (r"GTX 9\d0", (5, 2)),
    (r"\b(?:P40|P4|P6)\b|GTX 10\d0|GT 10[13]0|Titan Xp?\b|Quadro P\d+|\bMX(?:150|2[35]0|3[35]0)\b", (6, 1)),
    (r"\bK80\b", (3, 7)),
    (r"\bK40", (3, 5)),
)


def capability_of(name: str) -> Capability | None:
    """A GPU's compute capability by its name; None for names that are not in the table.

    >>> capability_of("NVIDIA GeForce RTX 4080 SUPER"), capability_of("Tesla V100-SXM2-16GB")
    ((8, 9), (7, 0))
    """
    return next((at for pattern, at in CAPABILITY_BY_NAME if re.search(pattern, name, re.IGNORECASE)), None)


def compat(driver: Driver, name: str) -> dict[str, str]:
    """For each CUDA variant, best first: "ok", "driver_too_old", "arch_unsupported" or "unknown".

    `driver` may be shortened to its branch, as in (570,): then only that much is compared.

    >>> compat((580,), "Tesla V100-SXM2-16GB")
    {'cu130': 'arch_unsupported', 'cu128': 'ok', 'cu126': 'ok'}
    """
    capability = capability_of(name)
    said = {}
    for variant in (VARIANTS[each] for each in PREFERENCE):
        floor = variant.floor_for(capability)
        if driver < floor[: len(driver)]:
            said[variant.name] = "driver_too_old"
        elif capability is None:
            said[variant.name] = "unknown"
        else:
            said[variant.name] = "ok" if variant.runs_on(capability) else "arch_unsupported"
    return said


def covered_by(arch_list: Iterable[str], capability: Capability) -> str | None:
    """How a build covers a GPU: "code", "ptx" (compiled at the first start), or None.

    torch's own rule: code for sm_XY runs on the same major with minor >= Y; suffixes (sm_90a, sm_100f) bind it to
    that one capability (a) or that family (f). PTX of any earlier capability can be compiled for the GPU.

    >>> covered_by(["sm_86", "sm_90a"], (8, 9)), covered_by(["sm_86", "compute_90"], (12, 0))
    ('code', 'ptx')
    """
    ptx = False
    for arch in arch_list:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not found:
            continue
        built_for = (int(found[2]), int(found[3]))
        if found[1] == "compute":
            ptx = ptx or built_for <= capability
        elif found[4] == "a":
            if built_for == capability:
                return "code"
        elif built_for[0] == capability[0] and built_for[1] <= capability[1] and capability not in EXCLUDED:
            return "code"
    return "ptx" if ptx else None
