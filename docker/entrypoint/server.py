"""JupyterLab as it describes itself: address, base_url, TLS and token, from the file that it writes once it listens.

What is in ~/.jupyter decides all of these, so nothing here is guessed. The folder of these files may hold others': of
servers that were killed, or that the user started by hand. Ours is the one whose process s6 keeps.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint import paths
from entrypoint.account import acting_as

PROC = Path("/proc")
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
    if not said["sock"]:
        ipaddress.ip_address(ADDRESSES.get(host, host))  # ValueError for a name
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


def kept_by_s6(pid: int, proc: Path = PROC) -> bool:
    """Whether this process is the service itself; a server that the user runs in a terminal is further below."""
    try:
        parent = re.search(r"^PPid:\s+(\d+)$", (proc / str(pid) / "status").read_text(errors="replace"), re.M)
        return parent is not None and (proc / parent[1] / "cmdline").read_bytes() == SUPERVISOR
    except OSError:
        return False


def ask(server: Server, path: str, timeout_s: float) -> tuple[int, Any]:
    """Status, and the JSON of a 200, of a GET below base_url that carries the token.

    Raises OSError, HTTPException or ValueError.
    """
    # Straight to the socket: no proxy variable has a say in it.
    connection = _Connection(server, timeout_s)
    headers = {"Authorization": f"token {server.token}"} if server.token else {}
    try:
        connection.request("GET", f"{server.base_url}{path}", headers=headers)
        response = connection.getresponse()
        body = response.read(1 << 20)
        return response.status, json.loads(body) if response.status == 200 else None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """HTTP over whatever the server listens on."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        super().__init__(server.address, server.port, timeout=timeout_s)
        self._server = server

    def connect(self) -> None:
        server = self._server
        if server.sock:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(server.sock)
        else:
            super().connect()
        if server.secure:
            import ssl

            # The user's own certificate, often self-signed, at an address that it was not made for.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)
