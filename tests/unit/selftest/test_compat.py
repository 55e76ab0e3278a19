"""Which variant fits, by name and by capability."""

from __future__ import annotations

import pytest

from torchtap.selftest.compat import capability_of, compat, covered_by


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA B200", (10, 0)),
        ("NVIDIA GB200", (10, 0)),
        ("NVIDIA B300 SXM6 AC", (10, 3)),
        ("NVIDIA GB10", (12, 1)),
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA L4", (8, 9)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA A100-SXM4-40GB", (8, 0)),
        ("NVIDIA A800-SXM4-80GB", (8, 0)),
        ("NVIDIA A10G", (8, 6)),
        ("NVIDIA RTX A6000", (8, 6)),
        ("Tesla T4", (7, 5)),
        ("NVIDIA GeForce RTX 2080 SUPER", (7, 5)),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5)),
        ("Quadro RTX 8000", (7, 5)),
        ("Tesla V100-SXM2-16GB", (7, 0)),
        ("Tesla P100-PCIE-16GB", (6, 0)),
        ("Tesla P40", (6, 1)),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1)),
        ("Tesla M60", (5, 2)),
        ("NVIDIA Graphics Device", None),
        ("Quadro RTX 5000", (7, 5)),
        ("Quadro RTX 4000", (7, 5)),
        ("Quadro RTX 3000 with Max-Q Design", (7, 5)),
        ("NVIDIA RTX 5000 Ada Generation", (8, 9)),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", (8, 9)),
        ("NVIDIA RTX 4000 SFF Ada Generation", (8, 9)),
        ("NVIDIA RTX 500 Ada Generation Laptop GPU", (8, 9)),
        ("NVIDIA GeForce RTX 5060 Laptop GPU", (12, 0)),
        ("NVIDIA RTX PRO 6000 Blac...", (12, 0)),
        ("NVIDIA RTX PRO 4500 Bla", (12, 0)),
        ("NVIDIA GeForce RTX 4090 D", (8, 9)),
        ("NVIDIA GeForce RTX 3050 OEM", (8, 6)),
        ("NVIDIA GeForce RTX 2050", (8, 6)),
        ("NVIDIA GeForce RTX 2060", (7, 5)),
        ("NVIDIA L2", (8, 9)),
        ("NVIDIA L20", (8, 9)),
        ("NVIDIA Thor", (11, 0)),
        ("NVIDIA Jetson T5000", (11, 0)),
        ("NVIDIA T5000", (11, 0)),
        ("NVIDIA T1000 8GB", (7, 5)),
        ("Quadro T2000", (7, 5)),
        ("NVIDIA GeForce MX450", (7, 5)),
        ("NVIDIA GeForce MX350", (6, 1)),
        ("Quadro GP100", (6, 0)),
        ("Quadro P6000", (6, 1)),
        ("NVIDIA TITAN X (Pascal)", (6, 1)),
        ("NVIDIA TITAN Xp", (6, 1)),
        ("NVIDIA GeForce GTX TITAN X", (5, 2)),
        ("Quadro M6000 24GB", (5, 2)),
        ("Quadro M2000M", (5, 0)),
        ("NVIDIA GeForce GTX 960M", (5, 0)),
        ("NVIDIA GeForce GTX 980", (5, 2)),
        ("NVIDIA A10-24Q", (8, 6)),
        ("Tesla K80", (3, 7)),
    ],
)
def test_a_name_gives_its_capability(name: str, capability: tuple[int, int] | None):
    """A name that is not in the table gives none, and no guess."""
    assert capability_of(name) == capability


@pytest.mark.parametrize(
    ("driver", "name", "said"),
    [
        ((580, 65, 6), "NVIDIA H200", {"cu130": "ok", "cu128": "ok", "cu126": "ok"}),
        ((570, 133, 20), "Tesla T4", {"cu130": "driver_too_old", "cu128": "ok", "cu126": "ok"}),
        ((580, 65, 5), "Tesla T4", {"cu130": "driver_too_old", "cu128": "ok", "cu126": "ok"}),
        ((590,), "Tesla P40", {"cu130": "arch_unsupported", "cu128": "arch_unsupported", "cu126": "ok"}),
        ((470, 82, 1), "Tesla T4", dict.fromkeys(("cu130", "cu128", "cu126"), "driver_too_old")),
        ((590,), "Quadro RTX 5000", dict.fromkeys(("cu130", "cu128", "cu126"), "ok")),
        (
            (535,),
            "NVIDIA GeForce RTX 5090",
            {"cu130": "driver_too_old", "cu128": "driver_too_old", "cu126": "arch_unsupported"},
        ),
        (
            (550, 163, 1),
            "NVIDIA B200",
            {"cu130": "driver_too_old", "cu128": "driver_too_old", "cu126": "arch_unsupported"},
        ),
        (
            (570,),
            "NVIDIA B200",
            {"cu130": "driver_too_old", "cu128": "ok", "cu126": "arch_unsupported"},
        ),
        ((590,), "NVIDIA Graphics Device", dict.fromkeys(("cu130", "cu128", "cu126"), "unknown")),
    ],
)
def test_driver_and_gpu_decide_for_each_variant(driver: tuple[int, ...], name: str, said: dict[str, str]):
    """The driver first, then the code; a GPU that is not known stays unknown."""
    assert compat(driver, name) == said


@pytest.mark.parametrize(
    ("arch_list", "capability", "covered"),
    [
        (["sm_80", "sm_86"], (8, 9), "code"),
        (["sm_86"], (8, 0), None),
        (["sm_75"], (8, 0), None),
        (["sm_90a"], (9, 0), "code"),
        (["sm_100f"], (10, 3), "code"),
        (["sm_100a"], (10, 3), None),
        (["sm_90", "compute_90"], (12, 0), "ptx"),
        (["compute_120"], (9, 0), None),
        (["sm_80"], (8, 7), None),
        (["lorem", ""], (9, 0), None),
        ([], (9, 0), None),
    ],
)
def test_code_runs_on_its_major_from_its_minor_on(
    arch_list: list[str], capability: tuple[int, int], covered: str | None
):
    """torch's rule, with suffixes and PTX."""
    assert covered_by(arch_list, capability) == covered
