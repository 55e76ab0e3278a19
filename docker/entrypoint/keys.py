"""Public keys for SSH: where they come from, and which of them sshd can use."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass

_TYPES = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
# Options may come before the type, as in authorized_keys: from="10.0.0.0/8" ssh-ed25519 AAAA... comment
_KEY = re.compile(
    rf"(?:^|\s)(?P<type>{'|'.join(map(re.escape, _TYPES))})\s+(?P<blob>[A-Za-z0-9+/]+=*)(?=\s|$)"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|PuTTY-User-Key-File")


@dataclass(frozen=True, slots=True)
class Source:
    """A place that may hold keys. `text` is None where the place does not exist."""

    name: str  # as the user knows it: a variable's name, or a path
    text: str | None


@dataclass(frozen=True, slots=True)
class Keys:
    """`lines` are the usable keys, each once; `problems` one line for each thing that is not a usable key."""

    lines: tuple[str, ...]
    problems: tuple[str, ...]


def collect(sources: Iterable[Source]) -> Keys:
    """The usable keys of all sources together, in order.

    >>> collect([Source("SSH_PUBLIC_KEY", "ssh-ed25519 AAAA me")]).problems
    ('SSH_PUBLIC_KEY line 1: not a public key ("ssh-ed25519 AAAA me"): the key is cut off or damaged',)
    """
    lines: dict[str, None] = {}
    problems: list[str] = []
    for source in sources:
        text = source.text or ""
        if _PRIVATE.search(text):
            problems.append(
                f"{source.name} holds a private key (not shown here). Give the file that ends in .pub, "
                "and make a new pair: this one has been exposed"
            )
            continue
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            wrong = _what_is_wrong(line)
            if wrong:
                problems.append(f"{source.name} line {number}: not a public key ({_short(line)}): {wrong}")
            else:
                lines[line] = None
    return Keys(tuple(lines), tuple(problems))


def _what_is_wrong(line: str) -> str | None:
    found = _KEY.findall(line)
    if not found:
        return "it should look like: ssh-ed25519 AAAA... name"
    if len(found) > 1:
        return "several keys on one line; put each on a line of its own"
    kind, blob = found[0]
    try:
        raw = base64.b64decode(blob, validate=True)
    except binascii.Error:
        return "the key is cut off or damaged"
    # The blob begins with its own type, length first (RFC 4253, 6.6), and has to hold more than that.
    inside = raw[4 : 4 + int.from_bytes(raw[:4], "big")]
    return (
        None
        if inside == kind.encode() and len(raw) > len(inside) + 4 + 32
        else "the key is cut off or damaged"
    )


def _short(line: str) -> str:
    return f'"{line}"' if len(line) <= 40 else f'"{line[:30]}..."'
