"""The HEALTHCHECK: does what this container was started for answer? Exit code 0 healthy, 1 not; one line says why."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from entrypoint import backoff, gpu, paths, server
from entrypoint.account import acting_as

TIMEOUT_S = 3.0  # each wait; two services that hang end before the HEALTHCHECK's own limit
HANGS_S = 60.0  # of a start; a package can do that, and nothing ends it


def check(started: Mapping[str, Any] | None) -> tuple[bool, str]:
    """(healthy, one line for `docker inspect`) for what start decided in this container."""
    if started is None:
        return False, "starting: start has not finished yet"
    if not started["services"]:
        return True, f"role {started['role']}: a command, with no service to check"
    well, text = services(started)
    if (run := paths.run_directory()) is None:
        return well, text
    gpu_well, gpu_text = gpu.check(started, run, ready=well)
    return well and gpu_well, f"{text}; {gpu_text}"


def services(started: Mapping[str, Any]) -> tuple[bool, str]:
    """The same for the services alone."""
    answers = [CHECKS[name](started) for name in started["services"]]
    return all(ok for ok, _ in answers), "; ".join(text for _, text in answers)


def jupyter(started: Mapping[str, Any]) -> tuple[bool, str]:
    """JupyterLab answers a request that carries its token."""
    found = server.find(started)
    if found is None:
        return False, f"jupyter: {_why_none(started)}"
    if not re.fullmatch("[!-~]*", found.token):
        return False, "jupyter: its token holds letters that no request can carry"
    where = found.where
    try:
        with acting_as(started["uid"], started["gid"]):  # a UNIX socket lies where the user could put a link
            if found.token:
                status, said = server.ask(found, "api/status", TIMEOUT_S)
                if status == 200:
                    return True, f"jupyter: answers, kernels: {int(said['kernels'])}"
            else:  # a password, or open to anyone: /api alone needs no login, and what is refused fills the log
                status, said = server.ask(found, "api", TIMEOUT_S)
                if status == 200 and said["version"]:
                    return True, "jupyter: answers; it has no token to ask more with"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return False, f"jupyter: no answer on {where} ({error!r})"
    return (
        False,
        f"jupyter: HTTP {status} on {where}, not the answer {'to a valid token' if found.token else 'of a server'}",
    )


def _why_none(started: Mapping[str, Any]) -> str:
    """Why there is no server of ours."""
    last = _last_end("jupyter")
    if last and server.is_taken(started["jupyter_port"]):
        port = started["jupyter_port"]
        return f"port {port} is taken by another program; start with -e JUPYTER_PORT_IN_CONTAINER=ANOTHER ({last})"
    if (waited := backoff.runs_for_s(paths.run_directory(), "jupyter")) > HANGS_S:
        return f"has not answered for {waited:.0f} s; TORCHTAP_SAFE=1 starts without your packages"
    return f"does not run: {last}" if last else "starting, it does not listen yet"


def _last_end(name: str) -> str:
    """How the service ended, while that is news: until it runs again."""
    last = backoff.last_end(paths.run_directory(), name)
    if last is None:
        return ""
    try:
        left = round(float(last["starts_again"]) - time.time())
        times = "" if last["times"] == 1 else f", {last['times']} times in a row"
        return f"ended ({last['how']}){times}; starts again {f'in {left} s' if left > 0 else 'now'}"
    except (KeyError, TypeError, ValueError):
        return ""


def sshd(started: Mapping[str, Any]) -> tuple[bool, str]:
    """sshd says its banner."""
    port = started["ssh_port"]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
            banner = connection.recv(64)
            connection.sendall(b"SSH-2.0-torchtap-health\r\n")  # else sshd logs a client that broke off
    except OSError as error:
        last = _last_end("sshd")
        return False, f"sshd: no answer on port {port} ({error}{f'; {last}' if last else ''})"
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
