"""docs/complaints.md and docs/claims.md: every row is there, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = {
    "complaints.md": [str(number) for number in range(1, 35)],
    "claims.md": [
        *(f"A{number}" for number in range(1, 19)),
        *(f"B{number}" for number in range(1, 17)),
    ],
}
# What a row may say in place of a test.
HONEST = ("not ours:", "not yet:")


@cache
def known_tests() -> frozenset[str]:
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(names)


def rows(page: str) -> dict[str, list[str]]:
    """The table of a page: first cell → the other cells."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if re.match(r"\| [AB]?\d+ \|", line):
            first, *others = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            assert first not in found, f"{page}: two rows {first}"
            found[first] = others
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_row_is_there(page: str) -> None:
    assert list(rows(page)) == PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_a_test_or_says_why_not(page: str) -> None:
    for number, cells in rows(page).items():
        named = re.findall(r"`(test_\w+)`", cells[-1])
        assert named or cells[-1].startswith(HONEST), f"{page} row {number} shows nothing"
        missing = [name for name in named if name not in known_tests()]
        assert not missing, f"{page} row {number} names tests that do not exist: {missing}"
