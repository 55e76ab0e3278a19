"""What GPUs of known kinds reach: memory, bandwidth and dense matrix rates, to compare measured numbers with.

Sources: A the accelerator pages of stas00/ml-engineering (public, from NVIDIA's data sheets); B the table
winston-zhang-orz/gpu-specs (public); C other public copies of NVIDIA's data sheets; U from memory of the data sheets,
unverified: such a number only warns. Rates are dense: many lists print the sparse number, twice as large, for H100
(1979) and its kin. `dcgm` is the least bandwidth that NVIDIA DCGM's diagnostic accepts (diag-skus.yaml), for
comparison only, and `watts` the power that its load is to reach: entries of that file that are plainly wrong are left
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One kind of GPU. Memory in GB (10^9 bytes as sold), bandwidth in GB/s, rates in dense TFLOP/s by type."""

    name: str
    pattern: (
        str  # searched in the name that the driver gives, without case; the first row that matches counts
    )
    memory_gb: float
    bandwidth: float
    tflops: Mapping[str, float] = field(default_factory=dict)
    capability: str
    source: str
    dcgm: float | None = None
    watts: float | None = None
    above_gib: float = 0.0  # for two kinds of one name: this row only where the GPU has more memory

    @property
    def verified(self) -> bool:
        """Whether every number has a public source."""
        return "U" not in self.source


