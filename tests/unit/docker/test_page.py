"""docs/image.md says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import page
from entrypoint.roles import COMMANDS, ROLES
from entrypoint.settings import VARIABLES

ROOT = Path(__file__).parents[3]
TEXT = page.PAGE.read_text()


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_generated_tables_are_up_to_date(path: Path) -> None:
    """If not: python3 docker/page.py"""
    assert page.filled(path.read_text(), page.PAGES[path]) == path.read_text()


@pytest.mark.parametrize("name", [variable.name for variable in VARIABLES])
def test_every_variable_has_a_row_with_default_and_choices(name: str) -> None:
    (variable,) = (row for row in VARIABLES if row.name == name)
    (line,) = (line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
    assert (
        f"| `{name}` | {f'`{variable.default}`' if variable.default else 'none'} | {variable.meaning}" in line
    )
    assert all(f"`{choice}`" in line for choice in variable.choices)
    assert ("Kept out of sessions" in line) is variable.secret


@pytest.mark.parametrize("role", [*ROLES, *COMMANDS])
def test_every_role_has_a_row(role: str) -> None:
    assert re.search(rf"(?m)^\| `{role}` \| ", TEXT)


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image\.md: 0 places for the table of roles, not one"):
        page.filled("# The image\n")


def test_the_page_can_be_made_on_a_bare_host() -> None:
    """Standard library only, as all of docker/entrypoint."""
    code = "import sys; sys.path.insert(0, 'docker'); import page; print(page.filled(page.PAGE.read_text()), end='')"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == TEXT


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_links_lead_somewhere(link: str) -> None:
    assert (page.PAGE.parent / link).exists()


@pytest.mark.parametrize(
    ("said", "where"),
    [
        (r"At the latest 0\.3 s", "docker/entrypoint/stop.py: LAST_S = 0.3"),
        (r"0\.5 s before the grace", "docker/entrypoint/stop.py: MARGIN_S = 0.5"),
        (r"10 s by default", "docker/entrypoint/settings.py: default=\"10\""),
        (r"30 s in `compose\.yaml`", "compose.yaml: STOP_GRACE:-30"),
        (r"2222 where 22 is taken", "docker/entrypoint/plan.py: FALLBACK_SSH_PORT = 2222"),
        (r"an id of 500 or more", "docker/entrypoint/account.py: LOWEST_EXTRA_ID = 500"),
        (r"`/run/secrets/ssh_public_key`", "docker/entrypoint/gather.py: /run/secrets/ssh_public_key"),
        (r"half the grace period", "docker/entrypoint/apply.py: stop_grace_s * 1000 / 2"),
    ],
)  # fmt: skip
def test_numbers_and_places_in_the_text_are_those_of_the_code(said: str, where: str) -> None:
    file, _, code = where.partition(": ")
    assert re.search(said, TEXT)
    assert code in (ROOT / file).read_text()
