"""Which files this process has loaded."""

from __future__ import annotations

import os


def mapped(name: str) -> list[str]:
    """Files of this process whose name begins so, by their real paths."""
    found = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and os.path.basename(path).startswith(name):  # noqa: PTH119
                found[path] = True
    return sorted(found)