def _rates(fp32: float, tf32: float | None, fp16: float | None, bf16: float | None) -> dict[str, float]:
    named = {"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16}
    return {name: rate for name, rate in named.items() if rate is not None}


_HOPPER = _rates(67, 495, 989, 989)
_BLACKWELL = _rates(80, 1125, 2250, 2250)
_A100 = _rates(19.5, 156, 312, 312)


def _row(
    name: str,
    pattern: str,
    memory_gb: float,
    bandwidth: float,
    tflops: Mapping[str, float],
    capability: str,
    source: str,
    dcgm: float | None = None,
    watts: float | None = None,
    above_gib: float = 0.0,
) -> Reference:
    return Reference(
        name=name,
        pattern=pattern,
        memory_gb=memory_gb,
        bandwidth=bandwidth,
        tflops=tflops,
        capability=capability,
        source=source,
        dcgm=dcgm,
        watts=watts,
        above_gib=above_gib,
    )


# Names as drivers give them: "NVIDIA H100 80GB HBM3" is the SXM board, "NVIDIA H100 PCIe" and "NVIDIA H100 NVL" say so.
REFERENCES: tuple[Reference, ...] = (
    _row("B300", r"\bB300\b", 288, 8000, _BLACKWELL, "10.3", "A", 4623, 1099),
    _row("B200", r"\bB200\b", 180, 8000, _BLACKWELL, "10.0", "A", 4072, 1000),
    _row("GH200 144 GB", r"\bGH200\b", 144, 4900, _HOPPER, "9.0", "A, memory U", 2340, 900, above_gib=120),
    _row("GH200 96 GB", r"\bGH200\b", 96, 4000, _HOPPER, "9.0", "A, memory U", 2130, 900),
    _row("H200 NVL", r"\bH200 NVL\b", 141, 4800, {}, "9.0", "U"),
    _row("H200 SXM", r"\bH200\b", 141, 4800, _HOPPER, "9.0", "A", 2212, 700),
    _row("H100 NVL", r"\bH100 NVL\b", 94, 3900, _rates(60, 417, 835, 835), "9.0", "U", 2043, 399),
    _row("H100 PCIe", r"\bH100 PCIe\b", 80, 2000, _rates(51, 378, 756, 756), "9.0", "A", 1230, 350),
    _row("H100 SXM", r"\bH100 80GB HBM3\b|\bH100 SXM", 80, 3350, _HOPPER, "9.0", "A", 1905, 700),
    _row("A100 80 GB PCIe", r"\bA100 80GB PCIe\b", 80, 1935, _A100, "8.0", "A, B", 1121, 299),
    _row("A100 80 GB SXM", r"\bA100-SXM4?-80GB\b", 80, 2039, _A100, "8.0", "A, B", 1173, 399),
    _row("A100 40 GB", r"\bA100-(?:SXM4?|PCIE)-40GB\b", 40, 1555, _A100, "8.0", "B, C", 970, 299),
    _row("L40S", r"\bL40S\b", 48, 864, _rates(91.6, 183, 362, 362), "8.9", "A, B", 525, 350),
    _row("L4", r"\bL4\b", 24, 300, _rates(30.3, 60, 121, 121), "8.9", "B", 198, 75),
    _row("A10", r"\bA10\b", 24, 600, _rates(31.2, 62.5, 125, 125), "8.6", "B", 311, 150),
    _row("A40", r"\bA40\b", 48, 696, _rates(37.4, 75, 150, 150), "8.6", "C", 424, 299),
    _row(
        "T4",
        r"\bT4\b",
        16,
        320,
        _rates(8.1, None, 65, None),
        "7.5",
        "B, C (300 GB/s in some sheets)",
        183,
        65,
    ),
    _row(
        "V100 SXM2",
        r"\bV100-SXM2\b",
        16,
        900,
        _rates(15.7, None, 125, None),
        "7.0",
        "B (also with 32 GB)",
        607,
        299,
    ),
    _row("P100 PCIe", r"\bP100-PCIE-16GB\b", 16, 732, _rates(9.3, None, None, None), "6.0", "C", watts=249),
    _row("RTX 5090", r"\bRTX 5090$", 32, 1792, _rates(104.8, 104.8, 209.5, 209.5), "12.0", "C, U"),
    _row("RTX 4090", r"\bRTX 4090$", 24, 1008, _rates(82.6, 82.6, 165, 165), "8.9", "C, U"),
    _row("RTX 3090", r"\bRTX 3090$", 24, 936, _rates(35.6, 35.6, 71, 71), "8.6", "C, U"),
    _row("RTX 6000 Ada", r"\bRTX 6000 Ada\b", 48, 960, _rates(91.1, 182, 364, 364), "8.9", "C, U"),
    _row("RTX A6000", r"\bRTX A6000\b", 48, 768, _rates(38.7, 77, 155, 155), "8.6", "C, U", 506, 299),
    _row(
        "RTX PRO 6000",
        r"\bRTX PRO 6000 Blackwell",
        96,
        1792,
        _rates(118, None, None, 500),
        "12.0",
        "U",
        1110,
        600,
    ),
    _row("GTX 1080 Ti", r"\bGTX 1080 Ti\b", 11, 484, _rates(11.3, None, None, None), "6.1", "U"),
)


def reference_of(name: str, memory_mib: int) -> Reference | None:
    """The row for a GPU of this name, as torch or nvidia-smi gives it; None where there is none.

    A slice of a GPU (MIG, vGPU) has none: its share of bandwidth and units is not in a data sheet.

    >>> reference_of("NVIDIA H100 80GB HBM3", 81559).name, reference_of("NVIDIA H100 PCIe", 81559).name
    ('H100 SXM', 'H100 PCIe')
    >>> reference_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9856), reference_of("GRID T4-8Q", 8192)
    (None, None)
    """
    if re.search(r"\bMIG\b|^GRID\b|^NVIDIA \w+-\d+[ABCQ]$|Laptop|Max-Q", name):
        return None
    for row in REFERENCES:
        fits = memory_mib / 1024 > row.above_gib
        # A card with a third less memory than its row is another one, whatever its name (vGPU profiles, engineering).
        large_enough = memory_mib * 1.048576 / 1000 >= 0.66 * row.memory_gb
        if fits and large_enough and re.search(row.pattern, name, re.IGNORECASE):
            return row
    return None


# Boards of HGX and DGX hosts, where every link is wired. PCIe and NVL boards are bridged in pairs, in part or not.
_SWITCHED = re.compile(r"\b(?:A100|A800)-SXM|V100-SXM3|HBM3|\bH20\b|\b(?:H|B|GB)\d00\b(?! (?:PCIe|NVL))")


def has_nvswitch(name: str) -> bool:
    """Whether a GPU of this name is a board for hosts with NVSwitch.

    >>> has_nvswitch("NVIDIA H100 80GB HBM3"), has_nvswitch("NVIDIA H100 NVL"), has_nvswitch("NVIDIA L40S")
    (True, False, False)
    """
    return _SWITCHED.search(name) is not None
