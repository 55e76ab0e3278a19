"""What a container does: a role when the role is the only word, else a command.

>>> choose(["jupyter"]).services
('jupyter',)
>>> choose(["jupyter", "lab", "--version"]).command
('jupyter', 'lab', '--version')
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

ROLES: dict[str, tuple[str, ...]] = {
    "dev": ("sshd", "jupyter"),
    "jupyter": ("jupyter",),
    "ssh": ("sshd",),
}
# Roles that are a command and end by themselves.
COMMANDS: dict[str, tuple[str, ...]] = {"selftest": ("torchtap", "selftest")}
# Words that people type for a role. Alone, the programs of these names would not do what is meant: sshd would run as
# dev, and JupyterLab without its token and nobody to start it again.
MEANT = {
    "sshd": "ssh",
    "jupyter-lab": "jupyter",
    "jupyterlab": "jupyter",
    "lab": "jupyter",
    "jupyter-notebook": "jupyter",
    "notebook": "jupyter",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Either services to supervise or a command to become."""

    role: str
    services: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def choose(words: Sequence[str]) -> Choice:
    """What the words after the image's name mean; none at all mean `dev`."""
    if not words:
        words = ["dev"]
    if len(words) == 1 and words[0] in ROLES:
        return Choice(words[0], services=ROLES[words[0]])
    if len(words) == 1 and words[0] in COMMANDS:
        return Choice(words[0], command=COMMANDS[words[0]])
    return Choice("command", command=tuple(words))


def nearest(word: str, commands: Sequence[str]) -> str | None:
    """The role or command most like a word that is neither.

    >>> nearest("jupiter", ["python", "jupyter-lab"]), nearest("sshd", [])
    ('jupyter', 'ssh')
    """
    if word in MEANT:
        return MEANT[word]
    known = [*ROLES, *COMMANDS, *commands]
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.6)), None)
