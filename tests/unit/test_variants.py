"""The one table (driver, capability) -> variant: every generation of GPU, at every driver branch that matters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtap.variants import (
    BLACKWELL_FLOOR,
    CUDA_12_FLOOR,
    CUDA_13_FLOOR,
    DEFAULT,
    PREFERENCE,
    VARIANTS,
    Capability,
    Driver,
    fitting_variant,
)

ROOT = Path(__file__).parents[2]
GPUS: dict[str, Capability] = {
    "Maxwell M60": (5, 2),
    "Pascal P100": (6, 0),
    "Pascal GTX 1080": (6, 1),
    "Volta V100": (7, 0),
    "Turing T4": (7, 5),
    "Ampere A100": (8, 0),
    "Ampere RTX 3090": (8, 6),
    "Ada L4": (8, 9),
    "Hopper H200": (9, 0),
    "Blackwell B200": (10, 0),
    "Blackwell RTX 5090": (12, 0),
}
DRIVERS: dict[str, Driver] = {
    "470": (470, 256, 2),
    "520": (520, 61, 5),
    "525": (525, 60, 13),
    "535": (535, 54, 3),
    "550": (550, 54, 15),
    "565": (565, 57, 1),
    "570": (570, 26),
    "575": (575, 51, 3),
    "579": (579, 99),
    "580": (580, 65, 6),
    "590": (590, 48, 1),
    "610": (610, 0, 1),
}
# What each generation gets from each branch on; before the first nothing fits.
EXPECTED: dict[str, dict[str, str]] = {
    "Maxwell M60": {"525": "cu126"},
    "Pascal P100": {"525": "cu126"},
    "Pascal GTX 1080": {"525": "cu126"},
    "Volta V100": {"525": "cu128"},
    "Turing T4": {"525": "cu128", "580": "cu130"},
    "Ampere A100": {"525": "cu128", "580": "cu130"},
    "Ampere RTX 3090": {"525": "cu128", "580": "cu130"},
    "Ada L4": {"525": "cu128", "580": "cu130"},
    "Hopper H200": {"525": "cu128", "580": "cu130"},
    "Blackwell B200": {"570": "cu128", "580": "cu130"},
    "Blackwell RTX 5090": {"570": "cu128", "580": "cu130"},
}


@pytest.mark.parametrize("branch", DRIVERS)
@pytest.mark.parametrize("gpu", GPUS)
def test_c19_c22_driver_and_capability_decide(gpu: str, branch: str) -> None:
    """Complaints 19 and 22: a GPU too old or too new for the wheel, a driver too old for CUDA 13."""
    reached = [name for since, name in EXPECTED[gpu].items() if DRIVERS[branch] >= DRIVERS[since]]
    found = fitting_variant(DRIVERS[branch], GPUS[gpu])
    assert (found.name if found else None) == (reached[-1] if reached else None)


@pytest.mark.parametrize("branch", DRIVERS)
def test_a_gpu_that_could_not_be_asked_leaves_it_to_the_driver(branch: str) -> None:
    found = fitting_variant(DRIVERS[branch], None)
    driver = DRIVERS[branch]
    expected = "cu130" if driver >= CUDA_13_FLOOR else "cu128" if driver >= CUDA_12_FLOOR else None
    assert (found.name if found else None) == expected


@pytest.mark.parametrize("capability", [(3, 5), (5, 3), (6, 2), (7, 2), (8, 7), (11, 0), (13, 0)])
def test_a_gpu_that_no_build_holds_code_for_has_no_variant(capability: Capability) -> None:
    """Unknown is said, not guessed: a newer GPU than all builds, and parts that torch leaves out."""
    assert fitting_variant((999, 0), capability) is None


@pytest.mark.parametrize(
    ("floor", "gpu"), [(CUDA_12_FLOOR, (7, 5)), (CUDA_13_FLOOR, (7, 5)), (BLACKWELL_FLOOR, (12, 0))]
)
def test_the_floor_itself_is_enough_and_one_below_is_not(floor: Driver, gpu: Capability) -> None:
    below = (*floor[:-1], floor[-1] - 1)
    assert fitting_variant(floor, gpu) != fitting_variant(below, gpu)


def test_whatever_fits_holds_code_for_the_gpu_and_works_with_the_driver() -> None:
    for capability in GPUS.values():
        for driver in DRIVERS.values():
            found = fitting_variant(driver, capability)
            assert found is None or found.runs_on(capability)
            assert found is None or (found.driver_floor is not None and driver >= found.driver_floor)


def test_no_host_with_a_gpu_is_given_the_cpu_build() -> None:
    assert set(PREFERENCE) == {name for name, row in VARIANTS.items() if row.cuda}
    assert PREFERENCE[0] == DEFAULT


@pytest.mark.parametrize("name", [name for name, row in VARIANTS.items() if row.cuda])
def test_c20_what_the_toolkit_is_asked_for_is_the_floor_of_the_major(name: str) -> None:
    """Complaint 20: the base asks for its own minor version, and refuses drivers that work."""
    row = VARIANTS[name]
    assert row.cuda is not None
    assert row.require_cuda == f"cuda>={row.cuda.partition('.')[0]}.0"


@pytest.mark.parametrize("name", [name for name, row in VARIANTS.items() if row.cuda])
def test_c12_base_and_wheel_are_of_one_cuda(name: str) -> None:
    """Complaint 12: image CUDA and wheel CUDA differ, and extensions refuse to compile."""
    row = VARIANTS[name]
    match = re.match(r"nvidia/cuda:(\d+\.\d+)\.\d+-base-", row.base)
    assert match
    assert match[1] == row.cuda


def test_readme_says_of_each_variant_what_the_table_says() -> None:
    text = (ROOT / "README.md").read_text()
    for row in VARIANTS.values():
        (line,) = re.findall(rf"(?m)^\| `{row.name}`.*$", text)
        assert row.torch in line
        assert (row.cuda or "") in line
        assert ("built and tested in CI" in line) == row.built_here
        if row.driver_floor:
            assert f"{row.driver_floor[0]} or newer" in line
