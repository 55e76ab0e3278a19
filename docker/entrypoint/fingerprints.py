"""`torchtap-fingerprints`: who this SSH server is, to compare with what a client asks about."""

from __future__ import annotations

import sys

from entrypoint import hostkey, paths

USAGE = """usage: torchtap-fingerprints [HOST [PORT]]

Print the fingerprint of the SSH host key, as ssh shows it, and a line for ~/.ssh/known_hosts.
HOST and PORT as you connect: 127.0.0.1 and 2222 when not given.

    docker exec CONTAINER torchtap-fingerprints
    docker exec CONTAINER torchtap-fingerprints gpu-host 2222 | tail -n 1 >> ~/.ssh/known_hosts

Exit codes: 0 printed, 1 sshd was not started in this container, 2 wrong usage.
"""


def main(words: list[str]) -> int:
    if words in (["--help"], ["-h"]):
        print(USAGE, end="")
        return 0
    host, port, *more = [*words, *("127.0.0.1", "2222")[len(words) :]]
    if more or host.startswith("-") or not port.isdecimal():
        print(USAGE, end="", file=sys.stderr)
        return 2
    run = paths.run_directory()
    try:
        public = hostkey.public_of(run) if run else ""
    except OSError:
        public = ""
    if not public:
        print(
            "torchtap-fingerprints: sshd was not started in this container; its log says why", file=sys.stderr
        )
        return 1
    where = host if port == "22" else f"[{host}]:{port}"
    print(f"{hostkey.fingerprint(public)}\n{where} {' '.join(public.split()[:2])}")
    return 0
