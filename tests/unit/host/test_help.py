"""`make help` is made from the Makefile and the table of settings."""

from __future__ import annotations

import re

from host.help import target_table, variable_table
from tests.unit.host.checkout import REPOSITORY, Checkout


def test_make_alone_prints_one_line_a_target(checkout: Checkout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    phony = re.findall(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.M)
    names = " ".join(phony).split()
    assert len(names) > 10
    for name in names:
        assert len(re.findall(rf"^  make {name} +\S", done.stdout, re.M)) == 1, name
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


def test_every_target_calls_a_program_that_is_there() -> None:
    scripts = re.findall(r"\$\(PYTHON\) (scripts/[\w-]+)", (REPOSITORY / "Makefile").read_text())
    assert len(scripts) > 10
    for name in scripts:
        assert (REPOSITORY / name).stat().st_mode & 0o111, name


def test_the_tables_in_the_docs_are_those_of_the_source() -> None:
    page = (REPOSITORY / "docs/host.md").read_text()
    assert target_table((REPOSITORY / "Makefile").read_text()) in page
    assert variable_table() in page
    assert target_table((REPOSITORY / "Makefile").read_text()) in (REPOSITORY / "README.md").read_text()


def test_help_as_markdown(checkout: Checkout) -> None:
    assert checkout.run("help", "--markdown").stdout == (
        f"{target_table((REPOSITORY / 'Makefile').read_text())}\n\n{variable_table()}\n"
    )
    assert checkout.run("help", "me").returncode == 2
