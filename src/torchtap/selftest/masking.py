"""Take out of a report what says which machine it is: UUIDs, serial numbers, names of hosts, users and home folders.

Equal things stay equal within a process, so that a masked report still tells which GPU is which; between reports they
differ unless the same `key` is given. Left as they are: PCI addresses, which are the same on every machine of a kind
and are needed to read a report, product names and versions; and a name that is a word of the self-test's own (a host
called torch, cu130 or at): in a text nobody can tell which is meant. In the report's own field every name is masked.

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
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

from torchtap.selftest.identity import NAME_VARIABLES

# Random, because serial numbers and host names can be guessed: a hash alone would only seem to hide them.
_KEY = secrets.token_bytes(16)
# Whole ones, and beginnings behind GPU- or MIG-, which CUDA_VISIBLE_DEVICES takes too.
_UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])"
    r"|(?<=GPU-|MIG-)[0-9a-f]{4,8}(?:-[0-9a-f]{1,12}){0,4}(?![\w-])",
    re.IGNORECASE,
)
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
_NOT_TELLING = frozenset(
    {"", "localhost", "ubuntu", "debian", "root", "dev", "user", "admin", "test", "node", "server"}
)
_HOST_VARIABLES = ("HOSTNAME", *NAME_VARIABLES)
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")


def pseudonym(word: str, of: str, *, key: bytes = _KEY) -> str:
    """What stands in place of a name: the same for the same name and key, whatever its capitals.

    >>> pseudonym("host-", "node017", key=b"k") == pseudonym("host-", "NODE017", key=b"k")
    True
    """
    return word + hashlib.blake2b(of.lower().encode(errors="replace"), key=key, digest_size=6).hexdigest()


def mask(
    text: str,
    *,
    key: bytes = _KEY,
    hosts: Collection[str] | None = None,
    users: Collection[str] | None = None,
    homes: Collection[str] | None = None,
) -> str:
    """The text with pseudonyms in place of what identifies the machine.

    `hosts`, `users`, `homes`: its names, who works on it, and the paths of their home folders; None: of this process.

    A UUID keeps its form, so a masked answer of nvidia-smi is judged like the answer itself.
    """

    def uuid(found: re.Match[str]) -> str:
        return _uuid_like(found[0], key)[: len(found[0])]

    def serial(found: re.Match[str]) -> str:
        return (found["before"] or "") + pseudonym("serial-", found["serial"] or found[0], key=key)

    def after(group: str, word: str) -> Callable[[re.Match[str]], str]:
        return lambda found: found["before"] + pseudonym(word, found[group], key=key)

    text = _UUID.sub(uuid, text)
    text = _SERIAL.sub(serial, text)
    text = _SYSLOG.sub(after("host", "host-"), text)
    for home in sorted(home_folders() if homes is None else homes, key=len, reverse=True):
        folder = f"/home/{home.rpartition('/')[2]}"  # a path of its own may tell the site
        text = re.sub(rf"{re.escape(home)}(?![\w-])", lambda _, to=folder: to, text)  # type: ignore[misc]
    text = _HOME.sub(after("user", "user-"), text)
    for names, word in (
        (host_names() if hosts is None else hosts, "host-"),
        (user_names() if users is None else users, "user-"),
    ):
        for name in sorted(names, key=len, reverse=True):
            if _tells(name):
                whole = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
                text = re.sub(whole, pseudonym(word, name, key=key), text, flags=re.IGNORECASE)
    return text


def _uuid_like(uuid: str, key: bytes) -> str:
    """A pseudonym in the form of a UUID. Its first eight digits depend on those alone, so that a beginning of a UUID
    still is the beginning of the same GPU's.
    """
    rest = pseudonym("", uuid, key=key)
    return f"{pseudonym('', uuid[:8], key=key)[:8]}-{rest[:4]}-{rest[4:8]}-{rest[8:]}-000000000000"


def _tells(name: str) -> bool:
    """Whether a name, found in a text, can be taken for that name."""
    return len(name) > 1 and not name.isdecimal() and name.lower() not in _ordinary_words()


@lru_cache(maxsize=1)
def _ordinary_words() -> frozenset[str]:
    """Those that a report is made of, and names that many machines have."""
    from torchtap.selftest.causes import CAUSES
    from torchtap.selftest.checks import CHECKS
    from torchtap.variants import VARIANTS

    texts = [text for cause in CAUSES.values() for text in (cause.says, cause.do, cause.paste)]
    texts += [f"{check.id} {check.title} {' '.join(check.reads)}" for check in CHECKS]
    texts += [f"{each.name} {' '.join(each.arch_list)}" for each in VARIANTS.values()]
    return _NOT_TELLING | frozenset(re.findall(r"\w+", " ".join([*texts, *CAUSES]).lower()))


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


def host_names() -> frozenset[str]:
    """This machine's names: without a look-up, which could wait for a name server."""
    return short_too({socket.gethostname(), os.uname().nodename, *map(os.environ.get, _HOST_VARIABLES)})


def short_too(names: Iterable[str | None]) -> frozenset[str]:
    """Names of hosts with and without their domain.

    >>> sorted(short_too(["node7.example.org", None]))
    ['node7', 'node7.example.org']
    """
    known = {name for name in names if name}
    return frozenset(known | {name.partition(".")[0] for name in known} - {""})


def user_names() -> frozenset[str]:
    """Who works here, by the environment alone: a look-up could wait for a name server."""
    found = {os.environ.get(name, "") for name in _USER_VARIABLES}
    return frozenset((found | {home.rpartition("/")[2] for home in home_folders()}) - {""})


def home_folders() -> frozenset[str]:
    """The home folder of who works here; none where it is a folder of every machine."""
    home = os.path.normpath(os.environ.get("HOME") or "/")
    return frozenset({home} - {"/", ".", "/root", "/nonexistent"})
