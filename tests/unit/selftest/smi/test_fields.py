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
