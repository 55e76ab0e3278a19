"""The table of what GPUs reach: found by the names that drivers give, and never by those of a slice."""

from __future__ import annotations

import re

import pytest

from torchtap.selftest.compat import capability_of
from torchtap.selftest.references import REFERENCES, has_nvswitch, reference_of


@pytest.mark.parametrize(
    ("name", "memory_mib", "row"),
    [
        ("NVIDIA H200", 143771, "H200 SXM"),
        ("NVIDIA H200 NVL", 143771, "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe"),
        ("NVIDIA H100 NVL", 95830, "H100 NVL"),
        ("NVIDIA GH200 480GB", 97871, "GH200 96 GB"),
        ("NVIDIA GH200 144G HBM3e", 146000, "GH200 144 GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100 80 GB SXM"),
        ("A100-SXM-80GB", 81251, "A100 80 GB SXM"),
        ("A100-SXM-40GB", 40537, "A100 40 GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100 80 GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100 40 GB"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA L40", 46068, None),
        ("NVIDIA A10", 23028, "A10"),
        ("NVIDIA A10G", 23028, None),
        ("NVIDIA A40", 46068, "A40"),
        ("Tesla T4", 15360, "T4"),
        ("Tesla V100-SXM2-16GB", 16384, "V100 SXM2"),
        ("Tesla V100-SXM2-32GB", 32768, "V100 SXM2"),
        ("Tesla V100-PCIE-16GB", 16384, None),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", 24564, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, None),
        ("NVIDIA GeForce RTX 3090 Ti", 24564, None),
        ("NVIDIA GeForce RTX 4080 SUPER", 16376, None),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", 49140, "RTX A6000"),
        ("NVIDIA GB10", 122570, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9856, None),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 81152, None),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968, None),
        ("NVIDIA A40-48Q", 49152, None),
        ("NVIDIA A40", 12288, None),
        ("", 0, None),
    ],
)
def test_a_gpu_is_found_by_the_name_its_driver_gives(name: str, memory_mib: int, row: str | None):
    """PCIe and SXM boards apart; no row for what is not in the table, nor for a slice of a GPU."""
    found = reference_of(name, memory_mib)
    assert (found.name if found else None) == row


@pytest.mark.parametrize(
    ("name", "switched"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H200", True),
        ("NVIDIA H20", True),
        ("NVIDIA B200", True),
        ("NVIDIA GB200", True),
        ("NVIDIA A100-SXM4-40GB", True),
        ("A100-SXM-80GB", True),
        ("Tesla V100-SXM3-32GB", True),
        ("Tesla V100-SXM2-16GB", False),  # a DGX-1: a mesh, of which a VM may have a part
        ("NVIDIA H200 NVL", False),
        ("NVIDIA H100 NVL", False),
        ("NVIDIA H100 PCIe", False),
        ("NVIDIA A100 80GB PCIe", False),
        ("NVIDIA A100-PCIE-40GB", False),
        ("NVIDIA GH200 480GB", False),
        ("NVIDIA GB10", False),
        ("NVIDIA RTX A6000", False),
        ("NVIDIA L40S", False),
        ("", False),
    ],
)
def test_boards_with_nvswitch_are_known_by_their_names(name: str, switched: bool):
    """All of their links are wired."""
    assert has_nvswitch(name) is switched


def test_rows_agree_with_each_other_and_with_the_capabilities():
    """One name, one row; numbers of one order; the compute capability as compat.py has it; a source for each."""
    assert len({row.name for row in REFERENCES}) == len(REFERENCES)
    for row in REFERENCES:
        assert re.fullmatch(r"[ABCU].*", row.source), row.name
        assert 100 < row.bandwidth <= 8000, row.name
        assert row.dcgm is None or 0.4 < row.dcgm / row.bandwidth < 0.7, row.name
        assert row.tflops.get("fp16", 0) >= row.tflops.get("tf32", 0) >= 0, row.name
        known = capability_of(f"NVIDIA {row.name}")
        if known is not None:
            assert ".".join(map(str, known)) == row.capability, row.name
