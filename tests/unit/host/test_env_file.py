"""`.env`: the user's lines are theirs, byte for byte; a broken one is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from host import env_file
from host.env_file import BEGIN, END, load, store
from host.show import Problem

OWN = {"COMPOSE_FILE": "compose.yaml:compose.cpu.yaml", "VARIANT": "cu130"}
BLOCK = f"{BEGIN}\nCOMPOSE_FILE=compose.yaml:compose.cpu.yaml\nVARIANT=cu130\n{END}\n".encode()


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"A=1\n",
        b"# mine\r\nA='x $y'\r\n\r\n",
        b"A=1\n\n\n  # odd   spacing\t\nB=2",
        "NAME=Käse \u2028 \x0b x\n".encode(),
    ],
    ids=["empty", "one line", "windows line ends", "no last newline", "odd characters"],
)
def test_the_users_lines_stay_byte_for_byte(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / ".env"
    path.write_bytes(before)
    assert store(path, OWN)
    gap = b"" if not before or before.endswith(b"\n") else b"\n"
    assert path.read_bytes() == before + gap + BLOCK


def test_the_block_is_rewritten_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"A=1\n" + BLOCK.replace(b"cpu", b"old") + b"B=2 # below\n")
    assert store(path, OWN)
    assert path.read_bytes() == b"A=1\n" + BLOCK + b"B=2 # below\n"


def test_nothing_is_written_when_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    store(path, OWN)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert not store(path, OWN)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("A=1\n")
    old.chmod(0o664)
    store(new, OWN)
    store(old, OWN)
    assert new.stat().st_mode & 0o777 == 0o600
    assert old.stat().st_mode & 0o777 == 0o664


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.env", tmp_path / ".env"
    real.write_text("A=1\n")
    link.symlink_to(real)
    store(link, OWN)
    assert link.is_symlink()
    assert real.read_bytes() == b"A=1\n" + BLOCK


def test_a_failed_write_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".env"
    path.write_text("A=1\n")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(Problem, match="No space left on device"):
        store(path, OWN)
    assert [each.name for each in tmp_path.iterdir()] == [".env"]
    assert path.read_text() == "A=1\n"


def test_two_hosts_with_one_home_each_write_their_own_choice(tmp_path: Path) -> None:
    """A GPU host and a CPU host in turn: each finds its files, neither piles up lines."""
    path = tmp_path / ".env"
    path.write_text("JUPYTER_PORT=9000\n")
    for _ in range(2):
        store(path, {"COMPOSE_FILE": "compose.yaml"})
        assert load(path, {}).own == {"COMPOSE_FILE": "compose.yaml"}
        store(path, OWN)
        assert load(path, {}).own == OWN
    assert path.read_bytes() == b"JUPYTER_PORT=9000\n" + BLOCK


def test_makes_block_is_no_setting_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(BLOCK + b"VARIANT=cu128\n")
    read = load(path, {})
    assert read.user == {"VARIANT": ("cu128", 5)}
    assert read.own["VARIANT"] == "cu130"


def test_an_absent_file_is_empty(tmp_path: Path) -> None:
    assert load(tmp_path / ".env", {}) == env_file.EnvFile({}, {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1", {"A": "1"}),
        ("export A=1", {"A": "1"}),
        ("A = 1 ", {"A": "1"}),
        ("A: 1", {"A": "1"}),
        ("A=", {"A": ""}),
        ("A", {}),
        ("A=x # y", {"A": "x"}),
        ("A=x#y", {"A": "x#y"}),
        ("A='x # $B'  # y", {"A": "x # $B"}),
        ('A="x\\ny \\"z\\" \\$B"', {"A": 'x\ny "z" $B'}),
        ("A='one\ntwo'\nB=3", {"A": "one\ntwo", "B": "3"}),
        ("B=2\nA=$B-${B}-${C:-d}-${C-}-${B:+yes}", {"B": "2", "A": "2-2-d--yes"}),
        ("A=${HOME}/x", {"A": "/h/x"}),
        ("\ufeffA=1", {"A": "1"}),
        ("A=1\nA=2", {"A": "2"}),
    ],
)
def test_the_dialect_is_that_of_compose(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    path = tmp_path / ".env"
    path.write_text(text + "\n")
    assert {name: value for name, (value, _) in load(path, {"HOME": "/h"}).user.items()} == found


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (b"A=1\nB='x\nC=3\n", 2, "B begins with ' and has no closing one"),
        (b'A="1" x\n', 1, 'something follows the closing "'),
        (b"A=1\nthis is not it\n", 2, "no '=' in 'this is not it'"),
        (b"FOO BAR\n", 1, "no '=' in 'FOO BAR'"),
        (b"A=1\n\n9A=1\n", 3, "'9A' is no name for a variable"),
        (b"A B=secret\n", 1, "'A B' is no name for a variable"),
        (b"A=1\nB=\xff\n", 2, "byte 0xff is not UTF-8"),
        (BLOCK.replace(END.encode() + b"\n", b""), 1, "has no end line"),
        (BLOCK + b"A=1\n" + BLOCK, 6, "make's block is there twice"),
    ],
)
def test_a_broken_line_is_named_in_one_clear_line(tmp_path: Path, text: bytes, line: int, words: str) -> None:
    path = tmp_path / ".env"
    path.write_bytes(text)
    with pytest.raises(Problem) as caught:
        load(path, {})
    assert caught.value.what.startswith(f".env line {line}: ")
    assert words in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.code == 2


def test_a_broken_line_does_not_repeat_a_secret(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("hf_0123456789abcdefghijklmnop\nX Y hf_0123456789abcdefghijklmnop\n")
    with pytest.raises(Problem) as caught:
        load(path, {})
    assert "ghijklmnop" not in caught.value.what


@example("$HOME ${X:-y} \\$z")
@example('"quoted"\n\\n # no comment')
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=40))
def test_what_make_writes_is_read_back_as_it_was(value: str) -> None:
    line = f"A={env_file.quoted(value)}\n"
    assert env_file.parse(line, ".env", {}) == {"A": (value, 1)}
    assert line.count("\n") == 1
