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
_KEY = re.compile(
    rf"(?:^|\s)(?P<type>{'|'.join(map(re.escape, _TYPES))})\s+(?P<blob>AAAA[A-Za-z0-9+/]*=*)(?=\s|$)"
)
# Options may come before the type: from="10.0.0.0/8",no-pty ssh-ed25519 AAAA... comment. sshd passes over a line with
# an option that it does not know (sshd(8), AUTHORIZED_KEYS FILE FORMAT).
_OPTIONS = frozenset(
    """
    agent-forwarding cert-authority command environment expiry-time from no-agent-forwarding no-port-forwarding
    no-pty no-touch-required no-user-rc no-x11-forwarding permitlisten permitopen port-forwarding principals pty
    restrict touch-required tunnel user-rc verify-required x11-forwarding
    """.split()  # noqa: SIM905 - a table of words
)
_OPTION = re.compile(r"""([A-Za-z0-9-]+)(?:="(?:\\"|[^"])*")?""")
# An env file holds one line a variable, so several keys come with "\n" between them. Only before what may be another
# key: a comment may well be DOMAIN\name.
_WRITTEN_LINE_END = re.compile(
    rf"(?:\\r)?\\n(?=\s*(?:$|#|(?:\S+\s+)?(?:{'|'.join(map(re.escape, _TYPES))})\s))"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File")
_OTHER_FORMAT = re.compile(r"---- BEGIN SSH2 PUBLIC KEY ----|-----BEGIN (?:RSA )?PUBLIC KEY-----")


@dataclass(frozen=True, slots=True)
class Source:
    """A place that may hold keys. `text` is None where there is nothing to read; `absent` says why."""

    name: str  # as the user knows it: a variable's name, or a path
    text: str | None
    absent: str = "is not set"
    asked_for: bool = False  # named by the user: that it cannot be read is a problem
    one_line: bool = False  # a variable: line ends may be written as \\n


@dataclass(frozen=True, slots=True)
class Keys:
    """`lines` are the usable keys, each once; `problems` one line for each thing that is not a usable key."""

    lines: tuple[str, ...]
    problems: tuple[str, ...]


def collect(sources: Iterable[Source]) -> Keys:
    """The usable keys of all sources together, in order.

    >>> collect([Source("SSH_PUBLIC_KEY", "ssh-ed25519 AAAA me")]).problems
    ('SSH_PUBLIC_KEY line 1: cannot be used ("ssh-ed25519 AAAA me"): the key is cut off or damaged',)
    """
    lines: dict[str, None] = {}
    problems: list[str] = []
    for source in sources:
        text = source.text or ""
        if source.one_line:
            text = _WRITTEN_LINE_END.sub("\n", text)
        if source.text is None and source.asked_for:
            problems.append(f"{source.name} {source.absent}")
        if _PRIVATE.search(text):
            problems.append(
                f"{source.name} holds a private key (not shown here). Give the file that ends in .pub, "
                "and make a new pair: this one has been exposed"
            )
            continue
        if _OTHER_FORMAT.search(text):
            problems.append(
                f"{source.name} holds a public key in another format. OpenSSH's is one line: ssh-keygen -i -f FILE"
            )
            continue
        for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            wrong = _what_is_wrong(line)
            if wrong:
                problems.append(f"{source.name} line {number}: cannot be used ({_short(line)}): {wrong}")
            else:
                lines[line] = None
    return Keys(tuple(lines), tuple(problems))


def _what_is_wrong(line: str) -> str | None:
    found = list(_KEY.finditer(line))
    if not found:
        return "it should look like: ssh-ed25519 AAAA... name"
    if len(found) > 1:
        return "several keys on one line; put each on a line of its own"
    kind, blob = found[0]["type"], found[0]["blob"]
    try:
        raw = base64.b64decode(blob, validate=True)
    except binascii.Error:
        return "the key is cut off or damaged"
    # The blob is a row of strings, length first: its own type, then the key (RFC 4253, 6.6). None may be cut.
    strings = _strings(raw)
    if strings is None or len(strings) < 2 or strings[0] != kind.encode():
        return "the key is cut off or damaged"
    return _wrong_options(line[: found[0].start("type")].strip())


def _strings(raw: bytes) -> list[bytes] | None:
    """The length-prefixed strings that make up `raw`; None where they do not add up to it."""
    found = []
    while raw:
        length = int.from_bytes(raw[:4], "big")
        if len(raw) < 4 + length:
            return None
        found.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return found


def _wrong_options(text: str) -> str | None:
    """What is wrong with the options in front of a key."""
    while text:
        option = _OPTION.match(text)
        if not option or option[1].lower() not in _OPTIONS or text[option.end() :][:1] not in ("", ","):
            return "what stands before the key is not an option that sshd knows"
        if option[1].lower() == "command":
            # sshd runs the image's own forced command and would pass over this one: a key that may do one thing
            # would open everything.
            return "its option command= cannot be kept here, so the key is left out"
        text = text[option.end() + 1 :]
    return None


def _short(line: str) -> str:
    """Enough of a line to find it by. One long word may be part of a private key, so nothing of it is shown."""
    if re.fullmatch(r"[A-Za-z0-9+/]{17,}=*|[A-Za-z0-9+/]+=+", line):
        return f"{len(line)} characters, not shown"
    shown = line if len(line) <= 40 else f"{line[:20]}..."
    return '"' + "".join(c if c.isprintable() else "?" for c in shown) + '"'
