"""Which field belongs to which driver."""

from __future__ import annotations

import fnmatch

import pytest

from tests.engine.simulate import fields

COLUMNS = (
    "390.157 418.226.00 450.248.02 460.106.00 470.256.02 535.261.03 550.163.01 590.48.01 595.71.05 610.57.04"
)


@pytest.mark.parametrize(("place", "driver"), list(enumerate(COLUMNS.split(), start=1)))
def test_a_driver_of_the_table_has_its_own_column(place: int, driver: str) -> None:
    rows = [line.split("\t") for line in fields.TABLE.read_text().splitlines()[2:]]
    assert fields.valid(driver) == {row[0] for row in rows if row[place] == "1"}


@pytest.mark.parametrize(
    ("driver", "column"),
    [
        ("580.126.09", "550.163.01"),
        ("590.48.02", "590.48.01"),
        ("590.44.01", "550.163.01"),
        ("999.1", "610.57.04"),
        ("340.108", "390.157"),
    ],
)
def test_another_driver_has_the_nearest_column_at_or_below(driver: str, column: str) -> None:
    assert fields.valid(driver) == fields.valid(column)


def test_an_alias_is_valid_wherever_its_first_name_is() -> None:
    for name, first in fields.ALIASES.items():
        if name not in ("used_memory",):  # of --query-compute-apps, which the table does not hold
            assert [name in fields.valid(driver) for driver in COLUMNS.split()] == [
                first in fields.valid(driver) for driver in COLUMNS.split()
            ]


@pytest.mark.parametrize(
    ("name", "unit"), [("memory.total", "MiB"), ("clocks.current.sm", "MHz"), ("temperature.gpu", "")]
)
def test_units(name: str, unit: str) -> None:
    found = [unit for pattern, unit in fields.UNITS if fnmatch.fnmatchcase(name, pattern)]
    assert (found or [""])[0] == unit
