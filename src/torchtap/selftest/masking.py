"""Take out of a report what says which machine it is: UUIDs, serial numbers, host names, names of home folders.

Equal things stay equal within a process, so that a masked report still tells which GPU is which; between reports they
differ unless the same `key` is given. Left as they are: PCI addresses, which are the same on every machine of a kind
and are needed to read a report, product names and versions.

>>> masked = mask("GPU 0: Tesla T4 (UUID: GPU-11111111-2222-3333-4444-555555555555)", key=b"k")
>>> masked == mask("GPU 0: Tesla T4 (UUID: GPU-11111111-2222-3333-4444-555555555555)", key=b"k")
True
>>> "11111111" in masked
False
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

# Random, because serial numbers and host names can be guessed: a hash alone would only seem to hide them.
_KEY = secrets.token_bytes(16)
_UUID = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE)
# NVIDIA's serial numbers have 13 digits; others are known by what stands before them.
_SERIAL = re.compile(
    r"(?<![\w.])\d{13}(?![\w.])"
    r"|(?<=serial)(?P<before>(?:[ _]?number)?\W{1,40})(?P<serial>(?=[A-Z]*\d)[0-9A-Z]{6,32})\b",
    re.IGNORECASE,
)
_SYSLOG = re.compile(
    r"^(?P<before>(?:\w{3} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) )"
    r"(?P<host>[\w.-]+)(?= kernel:| \w+\[\d+\]:)",
    re.MULTILINE,
)
_HOME = re.compile(r"(?P<before>/(?:home|Users)/)(?P<user>[^/\s:;,'\"]+)")
_NOT_TELLING = frozenset({"", "localhost", "ubuntu", "debian", "root", "dev"})


def mask(text: str, *, key: bytes = _KEY, hosts: Collection[str] | None = None) -> str:
    """The text with pseudonyms in place of what identifies the machine. `hosts`: its names; None: this machine's.

    A UUID keeps its form, so a masked answer of nvidia-smi is judged like the answer itself.
    """

    def pseudonym(word: str, of: str) -> str:
        digest = hashlib.blake2b(of.lower().encode(), key=key, digest_size=6).hexdigest()
        return f"{word}{digest}"

    def uuid(found: re.Match[str]) -> str:
        digest = pseudonym("", found[0])
        return f"{digest[:8]}-{digest[8:]}-0000-0000-000000000000"

    def serial(found: re.Match[str]) -> str:
        return (found["before"] or "") + pseudonym("serial-", found["serial"] or found[0])

    def after(group: str, word: str) -> Callable[[re.Match[str]], str]:
        return lambda found: found["before"] + pseudonym(word, found[group])

    text = _UUID.sub(uuid, text)
    text = _SERIAL.sub(serial, text)
    text = _SYSLOG.sub(after("host", "host-"), text)
    text = _HOME.sub(after("user", "user-"), text)
    names = host_names() if hosts is None else frozenset(hosts)
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2 and name.lower() not in _NOT_TELLING:
            whole = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
            text = re.sub(whole, pseudonym("host-", name), text, flags=re.IGNORECASE)
    return text


def mask_all(value: object, *, key: bytes = _KEY, hosts: Collection[str] | None = None) -> object:
    """Every text in a value made of mappings, lists and tuples, as a report's JSON is. Keys stay as they are.

    >>> mask_all({"seen": ["GPU at 0000:41:00.0", 3]})
    {'seen': ['GPU at 0000:41:00.0', 3]}
    """
    if isinstance(value, str):
        return mask(value, key=key, hosts=hosts)
    if isinstance(value, Mapping):
        return {name: mask_all(each, key=key, hosts=hosts) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [mask_all(each, key=key, hosts=hosts) for each in value]
    return value


@lru_cache(maxsize=1)
def host_names() -> frozenset[str]:
    """This machine's names: without a look-up, which could wait for a name server."""
    names = {socket.gethostname(), os.uname().nodename, os.environ.get("HOSTNAME", "")}
    return frozenset(names | {name.partition(".")[0] for name in names})
