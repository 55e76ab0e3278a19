"""The HEALTHCHECK: does what this container was started for answer? Exit code 0 healthy, 1 not; one line says why."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entrypoint import paths
from entrypoint.account import acting_as

TIMEOUT_S = 4.0  # a service; two that hang still end before the time limit of the Dockerfile's HEALTHCHECK
JUPYTER_PORT = 8888


def check(started: Mapping[str, Any] | None) -> tuple[bool, str]:
    """(healthy, one line for `docker inspect`) for what start decided in this container."""
    if started is None:
        return False, "starting: start has not finished yet"
    if not started["services"]:
        return True, f"role {started['role']}: a command, with no service to check"
    answers = [CHECKS[name](started) for name in started["services"]]
    return all(ok for ok, _ in answers), "; ".join(text for _, text in answers)


def jupyter(started: Mapping[str, Any]) -> tuple[bool, str]:
    """JupyterLab answers a request that carries the token."""
    try:
        with acting_as(started["uid"], started["gid"]):  # the file lies where the user could put a link
            token = paths.read(Path(started["state"]) / paths.TOKEN).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        return False, f"jupyter: no token to ask with ({error})"
    if not re.fullmatch("[!-~]+", token):
        return False, f"jupyter: no token to ask with ({paths.TOKEN} holds something else)"
    # Straight to the socket: no proxy variable has a say in it.
    connection = http.client.HTTPConnection("127.0.0.1", JUPYTER_PORT, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/api/status", headers={"Authorization": f"token {token}"})
        response = connection.getresponse()
        body = response.read()
        kernels = json.loads(body)["kernels"] if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return False, f"jupyter: no answer on port {JUPYTER_PORT} ({error!r})"
    finally:
        connection.close()
    if kernels is None:
        return (
            False,
            f"jupyter: HTTP {response.status} on port {JUPYTER_PORT}, not the answer to a valid token",
        )
    return True, f"jupyter: answers, kernels: {kernels}"


def sshd(started: Mapping[str, Any]) -> tuple[bool, str]:
    """sshd says its banner."""
    port = started["ssh_port"]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
            banner = connection.recv(64)
            connection.sendall(b"SSH-2.0-torchtap-health\r\n")  # else sshd logs a client that broke off
    except OSError as error:
        return False, f"sshd: no answer on port {port} ({error})"
    return (
        (True, "sshd: answers")
        if banner.startswith(b"SSH-2.0-")
        else (False, f"sshd: no SSH banner on port {port}")
    )


CHECKS = {"jupyter": jupyter, "sshd": sshd}


def main() -> int:
    healthy, text = check(paths.started())
    print(text)
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
