"""The generated parts of docs/image.md (roles, variables, OS packages) and of other pages that show tables of the code.

`python3 docker/page.py` writes them between their marks; a test compares page and code.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from entrypoint import caches, certificates, threads
from entrypoint.roles import COMMANDS, ROLES
from entrypoint.settings import VARIABLES, Variable

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs/image.md"


def roles_table() -> str:
    """One row a role, as `docker run IMAGE ROLE` knows them."""
    services = [(f"`{role}`", " and ".join(f"`{name}`" for name in names)) for role, names in ROLES.items()]
    commands = [(f"`{role}`", f"the command `{' '.join(words)}`") for role, words in COMMANDS.items()]
    return _table(("role", "runs"), [*services, *commands])


def variables_table() -> str:
    """One row an environment variable that start-up reads."""
    return _table(("variable", "default", "meaning"), [_row(variable) for variable in VARIABLES])


def packages_table() -> str:
    """One row an OS package that has a reason to be named; the others in one."""
    lines = [line for line in (HERE / "packages.txt").read_text().splitlines() if line and line[0] != "#"]
    parts = [(name.strip(), reason.strip()) for name, _, reason in (line.partition("#") for line in lines)]
    plain = ", ".join(f"`{name}`" for name, reason in parts if not reason)
    rows = [(f"`{name}`", reason) for name, reason in parts if reason]
    return _table(("package", "for"), [*rows, (plain, "what they are known for")])


PARTS: dict[str, Callable[[], str]] = {
    "roles": roles_table,
    "variables": variables_table,
    "packages": packages_table,
}


def certificates_table() -> str:
    """One row a variable that names the list of certificates."""
    rows = [
        (f"`{name}`", "yours alone" if file == certificates.EXTRA else "all", who)
        for name, file, who in certificates.VARIABLES
    ]
    return _table(("variable", "names a list of", "read by"), rows)


def threads_table() -> str:
    """One row a variable that a quota sets."""
    return _table(("variable", "governs"), [(f"`{name}`", what) for name, what in threads.VARIABLES])


def caches_table() -> str:
    """One row a variable that says where a cache is."""
    rows = [(f"`{name}`", f"`~/.cache/{folder}`", what) for name, folder, what in caches.CACHES]
    return _table(("variable", "default", "holds"), rows)


# Page and the parts that it has a place for.
PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    PAGE: PARTS,
    PAGE.with_name("proxies.md"): {"certificates": certificates_table},
    PAGE.with_name("hpc.md"): {"threads": threads_table},
    PAGE.with_name("upgrades.md"): {"caches": caches_table},
}


def filled(page: str, parts: dict[str, Callable[[], str]] | None = None) -> str:
    """The page with every generated part as the code says it now; those of docs/image.md unless said otherwise.

    Raises `ValueError` for a part that has no marks in the page.
    """
    for name, table in (PARTS if parts is None else parts).items():
        marks = re.compile(rf"(<!-- begin {name}: generated -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        page, count = marks.subn(lambda found, table=table: f"{found[1]}{table()}{found[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{PAGE.name}: {count} places for the table of {name}, not one")
    return page


def _row(variable: Variable) -> tuple[str, str, str]:
    default = f"`{variable.default}`" if variable.default else "none"
    choices = (
        " One of " + ", ".join(f"`{choice}`" for choice in variable.choices) + "." if variable.choices else ""
    )
    secret = " Kept out of sessions, kernels and terminals." if variable.secret else ""
    return f"`{variable.name}`", default, f"{variable.meaning}{choices}{secret}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main() -> int:
    for page, parts in PAGES.items():
        text = filled(page.read_text(), parts)
        draft = page.with_name(f"{page.name}.tmp")
        draft.write_text(text)
        os.replace(draft, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
