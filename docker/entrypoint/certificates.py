"""Certificate authorities of the user's own: for networks that re-sign TLS, and for servers of one's company.

They are files in the distribution's own place (or a secret). Start makes one bundle of the system's and these, names
it in the variables of every client, and adds them to the system's file where that can be written, so that a bare
`docker exec` has them too.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from entrypoint import paths
from entrypoint.mounts import mounts

SUFFIXES = (".crt", ".pem", ".cer")
LARGEST = 8 << 20  # a bundle of everything there is has a quarter of a megabyte
# In the run directory: the system's with the user's, and the user's alone.
ALL, EXTRA = "ca-certificates.pem", "ca-certificates-extra.pem"
CLIENTS = ("pip", "uv", "curl", "git", "requests", "httpx", "node")
# In the system's file: what follows was added at start, and is taken out again at the next.
MARK = "# Below: added by torchtap's start from the mounted certificates.\n"
# Name, the file that it is given, and who reads it. All but the last replace the client's own list, hence the bundle.
VARIABLES = (
    (
        "SSL_CERT_FILE",
        ALL,
        "OpenSSL: Python's `ssl` and urllib, uv, httpx, and what is written in Go or Rust",
    ),
    (
        "REQUESTS_CA_BUNDLE",
        ALL,
        "requests, which else reads certifi's list: Hugging Face datasets, wandb, conda, boto3",
    ),
    ("CURL_CA_BUNDLE", ALL, "curl, also one that conda installed"),
    ("PIP_CERT", ALL, "pip, also an old one that reads no system file"),
    ("GIT_SSL_CAINFO", ALL, "git over https, also one that conda installed"),
    ("NODE_EXTRA_CA_CERTS", EXTRA, "node and VS Code's server, which add it to a list of their own"),
)
BEGIN = re.compile(r"-----BEGIN (?:X509 )?CERTIFICATE-----")
BLOCK = re.compile(BEGIN.pattern + r"([^-]+)-----END (?:X509 )?CERTIFICATE-----")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What the mounted files hold: certificates in their binary form, and what is wrong with which file."""

    system: str = ""  # the text of the system's file, without what an earlier start added
    certificates: tuple[bytes, ...] = ()
    places: tuple[str, ...] = ()  # where they come from
    problems: tuple[str, ...] = ()

    @property
    def extra(self) -> bytes:
        return "".join(map(pem, self.certificates)).encode()

    @property
    def all(self) -> bytes:
        """The system's, then those that it does not have yet."""
        known = set(blocks(self.system))
        added = "".join(pem(each) for each in self.certificates if each not in known)
        system = self.system if self.system.endswith("\n") or not self.system else f"{self.system}\n"
        return (f"{system}{MARK}{added}" if added else system).encode("latin-1")

    @property
    def said(self) -> str:
        """A line for the log."""
        number = len(self.certificates)
        return f"{number} from {' and '.join(self.places)}, for {', '.join(CLIENTS)}"


def read() -> Trust:
    """The certificates that were mounted. Any file may be broken; the others count."""
    folder, secret = paths.CERTIFICATES, paths.CA_SECRET
    files = [*_files(folder), *([secret] if os.path.lexists(secret) else [])]
    system = _system() if files else ""
    known = frozenset(blocks(system))
    found: dict[bytes, None] = {}
    places: dict[str, None] = {}
    problems: list[str] = []
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        problems.append(f"{folder} cannot be read by uid {os.geteuid()}")
    for path in files:
        try:
            certificates, why = parse(paths.read(path, LARGEST + 1), known)
        except OSError as error:
            certificates, why = [], [f"cannot be read ({error.strerror})"]
        problems += [f"{path} {each}" for each in why]
        if certificates:
            found.update(dict.fromkeys(certificates))
            places[str(secret if path == secret else folder)] = None
    return Trust(
        system=system if found else "",
        certificates=tuple(found),
        places=tuple(places),
        problems=tuple(problems),
    )


