"""`make help`: the targets as the Makefile's comments tell them, the variables from the one table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from host.paths import Paths
from host.settings import SETTINGS
from host.show import Problem

TARGET = re.compile(r"^([a-z-]+):.*?## (.+)$")


def targets(makefile: str) -> list[str]:
    """The lines of help for a Makefile: `##@ Heading` and `target: ## what it does`.

    >>> targets("##@ Use\\nup: ## start\\n\\t@x\\nhidden:\\n")
    ['Use', '  make up               start']
    """
    lines = []
    for line in makefile.splitlines():
        if line.startswith("##@ "):
            lines.append(line[4:])
        elif match := TARGET.match(line):
            lines.append(f"  make {match[1]:<16} {match[2]}")
    return lines


def variables() -> list[str]:
    """One line a variable: name, default, meaning."""
    return [f"  {each.name:<19} {each.default:<12} {each.meaning}" for each in SETTINGS]


def target_table(makefile: str) -> str:
    """The targets as a Markdown table, for docs and README."""
    found = [match.groups() for line in makefile.splitlines() if (match := TARGET.match(line))]
    rows = [f"| `make {name}` | {what} |" for name, what in found]
    return "\n".join(["| target | what it does |", "|---|---|", *rows])


def variable_table() -> str:
    """The variables as a Markdown table."""
    rows = [f"| `{each.name}` | {each.default} | {each.meaning} |" for each in SETTINGS]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def main(argv: Sequence[str]) -> int:
    """Print the help; `--markdown` prints the two tables for docs/host.md. Only the Makefile is looked at."""
    makefile = (Paths().root / "Makefile").read_text()
    if list(argv) == ["--markdown"]:
        print(target_table(makefile), variable_table(), sep="\n\n")
        return 0
    if argv:
        raise Problem(f"unknown argument {argv[0]!r}: only --markdown is known")
    print("Torchtap: a GPU development environment that proves that the GPU works.\n")
    print("\n".join(targets(makefile)))
    print("\nVariables, as in `make up MODE=cpu`, in the environment, or in .env:")
    print("\n".join(variables()))
    print("\nStart with:  make up     (what one of them takes:  make up ARGS=--help)")
    return 0
