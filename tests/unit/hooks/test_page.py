"""docs/hooks.md: its examples run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from tests.unit.hooks.nets import NETS
from torchtap import hooks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "hooks.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples_run() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 20
    assert failed == 0


def test_every_public_name_has_a_docstring_and_the_functions_are_on_the_page() -> None:
    for name in hooks.__all__:
        assert getattr(hooks, name).__doc__
        assert getattr(hooks, name).__module__.startswith("torchtap.hooks")
    for name in (
        "capture",
        "select",
        "on_forward",
        "on_backward",
        "coverage",
        "Hooks",
        "on_gradient",
        "tensors",
    ):
        assert f"`{name}" in TEXT or f"{name}(" in TEXT


def test_links_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = link.partition("#")
        assert (PAGE.parent / path).exists() if path else anchor in anchors, link


def test_as_many_nets_as_it_says() -> None:
    assert len(NETS) == 18
    assert "eighteen small nets" in TEXT
