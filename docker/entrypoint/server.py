"""JupyterLab as it describes itself: address, base_url, TLS and token, from the file that it writes once it listens.

What is in ~/.jupyter decides all of these, so nothing here is guessed. The folder of these files may hold others': of
servers that were killed, or that the user started by hand. Ours is the one whose process s6 keeps.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint import paths
from entrypoint.account import acting_as

PROC = Path("/proc")
LONGEST = 1 << 20  # bytes of an answer
SUPERVISOR = b"s6-supervise\0jupyter\0"  # its command line
INFO_FILE = re.compile(r"jpserver-([1-9][0-9]{0,9})\.json")
# What a server that listens everywhere is asked at; "localhost" is not looked up, so that no name service has a say.
ADDRESSES = {"": "127.0.0.1", "*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where our JupyterLab listens, and the token that it takes (empty: none)."""

    host: str = ""  # where it listens; empty: everywhere
    port: int = 0
    sock: str = ""  # a UNIX socket in place of a port
    secure: bool = False
    base_url: str = "/"
    token: str = ""

    @property
    def where(self) -> str:
        """As said to the user.

        >>> Server(port=8888).where, Server(sock="/tmp/lab.sock").where
        ('port 8888', '/tmp/lab.sock')
        """
        return self.sock or f"port {self.port}"

    @property
    def beyond_loopback(self) -> bool:
        """Whether a published port leads here: Docker hands connections to the container's own address."""
        return not self.sock and self.host not in ("localhost", "::1") and not self.host.startswith("127.")

    @property
    def address(self) -> str:
        """What to connect to."""
        return ADDRESSES.get(self.host, self.host)


def find(started: Mapping[str, Any], is_ours: Callable[[int], bool] | None = None) -> Server | None:
    """The JupyterLab that start's own supervisor keeps, or None while it has not said that it listens."""
    is_ours = is_ours or kept_by_s6
    folder = Path(started["jupyter_runtime"])
    with acting_as(started["uid"], started["gid"]):  # the user could put a link or a pipe there
        try:
            names = [entry.name for entry in folder.iterdir()]
        except OSError:
            return None
        for name in names:
            found = INFO_FILE.fullmatch(name)
            if found and is_ours(int(found[1])):
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                    return read(json.loads(paths.read(folder / name)))
    return None


def read(said: Mapping[str, Any]) -> Server:
    """What the file says, checked. Raises ValueError, TypeError or KeyError for one that is no server's.

    >>> read({"hostname": "0.0.0.0", "port": 1, "sock": "", "secure": False, "base_url": "/x/", "token": "t"})
    Server(host='0.0.0.0', port=1, sock='', secure=False, base_url='/x/', token='t')
    """
    host, base_url = str(said["hostname"]), str(said["base_url"])
    if not said["sock"] and not _is_address(ADDRESSES.get(host, host)):
        raise ValueError(host)
    if not re.fullmatch(r"/[!-~]*", base_url):
        raise ValueError(base_url)
    return Server(
        host=host,
        port=int(said["port"]),
        sock=str(said["sock"]),
        secure=bool(said["secure"]),
        base_url=base_url.rstrip("/") + "/",
        token=str(said["token"]),
    )


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            return bool(socket.inet_pton(family, text))
    return False


def kept_by_s6(pid: int, proc: Path = PROC) -> bool:
    """Whether this process is the service itself; a server that the user runs in a terminal is further below."""
    try:
        parent = re.search(r"^PPid:\s+(\d+)$", (proc / str(pid) / "status").read_text(errors="replace"), re.M)
        return parent is not None and (proc / parent[1] / "cmdline").read_bytes() == SUPERVISOR
    except OSError:
        return False


def is_taken(port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def ask(server: Server, path: str, timeout_s: float) -> tuple[int, Any]:
    """Status, and the JSON of a 200, of a GET below base_url that carries the token.

    Raises OSError, or ValueError for what is no such answer.
    """
    # Straight to the socket, so no proxy variable has a say in it. http.client would be most of what health costs.
    until = time.monotonic() + timeout_s
    login = f"Authorization: token {server.token}\r\n" if server.token else ""
    request = f"GET {server.base_url}{path} HTTP/1.0\r\nHost: localhost:{server.port}\r\n{login}\r\n"
    with _connection(server, timeout_s) as connection:
        connection.sendall(request.encode("ascii"))
        answer = b""
        while len(answer) < LONGEST and (more := connection.recv(65_536)):
            answer += more
            connection.settimeout(max(until - time.monotonic(), 0.001))
    head, _, body = answer.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
    if status is None:
        raise ValueError("the answer is no HTTP")
    return int(status[1]), json.loads(body) if status[1] == b"200" else None


def _connection(server: Server, timeout_s: float) -> socket.socket:
    if server.sock:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        connection.connect(server.sock)
    else:
        connection = socket.create_connection((server.address, server.port), timeout=timeout_s)
    if not server.secure:
        return connection
    import ssl  # only where it is needed: loading it takes longer than all the rest

    # The user's own certificate, often self-signed, at an address that it was not made for.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)
