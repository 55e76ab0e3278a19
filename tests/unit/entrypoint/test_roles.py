"""A role when the role is the only word; anything else is a command."""

from __future__ import annotations

import pytest

from entrypoint.roles import COMMANDS, ROLES, Choice, choose, nearest


@pytest.mark.parametrize(
    ("words", "choice"),
    [
        ([], Choice("dev", services=("sshd", "jupyter"))),
        (["dev"], Choice("dev", services=("sshd", "jupyter"))),
        (["jupyter"], Choice("jupyter", services=("jupyter",))),
        (["ssh"], Choice("ssh", services=("sshd",))),
        (["selftest"], Choice("selftest", command=("torchtap", "selftest"))),
        (["selftest", "--json"], Choice("command", command=("selftest", "--json"))),
        (["jupyter", "lab", "--version"], Choice("command", command=("jupyter", "lab", "--version"))),
        (["ssh", "host"], Choice("command", command=("ssh", "host"))),
        (["dev", "dev"], Choice("command", command=("dev", "dev"))),
        (["python"], Choice("command", command=("python",))),
        (["python", "-c", "print(1)"], Choice("command", command=("python", "-c", "print(1)"))),
        (["Dev"], Choice("command", command=("Dev",))),
        ([""], Choice("command", command=("",))),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_words_mean(words: list[str], choice: Choice) -> None:
    assert choose(words) == choice


def test_no_word_is_both_a_role_and_a_command() -> None:
    assert not ROLES.keys() & COMMANDS.keys()


@pytest.mark.parametrize(
    ("word", "commands", "near"),
    [
        ("jupiter", [], "jupyter"),
        ("selftset", [], "selftest"),
        ("pyhton", ["python", "pytest"], "python"),
        ("devv", [], "dev"),
        ("sshd", ["sshd"], "ssh"),
        ("notebook", [], "jupyter"),
        ("zzzzzz", ["python"], None),
        ("", ["python"], None),
    ],
)
def test_nearest_role_or_command(word: str, commands: list[str], near: str | None) -> None:
    assert nearest(word, commands) == near
