"""Which lines are usable public keys. Real ones are made by ssh-keygen; a private one never shows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from entrypoint.keys import Keys, Source, collect

KINDS = {
    "ed25519": ("-t", "ed25519"),
    "rsa 2048": ("-t", "rsa", "-b", "2048"),
    "ecdsa 256": ("-t", "ecdsa", "-b", "256"),
    "ecdsa 384": ("-t", "ecdsa", "-b", "384"),
    "ecdsa 521": ("-t", "ecdsa", "-b", "521"),
}
# A FIDO key needs its device to be made. This one has the right shape: type, curve point, application.
SECURITY_KEY = (
    "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhsc"
    "HR4fAAAABHNzaDo= token"
)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Kind: (public, private) of a new pair."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed")
    folder = tmp_path_factory.mktemp("keys")
    made = {}
    for kind, options in KINDS.items():
        path = folder / kind.replace(" ", "-")
        subprocess.run(
            ["ssh-keygen", "-q", *options, "-N", "", "-C", f"me {kind}", "-f", str(path)], check=True
        )
        made[kind] = path.with_suffix(".pub").read_text().strip(), path.read_text()
    return made


@pytest.fixture(scope="session")
def key(pairs: dict[str, tuple[str, str]]) -> str:
    return pairs["ed25519"][0]


def from_variable(text: str | None) -> Keys:
    return collect([Source("SSH_PUBLIC_KEY", text)])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_ssh_keygen_makes_is_usable(kind: str, pairs: dict[str, tuple[str, str]]) -> None:
    public, _ = pairs[kind]
    assert from_variable(public) == Keys((public,), ())


def test_a_security_key_is_usable() -> None:
    assert from_variable(SECURITY_KEY) == Keys((SECURITY_KEY,), ())


@pytest.mark.parametrize("text", [None, "", "\n \n", "# my keys\n\n  # none yet"], ids=repr)
def test_nothing_there_is_no_problem(text: str | None) -> None:
    assert from_variable(text) == Keys((), ())


@pytest.mark.parametrize(
    "dress",
    [
        "{key}",
        "  {key}\t",
        "{key}\r\n",
        "# work\r\n{key}\r\n\r\n",
        "\ufeff{key}\n",
        "\ufeff# by an editor of Windows\r\n{key}",
    ],
    ids=[
        "as it is",
        "spaces around",
        "CRLF",
        "CRLF and comment",
        "byte order mark",
        "byte order mark and comment",
    ],
)
def test_what_editors_add_is_taken_away(key: str, dress: str) -> None:
    assert from_variable(dress.format(key=key)) == Keys((key,), ())


@pytest.mark.parametrize(
    "comment", ["", " me", " Jürgen's 笔记本 (work) a b", " ssh-ed25519", " ssh-rsa key"]
)
def test_any_comment_is_allowed(key: str, comment: str) -> None:
    bare = " ".join(key.split()[:2])
    assert from_variable(bare + comment).lines == (bare + comment,)


@pytest.mark.parametrize(
    "options",
    [
        "no-pty",
        "restrict,pty",
        'from="10.0.0.0/8,!10.1.2.3"',
        'from="10.0.0.0/8",permitopen="localhost:8888",no-X11-forwarding',
        'expiry-time="20300101"',
        'FROM="a b"',
        r'environment="A=\"x y\""',
    ],
)
def test_options_before_a_key_stay_as_they_are(key: str, options: str) -> None:
    assert from_variable(f"{options} {key}") == Keys((f"{options} {key}",), ())


def test_c2_line_ends_written_as_backslash_n_separate_keys(pairs: dict[str, tuple[str, str]]) -> None:
    """An env file has one line a variable. Unseen, the second key would be a part of the first one's comment."""
    first, second, third = (pairs[kind][0] for kind in ("ed25519", "rsa 2048", "ecdsa 256"))
    text = rf"{first}\n{second}\r\n# work\nno-pty {third}\n"
    found = collect([Source("SSH_PUBLIC_KEY", text, one_line=True)])
    assert found == Keys((first, second, f"no-pty {third}"), ())


@pytest.mark.parametrize("comment", [r"DOMAIN\nick", r"CORP\norbert work laptop", r"a\n b"])
def test_a_comment_may_hold_what_looks_like_a_line_end(key: str, comment: str) -> None:
    bare = " ".join(key.split()[:2])
    found = collect([Source("SSH_PUBLIC_KEY", f"{bare} {comment}", one_line=True)])
    assert found == Keys((f"{bare} {comment}",), ())


def test_in_a_file_a_backslash_stays_what_it_is(key: str, pairs: dict[str, tuple[str, str]]) -> None:
    line = rf"{key}\n{pairs['rsa 2048'][0]}"
    assert collect([Source("/keys", line)]).lines == (line,)


def test_keys_of_all_sources_are_taken_once_and_in_order(pairs: dict[str, tuple[str, str]]) -> None:
    first, second, third = (pairs[kind][0] for kind in ("ed25519", "rsa 2048", "ecdsa 256"))
    sources = [
        Source("SSH_PUBLIC_KEY", f"{second}\n{first}"),
        Source("/a", None),
        Source("/b", f"{first}\n{third}"),
    ]
    assert collect(sources) == Keys((second, first, third), ())


