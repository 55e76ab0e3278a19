"""Free disk space, asked before anything large is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from host.show import Problem, gigabytes

# Measured: the image is 6.1 GB unpacked, its wheels 3 GB; during the build a layer lies there twice.
IMAGE_BYTES = 15_000_000_000
# Measured: 5.6 GB installed; pip keeps the wheels (3 GB) in its cache beside them.
CUDA_VENV_BYTES = 9_000_000_000
CPU_VENV_BYTES = 3_000_000_000


def free_bytes(path: Path) -> int | None:
    """Bytes free for us where `path` is, or is going to be; None where that cannot be asked."""
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def need(path: Path, size_bytes: int, what: str, *do: str) -> None:
    """Raise `Problem` unless `size_bytes` are free at `path`. Unknown passes: the step itself will say."""
    free = free_bytes(path)
    if free is not None and free < size_bytes:
        raise Problem(
            f"too little disk: {what} needs {gigabytes(size_bytes)}, {path} has {gigabytes(free)} free", *do
        )
