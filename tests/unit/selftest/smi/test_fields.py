"""Fields: their forms, and the drivers that know them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtap.selftest.smi.fields import ALIASES, FIELDS, ONLY_IN_Q, NotThisFormError
from torchtap.variants import parse_version

TABLE = Path(__file__).parents[3] / "engine" / "simulate" / "smi_fields.tsv"


def drivers_that_know() -> dict[str, dict[tuple[int, ...], bool]]:
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    drivers = [parse_version(text) for text in lines[0][1:]]
    return {
        line[0]: dict(zip(drivers, (each == "1" for each in line[1:]), strict=True)) for line in lines[1:]
    }


KNOWN = drivers_that_know()
# Accepted by nvidia-smi and left out of its own help; read from outputs, never asked.
NOT_IN_HELP = {"temperature.current"}


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ONLY_IN_Q])
def test_a_field_is_asked_exactly_where_drivers_know_it(name: str):
    """Against `--help-query-gpu` of ten drivers. A refused field costs a call, a field not asked costs an answer."""
    for driver, knows in KNOWN[name].items():
        assert FIELDS[name].worth_asking(driver) is knows, driver


@pytest.mark.parametrize("alias", sorted(set(ALIASES) - NOT_IN_HELP))
def test_an_alias_is_a_name_that_nvidia_smi_knows(alias: str):
    """Both names are in the table of fields."""
    assert alias in KNOWN
    assert ALIASES[alias] in KNOWN


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("index", "7", "seven"),
        ("memory.total", "81559 MiB", "81559 parsecs"),
        ("temperature.gpu", "-3", "28C?"),
        ("power.draw", "77.71 W", "77,71"),
        ("uuid", "GPU-11111111-2222-3333-4444-555555555500", "GPU-1"),
        ("pci.bus_id", "00000000:41:00.0", "41"),
        ("driver_version", "590.48.01", "newest"),
        ("compute_cap", "9.0", "90"),
        ("clocks_throttle_reasons.active", "0x0000000000000001", "1"),
        ("retired_pages.pending", "No", "Perhaps"),
        ("compute_mode", "Exclusive_Process", "Fast"),
        ("mig.mode.current", "Enabled", "Yes"),
        ("name", "NVIDIA H100 80GB HBM3", "\\x00\\x01"),
    ],
)
def test_a_value_must_have_its_fields_form(field: str, good: str, bad: str):
    """Garbage raises, so that it can never be taken for health."""
    FIELDS[field].read(good)
    with pytest.raises(NotThisFormError):
        FIELDS[field].read(bad)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("memory.total", ["512", "143771"], ["0", "1", "255", "99999999"]),
        ("pcie.link.width.max", ["1", "4", "16"], ["3", "7", "64", "160"]),
        ("pcie.link.gen.current", ["1", "5"], ["9", "16"]),
        ("utilization.gpu", ["0", "100"], ["101"]),
        ("pstate", ["P0", "P15"], ["P16", "P99"]),
    ],
)
def test_a_value_that_cannot_be_is_no_reading(field: str, good: list[str], bad: list[str]):
    """It has the form of its field, and no GPU can say it."""
    for text in good:
        FIELDS[field].read(text)
    for text in bad:
        with pytest.raises(NotThisFormError):
            FIELDS[field].read(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "NVIDIA H200",
            "NVIDIA GB10",
            "NVIDIA GH200 480GB",
            "NVIDIA T4",
            "Tesla T4",
            "Tesla V100-SXM2-16GB",
        ),
        *(
            "A100-SXM4-40GB",
            "A40",
            "GRID A100-3-20C",
            "NVIDIA L40S-24Q",
            "NVIDIA RTXA6000-48Q",
            "GRID T4-16Q",
        ),
        *(
            "GeForce GTX 1080 Ti",
            "NVIDIA GeForce",
            "GeForce",
            "NVIDIA GeForce RTX 4080 SUPER",
            "Quadro RTX 6000",
        ),
        *(
            "TITAN Xp",
            "TITAN RTX",
            "NVIDIA TITAN V",
            "RTX A6000",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        ),
        *("NVIDIA RTX 6000 Ada Generation", "NVIDIA A100 80GB PCIe", "NVIDIA DGX Display", "Graphics Device"),
        *(
            "NVIDIA Graphics Device",
            "P102-100",
            "PG506-230",
            "NVIDIA CMP 170HX",
            "Orin (nvgpu)",
            "NVIDIA Thor",
        ),
        *("NVS 810", "NVIDIA Tegra X1 (nvgpu)/integrated", "EIZO Quadro MED-XN92", "NVIDIA A800-SXM4-80GB"),
        *("Thor", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20", "NVIDIA B200", "NVIDIA GB200"),
    ],
)
def test_names_of_products_are_names(text: str):
    """Of drivers 390 to 610, cut by a table, of virtual GPUs and of boards without a brand."""
    assert FIELDS["name"].read(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Reset",
            "Unhealthy",
            "State Completed",
            "Timeout waiting",
            "uninitialised",
            "Unknown Error",
            "None",
        ),
        *(
            "Driver Not Loaded",
            "GPU is lost",
            "GPU 0",
            "GPU0 lost",
            "N A",
            "NVIDIA driver not loaded",
            "Error 15",
        ),
        *("nvidia", "Insufficient Size", "lorem ipsum", "Nvidia-smi", "NVIDIA-SMI has failed"),
    ],
)
def test_what_is_no_product_is_no_name(text: str):
    """An error of the driver has the shape of a name too."""
    with pytest.raises(NotThisFormError):
        FIELDS["name"].read(text)
