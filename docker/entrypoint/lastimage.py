"""What used a volume last: a small file that start leaves in the home and in the state, and what a change means.

The file in the home is the user's, so nothing is believed of it that could give away what is not the user's already.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from entrypoint import paths

SCHEMA = 1
IN_HOME = Path(".local/share/torchtap/last-image.json")
IN_STATE = Path("last-image.json")
MANIFEST = Path("/opt/torchtap/manifest.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image, and the ids that dev had."""

    variant: str
    torch: str
    python: str
    uid: int
    gid: int
    schema: int = SCHEMA

    @property
    def said(self) -> str:
        return f"{self.variant}, PyTorch {self.torch}, Python {self.python}"


def here(uid: int, gid: int, manifest: Path = MANIFEST) -> Image | None:
    """This image; None where it does not say what it is."""
    try:
        found = json.loads(manifest.read_text())
        return Image(**{key: str(found[key]) for key in ("variant", "torch", "python")}, uid=uid, gid=gid)  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read(path: Path) -> Image | None:
    """What a start has left there; None where there is nothing that can be understood. Act as the user."""
    try:
        found = json.loads(paths.read(path))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    words = {key: found.get(key) for key in ("variant", "torch", "python")}
    numbers = {key: found.get(key) for key in ("uid", "gid", "schema")}
    if not all(isinstance(w, str) and w.isprintable() and 0 < len(w) < 40 for w in words.values()):
        return None
    if not all(type(n) is int and 0 <= n < 2**32 for n in numbers.values()):
        return None
    return Image(**words, **numbers)  # type: ignore[arg-type]


def write(path: Path, image: Image) -> None:
    """Leave it for the next start; in a volume that is full, or closed, the old one stays."""
    if read(path) == image:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        paths.write(path, json.dumps(asdict(image)) + "\n")


def is_newer(before: Image | None) -> bool:
    """Whether a later Torchtap, with a form of this file that is not known here, used the volume."""
    return before is not None and before.schema > SCHEMA


def changes(before: Image | None, now: Image | None) -> tuple[str, tuple[str, ...]] | None:
    """(one line, what it means) for a home that another image used last; None where there is nothing to say.

    >>> cu128 = Image(variant="cu128", torch="2.9.1", python="3.12.3", uid=1000, gid=1000)
    >>> cu130 = Image(variant="cu130", torch="2.14.1", python="3.12.3", uid=1000, gid=1000)
    >>> changes(cu128, cu130)[0]
    'last used by cu128, PyTorch 2.9.1, Python 3.12.3; this is cu130, PyTorch 2.14.1, Python 3.12.3. Nothing is deleted'
    """
    if before is None or now is None or before.said == now.said:
        return None
    more = []
    old, new = (".".join(image.python.split(".")[:2]) for image in (before, now))
    if old != new:
        more.append(
            f"Virtual environments of your own that were made with Python {old} have to be made again"
        )
    if before.torch != now.torch or before.variant != now.variant:
        more.append(
            "C++ and CUDA extensions that you built have to be built again; caches sort themselves by version"
        )
    return f"last used by {before.said}; this is {now.said}. Nothing is deleted", tuple(more)
