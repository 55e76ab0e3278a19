"""`make help` is made from the Makefile and the table of settings."""

from __future__ import annotations

import re

import pytest

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


SCRIPTS = sorted(path.name for path in (REPOSITORY / "scripts").iterdir() if path.is_file())
OFFLINE = {"PIP_NO_INDEX": "1"}  # one that fills .venv after all fails here in seconds
BY_ITSELF = {"lock"}  # an argparse of its own: it runs without the host's package
WORDS = re.compile(
    r"\A[A-Z].*\.\n\nusage {6}\S.*\n(?: {11}.*\n)*(?:options {4}\S.*\n(?: {11}.*\n)*)?"
    r"exit code  \S.*\n(?: {11}.*\n)*example    \S.*\n\Z"
)


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name not in BY_ITSELF])
def test_every_command_tells_what_it_takes_and_does_nothing_else(checkout: Checkout, script: str) -> None:
    """One way for all; no engine, no GPU and no .venv is looked for."""
    docker = checkout.fake("docker").answer()
    for word in ("--help", "-h"):
        done = checkout.run(script, word, env=OFFLINE)
        assert (done.returncode, done.stderr) == (0, "")
        assert WORDS.match(done.stdout), done.stdout
        assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert docker.calls == []
    assert not (checkout.root / ".venv").exists()
    assert not (checkout.root / ".env").exists()


SAYS = {
    "sbom": "Write what is in the image",
    "audit": "Look the locked packages up",
    "test-image": "Run the image tests",
    "update": "Build on a newer base",
}


@pytest.mark.parametrize("target", [*SAYS, "lock"])
def test_help_by_make_builds_no_environment(checkout: Checkout, target: str) -> None:
    """README: ARGS=--help. The first three run in .venv, which takes minutes to fill."""
    done = checkout.make(target, "ARGS=--help", env=OFFLINE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(SAYS.get(target, "usage:"))
    assert not (checkout.root / ".venv").exists()


def test_an_option_that_is_understood_is_in_the_help() -> None:
    """So that neither can change alone."""
    for script, module in (("sbom", "sbom"), ("audit", "audit"), ("pin", "pin"), ("clean", "commands")):
        source = (REPOSITORY / f"scripts/host/{module}.py").read_text()
        options = set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source)) or (
            {"--check", "--unpin"} if script == "pin" else {"--all"}
        )
        text = (REPOSITORY / "scripts" / script).read_text()
        assert [option for option in options if option not in text] == [], script
