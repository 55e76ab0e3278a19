"""Which image variant fits a driver and a GPU, where only the GPU's name is known; and torch's rule for code.

Drivers before 510 have no `compute_cap`, and a table never shows it: then the name decides. Capabilities: NVIDIA's
list of CUDA GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchtap.variants import EXCLUDED, PREFERENCE, VARIANTS, Capability, Driver

# First match wins, so the longer names come first. Searched in the name without case.
CAPABILITY_BY_NAME: tuple[tuple[str, Capability], ...] = (
    (r"\bGB10\b", (12, 1)),
    (r"\bG?B300\b", (10, 3)),
    (r"\bG?B200\b", (10, 0)),
    (r"RTX PRO \d+ .*Blackwell|RTX 50\d0", (12, 0)),
    (r"\b(?:GH200|H200|H100|H800|H20)\b", (9, 0)),
    (r"\b(?:L40S?|L4|L20)\b|RTX 40\d0|RTX \d+ Ada", (8, 9)),
    (r"Orin", (8, 7)),
    (r"\b(?:A40|A10G?|A16|A2)\b|RTX A\d{3,4}|RTX 30\d0|RTX 2050", (8, 6)),
    (r"\b(?:A100|A800|A30)\b", (8, 0)),
    (r"\bT4G?\b|RTX 20\d0|GTX 16\d0|Quadro RTX|T(?:400|500|550|600|1000|1200)\b|Titan RTX", (7, 5)),
    (r"Xavier", (7, 2)),
    (r"\bV100|Titan V\b|GV100", (7, 0)),
    (r"\b(?:P40|P4|P6)\b|GTX 10\d0|Titan X[p]?\b|Quadro P\d+", (6, 1)),
    (r"\bP100\b", (6, 0)),
    (r"\b(?:M40|M60|M10)\b|GTX 9\d0", (5, 2)),
    (r"GTX 7[45]0", (5, 0)),
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
        floor = variant.driver_floor or ()
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