def variables(trust: Trust, run: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set: none without certificates, none that the user has set."""
    return unset(run, environment) if trust.certificates else {}


def unset(run: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Those that the user has not set, with the bundles of this run directory."""
    return {name: str(run / file) for name, file, _ in VARIABLES if not environment.get(name)}


def write(trust: Trust, run: Path, *, is_root: bool) -> None:
    """The bundles into the run directory, and into the system's file where root may write that."""
    if trust.certificates:
        paths.write(run / ALL, trust.all)
        paths.write(run / EXTRA, trust.extra)
    if is_root:
        _into(paths.CA_SYSTEM, trust)


def parse(raw: bytes, known: Set[bytes] = frozenset()) -> tuple[list[bytes], list[str]]:
    """(certificates, what is wrong) of one file. A private key in it is named and never passed on.

    Those that are `known` need no second look: a host's whole list has 150, and most of them are the system's too.

    >>> parse(b"")
    ([], ['is empty'])
    """
    if len(raw) > LARGEST:
        return [], [f"has more than {LARGEST >> 20} MiB: no list of certificates is so long"]
    if not raw.strip():
        return [], ["is empty"]
    text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1", errors="replace")
    problems = []
    if "PRIVATE KEY-----" in text:
        problems.append(
            "holds a private key, which is not used here: take it out, programs need the certificate alone"
        )
    certificates = []
    bodies = BLOCK.findall(text)
    for number, body in enumerate(bodies, 1):
        certificate = _decoded(body, known)
        if certificate is None:
            which = f"number {number} of {len(bodies)} in it" if len(bodies) > 1 else "what it holds"
            problems.append(f"is damaged: {which} is no certificate; copy it again")
        else:
            certificates.append(certificate)
    if (cut := len(BEGIN.findall(text)) - len(bodies)) > 0:
        problems.append(f"is damaged: {cut} of what begins as a certificate in it has no end; copy it again")
    if not bodies and not problems:
        problems.append(_no_pem(raw))
    return certificates, problems


def pem(certificate: bytes) -> str:
    """As text, the same for every form in which it came."""
    body = base64.encodebytes(certificate).decode().replace("\n", "")
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"


def blocks(text: str) -> Iterable[bytes]:
    """Every certificate of a text, as far as it can be decoded."""
    for body in BLOCK.findall(text):
        try:
            yield base64.b64decode(body)
        except binascii.Error:
            continue


def _decoded(body: str, known: Set[bytes]) -> bytes | None:
    """The binary form; None for what OpenSSL would refuse, because one such entry spoils the whole bundle for it."""
    try:
        certificate = base64.b64decode("".join(body.split()), validate=True)
        if certificate not in known:
            import ssl  # here: 10 ms that a start without certificates does not spend

            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate)
    except (ValueError, OSError):  # ssl.SSLError is an OSError
        return None
    return certificate


def _no_pem(raw: bytes) -> str:
    if raw[0] == 0x30:  # a sequence, as every certificate in binary form begins
        return "is in binary form (DER). Convert it: openssl x509 -inform der -in FILE -out FILE.crt"
    return "holds no certificate in text form (PEM): there is no line -----BEGIN CERTIFICATE-----"


def _files(folder: Path) -> list[Path]:
    """In order, with subfolders, as update-ca-certificates takes them."""
    try:
        return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and not path.is_dir())
    except OSError:
        return []


def _system() -> str:
    try:
        return paths.read(paths.CA_SYSTEM, LARGEST).decode("latin-1").partition(MARK)[0]
    except OSError:
        return ""


def _into(system: Path, trust: Trust) -> None:
    """Only where it changes something: a start without certificates writes nothing, unless an earlier one did.

    What is mounted there is the user's, perhaps the host's own list: that is left as it is.
    """
    points = {mount.point for mount in mounts()}
    if any(path in points for path in (system, *system.parents) if path != Path("/")):
        return
    try:
        before = paths.read(system, LARGEST)
        after = trust.all if trust.certificates else before.partition(MARK.encode())[0]
        if after != before:
            paths.write(system, after)
    except OSError:
        return  # a read-only root: the variables name the other bundle
