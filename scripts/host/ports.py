"""Is a port free on this host, and if not, who has it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from host import proc
from host.show import Problem

LISTEN = "0A"  # the state in /proc/net/tcp


def is_free(address: str, port: int) -> bool:
    """Whether we could listen there now. An address that is not ours is no question of free: see `check`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Docker and Jupyter do: TIME_WAIT is free
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def next_free(address: str, port: int) -> int | None:
    """The next port above that is free, within 100."""
    return next((each for each in range(port + 1, min(port + 100, 65535)) if is_free(address, each)), None)


def holder(port: int) -> str | None:
    """Who listens on a port: "container NAME", "NAME (pid N)", or None where this user cannot see it."""
    named = proc.ask(["docker", "ps", "--filter", f"publish={port}", "--format", "{{.Names}}"], timeout_s=10)
    if named.ok and named.out.strip():
        return f"container {named.out.split()[0]}"
    sockets = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    for folder in Path("/proc").glob("[0-9]*"):
        if sockets & open_files(folder):
            with contextlib.suppress(OSError):
                return f"{(folder / 'comm').read_text().strip()} (pid {folder.name})"
    return None


def open_files(process: Path) -> set[str]:
    """What a process of /proc has open; empty for other users' processes, and for one that is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed between the two looks
                found.add(str(link.readlink()))
    return found


def listening_inodes(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> list[str]:
    """The sockets that listen on a port, by inode, as /proc/net/tcp lists them."""
    found = []
    for table in tables:
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        found += [row[9] for row in rows if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port]
    return found


def check(variable: str, address: str, port: int) -> None:
    """Raises `Problem` when the port cannot be had: who has it, and the variable to set instead."""
    if port < 1024 and port < unprivileged_from() and os.geteuid() != 0:
        raise Problem(
            f"{variable}={port}: ports below {unprivileged_from()} need root",
            f"make up {variable}={port + 8000}",
        )
    try:
        if is_free(address, port):
            return
    except OSError as error:
        raise Problem(
            f"BIND_ADDRESS={address!r}: this host cannot listen there ({error.strerror})",
            "127.0.0.1 is this machine only; ip -brief address lists the others",
        ) from None
    who = holder(port) or "another program (of another user: sudo ss -ltnp shows it)"
    free = next_free(address, port)
    advice = [f"Choose another:  make up {variable}={free}"] if free else []
    raise Problem(f"port {port} ({variable}) is taken on {address} by {who}", *advice)


def unprivileged_from() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        return 1024
