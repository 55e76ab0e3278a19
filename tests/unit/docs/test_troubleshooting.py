"""docs/troubleshooting.md: what it says that we print, we print; nothing that a user can meet is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/troubleshooting.md").read_text()
ENTRY = re.compile(r"^### (?P<symptom>.+)\n<!-- (?P<about>.+) -->\n(?P<body>(?:(?!^##).*\n?)*)", re.M)
ENTRIES = [match.groupdict() for match in ENTRY.finditer(TEXT)]
# Complaints about images of this kind that a user of this one can meet (shared list of public reports).
COMPLAINTS = range(1, 35)


def places(about: str) -> list[tuple[str, str]]:
    """(file, fragment) of what we print; empty for what others do."""
    found = re.match(r"(?:[c\d ]+; )?ours: (.+)", about)
    pairs = [piece.strip().partition(": ") for piece in found[1].split(";")] if found else []
    return [(file, fragment) for file, _, fragment in pairs]


def test_every_heading_says_whose_words_it_is() -> None:
    assert len(ENTRIES) == len(re.findall(r"(?m)^### ", TEXT)) > 40
    for entry in ENTRIES:
        assert re.match(r"(?:c[\d]+(?: c\d+)*; )?(ours|not ours): \S", entry["about"]), entry["symptom"]


@pytest.mark.parametrize(
    ("symptom", "file", "fragment"),
    [(entry["symptom"], *place) for entry in ENTRIES for place in places(entry["about"])],
)
def test_words_of_ours_are_in_the_source_and_in_the_heading(symptom: str, file: str, fragment: str) -> None:
    """So that neither can change alone."""
    source = (ROOT / file).read_text()
    shown = fragment or symptom.strip("`")
    assert shown in re.sub(r'"\s*\n\s*f?"', "", source), f"{file} does not say {shown!r}"
    assert shown in symptom


def test_every_complaint_has_an_entry() -> None:
    covered = {int(number) for entry in ENTRIES for number in re.findall(r"\bc(\d+)\b", entry["about"])}
    assert set(COMPLAINTS) - covered == set()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["symptom"][:50])
def test_cause_and_remedy_follow(entry: dict[str, str]) -> None:
    lines = [line for line in entry["body"].splitlines() if line.strip()]
    assert lines, entry["symptom"]
    assert not lines[0].startswith("```"), "the cause comes before the command"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


def test_no_secret_and_no_fixed_sleep_is_advised() -> None:
    assert not re.search(
        r"(?i)StrictHostKeyChecking[ =]no|--privileged|chmod 777|--break-system-packages", TEXT
    )
