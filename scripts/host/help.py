"""`make help`: the targets as the Makefile's comments tell them, the variables from the one table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from host.paths import Paths
from host.settings import SETTINGS

TARGET = re.compile(r"^([a-z]+):.*?## (.+)$")


def targets(makefile: str) -> list[str]:
    """The lines of help for a Makefile: `##@ Heading` and `target: ## what it does`.

    >>> targets("##@ Use\\nup: ## start\\n\\t@x\\nhidden:\\n")
    ['Use', '  make up         start']
    """
    lines = []
    for line in makefile.splitlines():
        if line.startswith("##@ "):
            lines.append(line[4:])
        elif match := TARGET.match(line):
            lines.append(f"  make {match[1]:<10} {match[2]}")
    return lines


def variables() -> list[str]:
    """One line a variable: name, default, meaning."""
    return [f"  {each.name:<18} {each.default:<13} {each.meaning}" for each in SETTINGS]


def main(argv: Sequence[str]) -> int:
    """Print the help; nothing is looked at but the Makefile."""
    del argv
    print("Torchtap: a GPU development environment that proves that the GPU works.\n")
    print("\n".join(targets((Paths().root / "Makefile").read_text())))
    print("\nVariables, as in `make up MODE=cpu`, in the environment, or in .env:")
    print("\n".join(variables()))
    print("\nStart with:  make up")
    return 0
