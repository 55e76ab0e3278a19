"""`torchtap-url`: JupyterLab's link with its token, for people without make."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

from entrypoint import paths
from entrypoint.account import acting_as

USAGE = """usage: torchtap-url [--help]

Print JupyterLab's link, with its token, as seen from the host.

    docker exec CONTAINER torchtap-url

The port is the one published by compose.yaml (JUPYTER_PORT); with `docker run -p HOST:8888` use HOST instead.
Exit codes: 0 printed, 1 JupyterLab does not run in this container, 2 wrong usage.
"""


def main(words: list[str]) -> int:
    if words:
        print(USAGE, end="", file=sys.stdout if words in (["--help"], ["-h"]) else sys.stderr)
        return 0 if words in (["--help"], ["-h"]) else 2
    started = paths.started()
    if started is None or "jupyter" not in started["services"]:
        role = f" (role {started['role']})" if started else ""
        print(f"torchtap-url: JupyterLab does not run in this container{role}", file=sys.stderr)
        return 1
    try:
        with acting_as(started["uid"], started["gid"]):  # the file lies where the user could put a link
            token = paths.read(Path(started["state"]) / paths.TOKEN).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        print(f"torchtap-url: the token cannot be read: {error}", file=sys.stderr)
        return 1
    print(f"http://127.0.0.1:{os.environ.get('JUPYTER_PORT') or 8888}/lab?token={quote(token, safe='')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
