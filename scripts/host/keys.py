"""The public keys that are let in over SSH: from a file, a variable, ~/.ssh or the SSH agent. Never a private one."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from host import proc
from host.settings import Settings
from host.show import Problem

TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
PRIVATE = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File-\d")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys as `type blob`, without comments, and where they come from in words. `identity`: what ssh -i wants."""

    lines: tuple[str, ...]
    named: str
    identity: Path | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def valid(line: str) -> str | None:
    """`type blob` of one line of a .pub file, or None when sshd could not use it.

    >>> valid("ssh-dss AAAAB3NzaC1kc3MAAACB me") is None
    True
    """
    for start, word in enumerate(words := line.split()):
        if word in TYPES and start + 1 < len(words):
            blob = words[start + 1]
            try:
                raw = base64.b64decode(blob, validate=True)
            except (binascii.Error, ValueError):
                return None
            # A blob begins with the length of its type's name, and the name (RFC 4253, 6.6).
            named = raw[4 : 4 + int.from_bytes(raw[:4], "big")]
            return f"{word} {blob}" if named == word.encode() and len(raw) > len(named) + 36 else None
    return None


def read(text: str) -> list[str]:
    """The usable keys of a text, each once."""
    lines = [line.strip() for line in text.splitlines()]
    return list(dict.fromkeys(key for line in lines if not line.startswith("#") and (key := valid(line))))


def refuse_private(text: str, source: str, do: str) -> None:
    if PRIVATE.search(text):
        raise Problem(
            f"{source} is a private key (not shown here): only its public half may leave this machine", do
        )


def find(settings: Settings, environ: Mapping[str, str], home: Path) -> Keys:
    """Choose the keys, strongest wish first: SSH_KEY, SSH_PUBLIC_KEY, ~/.ssh/*.pub, the agent's.

    Raises `Problem` for an SSH_KEY that is no public key. None found is no error: `lines` is empty.
    """
    asked, given = settings.get("SSH_KEY"), settings.get("SSH_PUBLIC_KEY")
    if asked == "none":
        return Keys((), "SSH_KEY=none: SSH stays off")
    if asked:
        return from_file(asked, home)
    if given:
        source = f"SSH_PUBLIC_KEY ({settings.where('SSH_PUBLIC_KEY')})"
        refuse_private(
            given, source, "Give the text of the .pub file, and make a new pair: this one has been exposed"
        )
        lines = read(given)
        if not lines:
            raise Problem(
                f"{source} holds no public key that sshd can use", "It looks like: ssh-ed25519 AAAA… name"
            )
        return Keys(tuple(lines), f"{count(lines)} from {source}")
    lines, names = [], []
    for path in sorted(home.glob(".ssh/*.pub")):
        try:
            found = read(path.read_text(errors="replace"))
        except OSError:
            continue
        lines += found
        names += [f"~/.ssh/{path.name}"] if found else []
    if lines:
        lines = list(dict.fromkeys(lines))
        return Keys(tuple(lines), f"{count(lines)}: {', '.join(names)}")
    if environ.get("SSH_AUTH_SOCK"):
        answer = proc.ask(["ssh-add", "-L"], timeout_s=5)
        lines = read(answer.out) if answer.ok else []
        if lines:
            return Keys(tuple(lines), f"{count(lines)} of the SSH agent")
    return Keys((), "no public key in ~/.ssh and none in an SSH agent: SSH stays off")


def remember(found: Keys, file: Path) -> None:
    """Keep in `file` where the private twin of the key that was let in lies: only the path, for `make ssh`."""
    if found.identity is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.tmp")
    draft.write_text(f"{found.identity.absolute()}\n")
    draft.replace(file)


def remembered(file: Path) -> Path | None:
    """The private key that `remember` kept, if it is still there."""
    try:
        path = Path(file.read_text().rstrip("\n"))
    except OSError:
        return None
    return path if path.is_file() else None


def count(lines: list[str]) -> str:
    return f"{len(lines)} public key{'s' if len(lines) != 1 else ''}"


def from_file(name: str, home: Path) -> Keys:
    """The keys of the file that SSH_KEY names."""
    if name.split(" ")[0] in TYPES:
        raise Problem(
            "SSH_KEY is the name of a file", "For the text of a key:  make up SSH_PUBLIC_KEY='ssh-… AAAA…'"
        )
    path = home / name[2:] if name.startswith("~/") else Path(name)
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        there = [f"~/.ssh/{each.name}" for each in sorted(home.glob(".ssh/*.pub"))]
        have = f"Here are: {', '.join(there)}" if there else "Make a pair:  ssh-keygen -t ed25519"
        raise Problem(f"SSH_KEY={name}: {error.strerror}", f"{have}     (or SSH_KEY=none)") from None
    public = Path(f"{path}.pub")
    do = f"make up SSH_KEY={name}.pub" if public.exists() else f"ssh-keygen -y -f {name} > {name}.pub"
    refuse_private(text, f"SSH_KEY={name}", do)
    lines = read(text)
    if not lines:
        raise Problem(
            f"SSH_KEY={name} holds no public key that sshd can use", "It looks like: ssh-ed25519 AAAA… name"
        )
    identity = path.with_suffix("") if path.suffix == ".pub" and path.with_suffix("").exists() else None
    return Keys(tuple(lines), f"{count(lines)} from {name}", identity)
