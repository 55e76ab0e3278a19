"""Asking before something is deleted: on a terminal, or --yes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from host.show import FAILED, Problem


def said_yes(argv: Sequence[str]) -> bool:
    """Whether --yes was given. Raises `Problem` for any other argument."""
    unknown = [word for word in argv if word != "--yes"]
    if unknown:
        raise Problem(f"unknown argument {unknown[0]!r}: only --yes is known")
    return bool(argv)


def demand(yes: bool, word: str, command: str) -> None:
    """Return once `word` was typed, or at once with `yes`. Otherwise raises `Problem`: nothing may be touched then.

    Exit code 2 where nobody can be asked, 1 for another answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Problem("this needs a yes, and there is no terminal to ask at", f"{command} ARGS=--yes")
    sys.stdout.flush()
    try:
        answer = input(f"Type {word} to go on: ")
    except EOFError:
        print()
        answer = ""
    if answer.strip() != word:
        raise Problem(f"that was not {word!r}: nothing was touched", code=FAILED)
