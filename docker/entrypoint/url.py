"""`torchtap-url`: JupyterLab's link, for people without make."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from entrypoint import health, paths, server, verdict

USAGE = """usage: torchtap-url [--help]

Print JupyterLab's link, with its token where it has one, as seen from the host.

    docker exec CONTAINER torchtap-url

How the last self-test ended is said on standard error.
The port is the one published by compose.yaml (JUPYTER_PORT), else JupyterLab's own; with `docker run -p HOST:8888`
use HOST instead.
Exit codes: 0 printed, 1 JupyterLab does not run in this container, 2 wrong usage.
"""
PATIENCE_S = 10.0  # right after the start of the container, or amid a restart of JupyterLab


def main(words: list[str]) -> int:
    if words:
        print(USAGE, end="", file=sys.stdout if words in (["--help"], ["-h"]) else sys.stderr)
        return 0 if words in (["--help"], ["-h"]) else 2
    started = paths.started()
    if started is None or "jupyter" not in started["services"]:
        role = f" (role {started['role']})" if started else ""
        return _refuse(f"JupyterLab does not run in this container{role}")
    found = _wait_for_server(started)
    if found is None:
        return _refuse(health.jupyter(started)[1])
    if not re.fullmatch("[!-~]*", found.token):
        return _refuse("the token in ~/.jupyter holds letters that no link can carry")
    if found.sock:
        return _refuse(f"JupyterLab listens on the UNIX socket {found.sock} alone: no link leads there")
    print(link(found, _port(found.port, started["jupyter_port"], os.environ.get("JUPYTER_PORT", ""))))
    if not found.beyond_loopback:
        note = f"JupyterLab listens on {found.host} in the container: a published port does not lead there"
        print(f"torchtap-url: {note}", file=sys.stderr)
    if said := verdict.beside_link(started):
        print(said, file=sys.stderr)  # so that $(torchtap-url) is the link alone
    return 0


def link(found: server.Server, port: str) -> str:
    """What to open in a browser on the host.

    >>> link(server.Server(port=1, base_url="/a/", secure=True, token="x&y"), "2")
    'https://127.0.0.1:2/a/lab?token=x%26y'
    >>> link(server.Server(port=1), "1")  # a password, asked for in the browser
    'http://127.0.0.1:1/lab'
    """
    token = f"?token={quote(found.token, safe='')}" if found.token else ""
    return f"http{'s' * found.secure}://127.0.0.1:{port}{found.base_url}lab{token}"


def _port(inside: int, usual: int, published: str) -> str:
    """JUPYTER_PORT leads to the usual port; one that was chosen in ~/.jupyter is published by the user, if at all.

    >>> _port(8888, 8888, "9000"), _port(9443, 8888, "9000"), _port(8888, 8888, "")
    ('9000', '9443', '8888')
    """
    return published if published and inside == usual else str(inside)


def _wait_for_server(started: Mapping[str, Any]) -> server.Server | None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := server.find(started)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _refuse(why: str) -> int:
    print(f"torchtap-url: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