def test_a_good_key_counts_beside_a_bad_line(key: str) -> None:
    assert from_variable(f"nonsense\n{key}") == Keys(
        (key,),
        (
            'SSH_PUBLIC_KEY line 1: cannot be used ("nonsense"): it should look like: ssh-ed25519 AAAA... name',
        ),
    )


CUT = "the key is cut off or damaged"
LOOKS = "it should look like: ssh-ed25519 AAAA... name"
OPTION = "what stands before the key is not an option that sshd knows"


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda k: k[:30], CUT),
        (lambda k: " ".join(k.split()[:2])[:-1], CUT),
        (lambda k: " ".join(k.split()[:2])[:-4], CUT),
        (lambda k: " ".join(k.split()[:2]) + "AAAA", CUT),
        (lambda k: k.replace("ssh-ed25519 ", "ssh-rsa "), CUT),
        (lambda k: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5", CUT),
        (lambda k: "ssh-ed25519 laptop", LOOKS),
        (lambda k: "ssh-ed25519", LOOKS),
        (lambda k: k.split()[1], LOOKS),
        (lambda k: "~/.ssh/id_ed25519.pub", LOOKS),
        (lambda k: k.replace("ssh-ed25519", "ssh-dss"), LOOKS),
        (lambda k: f"{k} {k}", "several keys on one line; put each on a line of its own"),
        (lambda k: f"my key: {k}", OPTION),
        (lambda k: f"key {k}", OPTION),
        (lambda k: f"no-pty no-user-rc {k}", OPTION),
        (lambda k: f'no-pty,nonsense="1" {k}', OPTION),
        (lambda k: f'from="10.0.0.0/8 {k}', OPTION),
        (lambda k: f'command="rsync --server" {k}', "its option command= cannot be kept here, so the key is left out"),
        (lambda k: f'no-pty,COMMAND="x" {k}', "its option command= cannot be kept here, so the key is left out"),
    ],
    ids=[
        "first 30 characters",
        "one character short",
        "four characters short",
        "four characters more",
        "another type before it",
        "only the type inside",
        "a name in place of the key",
        "type alone",
        "no type",
        "a path",
        "a type that OpenSSH has given up",
        "two on one line",
        "words before it",
        "a word before it",
        "options with a space",
        "an unknown option",
        "a quote not closed",
        "command=",
        "COMMAND= after another",
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(key: str, spoil, wrong: str) -> None:
    found = from_variable(f"# a comment\n{spoil(key)}")
    assert found.lines == ()
    assert len(found.problems) == 1
    assert found.problems[0].startswith("SSH_PUBLIC_KEY line 2: cannot be used (")
    assert found.problems[0].endswith(f"): {wrong}")


def test_sshd_agrees_about_the_options(key: str, tmp_path: Path) -> None:
    """ssh-keygen reads a file of keys as sshd does: lines with options that it knows have a fingerprint."""
    file = tmp_path / "authorized_keys"
    file.write_text(f'from="10.0.0.0/8",no-pty {key}\n')
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(file)], capture_output=True, text=True, check=True)
    assert "(ED25519)" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_private_key_is_named_and_never_shown(kind: str, pairs: dict[str, tuple[str, str]]) -> None:
    public, private = pairs[kind]
    found = from_variable(f"{public}\n{private}")
    assert found.lines == ()
    assert found.problems == (
        "SSH_PUBLIC_KEY holds a private key (not shown here). Give the file that ends in .pub, "
        "and make a new pair: this one has been exposed",
    )


@pytest.mark.parametrize(
    "head",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
        "PuTTY-User-Key-File-3: ssh-ed25519",
    ],
)
def test_every_format_of_private_keys_is_recognised(head: str) -> None:
    found = from_variable(f"{head}\nc2VjcmV0c2VjcmV0\n")
    assert len(found.problems) == 1
    assert "holds a private key (not shown here)" in found.problems[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_private_key_without_its_first_line_is_not_shown_either(
    kind: str, pairs: dict[str, tuple[str, str]]
) -> None:
    body = pairs[kind][1].splitlines()[1:]
    said = "\n".join(from_variable("\n".join(body)).problems)
    assert not [line for line in body[:-1] if line[:17] in said]
    assert "SSH_PUBLIC_KEY line 1: cannot be used (70 characters, not shown)" in said


def test_a_private_key_in_one_source_does_not_spoil_the_others(
    pairs: dict[str, tuple[str, str]], key: str
) -> None:
    found = collect(
        [Source("SSH_PUBLIC_KEY", pairs["rsa 2048"][1]), Source("/home/dev/.ssh/authorized_keys", key)]
    )
    assert found.lines == (key,)
    assert len(found.problems) == 1


@pytest.mark.parametrize("format_", ["RFC4716", "PKCS8", "PEM"])
def test_another_format_is_named_once_with_the_way_to_convert_it(
    format_: str, pairs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "key.pub"
    file.write_text(pairs["rsa 2048"][0])
    command = ["ssh-keygen", "-e", "-m", format_, "-f", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert from_variable(text) == Keys(
        (), ("SSH_PUBLIC_KEY holds a public key in another format. OpenSSH's is one line: ssh-keygen -i -f FILE",)
    )  # fmt: skip


def test_a_line_in_the_log_carries_no_control_characters() -> None:
    (problem,) = from_variable("\x1b[31mred\x07 line").problems
    assert problem.startswith('SSH_PUBLIC_KEY line 1: cannot be used ("?[31mred? line")')
