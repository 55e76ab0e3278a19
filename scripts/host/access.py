"""Ways into a running container: the link, SSH, a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from host.paths import Paths
from host.project import SERVICE, Compose, published
from host.show import Problem


def url(compose: Compose, container: Mapping[str, Any]) -> str:
    """The link, with its token where it has one, at the address at which this host publishes it. Raises `Problem`."""
    # JUPYTER_PORT is the host's port; without it the link names JupyterLab's own, which ~/.jupyter can change.
    answer = compose.ask("exec", "-T", "-e", "JUPYTER_PORT=", SERVICE, "torchtap-url")
    if not answer.ok:
        raise Problem(answer.said.removeprefix("torchtap-url: "), "See:  make logs", code=1)
    link = urlsplit(answer.out.strip())
    if container["HostConfig"].get("NetworkMode") == "host":
        return link.geturl()
    where = published(container, link.port or 8888)
    if where is None:
        raise Problem(
            f"JupyterLab listens on port {link.port} in the container, which is not published",
            f'Publish it in compose.override.yaml:  ports: ["127.0.0.1:{link.port}:{link.port}"]',
            code=1,
        )
    return link._replace(netloc=f"{reachable(where[0])}:{where[1]}").geturl()


def reachable(address: str) -> str:
    """An address to connect to, for one to listen at.

    >>> reachable("0.0.0.0"), reachable("::1")
    ('127.0.0.1', '[::1]')
    """
    if address in {"", "0.0.0.0", "::"}:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address


def ssh_command(container: Mapping[str, Any], identity: Path | None, *options: str) -> list[str] | None:
    """How to log in, or None when sshd's port is not published."""
    where = published(container, 22)
    if where is None:
        return None
    key = ["-i", str(identity)] if identity else []
    port = ["-p", str(where[1])] if where[1] != 22 else []
    return ["ssh", *options, *key, *port, f"dev@{reachable(where[0]).strip('[]')}"]


def known_hosts(compose: Compose, paths: Paths) -> list[str]:
    """Options with which ssh knows the container's host key: read through Docker, so there is nothing to trust blindly.

    Without an answer there are no options, and ssh asks as usual.
    """
    answer = compose.ask("exec", "-T", SERVICE, "/bin/cat", "/run/torchtap/ssh_host_ed25519_key.pub")
    words = answer.out.split()
    if not answer.ok or len(words) < 2:
        return []
    paths.local.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = paths.local / "known_hosts"
    file.write_text(f"torchtap {words[0]} {words[1]}\n")
    return [
        "-o",
        "HostKeyAlias=torchtap",
        "-o",
        f"UserKnownHostsFile={file}",
        "-o",
        "StrictHostKeyChecking=yes",
    ]


def started(compose: Compose) -> dict[str, Any]:
    """What start decided in the container: uid, gid, services (docker/entrypoint/paths.py). Raises `Problem`."""
    answer = compose.ask("exec", "-T", SERVICE, "/bin/cat", "/run/torchtap/started.json")
    try:
        found = json.loads(answer.out)
    except ValueError:
        found = None
    if not answer.ok or not isinstance(found, dict):
        raise Problem(f"the container does not answer: {answer.said}", "See:  make status", code=1)
    return found


def shell_command(compose: Compose, words: Sequence[str], *, terminal: bool) -> list[str]:
    """A shell as the container's user with the environment of its sessions; `words` is a command instead."""
    who = started(compose)
    options = ["--user", f"{who['uid']}:{who['gid']}", *([] if terminal else ["-T"])]
    if words:
        options += ["--env", f"SSH_ORIGINAL_COMMAND={shlex.join(words)}"]
    return ["docker", "compose", "exec", *options, SERVICE, "/opt/torchtap/bin/session"]
