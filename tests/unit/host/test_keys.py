"""Public keys: taken from where people keep them, named aloud; a private one never leaves."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest

from host import keys
from host.keys import find
from host.settings import settle
from host.show import Problem
from tests.unit.host.checkout import Checkout

# Put together here, so that no file of the project looks like a key.
LINE = "-----{} OPENSSH " + "PRIVATE KEY-----\n"
PRIVATE = f"{LINE.format('BEGIN')}AAAAverysecret\n{LINE.format('END')}"


def key(kind: str = "ssh-ed25519", fill: int = 1) -> str:
    """A well-formed public key that belongs to nobody."""
    blob = len(kind).to_bytes(4, "big") + kind.encode() + (32).to_bytes(4, "big") + bytes([fill]) * 32
    return f"{kind} {base64.b64encode(blob).decode()}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    return tmp_path / "home"


def wish(home: Path, environ: Mapping[str, str] | None = None, **values: str) -> keys.Keys:
    return find(settle(values, {}), environ or {}, home)


def test_the_keys_of_the_home_are_taken_and_named_without_their_comments(home: Path) -> None:
    (home / ".ssh/id_ed25519.pub").write_text(f"{key()} somebody\n")
    (home / ".ssh/work.pub").write_text(f"# work\n{key(fill=2)} x\n{key()} again\n")
    (home / ".ssh/id_ed25519").write_text(PRIVATE)
    found = wish(home)
    assert found.lines == (key(), key(fill=2))
    assert found.named == "2 public keys: ~/.ssh/id_ed25519.pub, ~/.ssh/work.pub"
    assert found.text == f"{key()}\n{key(fill=2)}"


def test_the_agents_keys_are_taken_when_the_home_has_none(
    home: Path, checkout_bin: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout_bin.fake("ssh-add").answer({"when": "-L", "out": f"{key()} card\n"})
    found = wish(home, {"SSH_AUTH_SOCK": "/x"})
    assert found.lines == (key(),)
    assert found.named == "1 public key of the SSH agent"
    assert wish(home).lines == ()  # no agent is running


@pytest.fixture
def checkout_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return Checkout(tmp_path / "checkout")


def test_no_key_is_no_error_and_says_where_it_looked(home: Path) -> None:
    found = wish(home)
    assert found.lines == ()
    assert found.named == "no public key in ~/.ssh and none in an SSH agent: SSH stays off"


def test_none_refuses_all(home: Path) -> None:
    (home / ".ssh/id_ed25519.pub").write_text(key())
    assert wish(home, SSH_KEY="none").lines == ()


def test_a_file_of_ones_choice_and_what_ssh_needs_to_use_it(home: Path) -> None:
    (home / ".ssh/id_ed25519.pub").write_text(key())
    (home / ".ssh/other.pub").write_text(key(fill=3))
    assert wish(home, SSH_KEY="~/.ssh/other.pub").lines == (key(fill=3),)
    assert wish(home, SSH_KEY="~/.ssh/other.pub").identity is None
    (home / ".ssh/other").write_text(PRIVATE)
    assert wish(home, SSH_KEY="~/.ssh/other.pub").identity == home / ".ssh/other"


def test_a_private_key_is_refused_with_the_name_of_its_public_half(home: Path) -> None:
    (home / ".ssh/mine").write_text(PRIVATE)
    (home / ".ssh/mine.pub").write_text(key())
    with pytest.raises(Problem) as caught:
        wish(home, SSH_KEY="~/.ssh/mine")
    assert "is a private key (not shown here)" in caught.value.what
    assert caught.value.do == ("make up SSH_KEY=~/.ssh/mine.pub",)
    assert "verysecret" not in caught.value.what + "".join(caught.value.do)


def test_a_private_key_as_a_value_is_refused_and_not_repeated(home: Path) -> None:
    with pytest.raises(Problem) as caught:
        wish(home, SSH_PUBLIC_KEY=PRIVATE)
    assert "make a new pair" in caught.value.do[0]
    assert "verysecret" not in caught.value.what + "".join(caught.value.do)


def test_a_missing_file_is_answered_with_those_that_are_there(home: Path) -> None:
    (home / ".ssh/id_ed25519.pub").write_text(key())
    with pytest.raises(Problem, match=r"SSH_KEY=~/.ssh/nope.pub: No such file") as caught:
        wish(home, SSH_KEY="~/.ssh/nope.pub")
    assert caught.value.do == ("Here are: ~/.ssh/id_ed25519.pub     (or SSH_KEY=none)",)


def test_the_text_of_a_key_is_not_a_file(home: Path) -> None:
    with pytest.raises(Problem, match="SSH_KEY is the name of a file"):
        wish(home, SSH_KEY=f"{key()} me")


@pytest.mark.parametrize(
    "text",
    [
        key()[:-8],
        key("ssh-dss"),
        key().replace("ssh-ed25519 ", "ssh-rsa "),
        "ssh-ed25519",
        "ssh-ed25519 ***",
        "",
    ],
    ids=["cut off", "old type", "wrong type", "no blob", "no base64", "empty"],
)
def test_what_sshd_could_not_use_is_no_key(home: Path, text: str) -> None:
    (home / ".ssh/bad.pub").write_text(text + "\n")
    assert wish(home).lines == ()
    with pytest.raises(Problem, match="holds no public key that sshd can use"):
        wish(home, SSH_KEY="~/.ssh/bad.pub")


def test_several_keys_in_the_variable(home: Path) -> None:
    found = wish(home, SSH_PUBLIC_KEY=f"{key()} a\n{key(fill=2)} b\n")
    assert found.lines == (key(), key(fill=2))
    assert found.named == "2 public keys from SSH_PUBLIC_KEY (the environment)"
