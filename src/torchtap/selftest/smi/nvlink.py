"""`nvidia-smi nvlink -s`: which links of each GPU are up."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GPU = re.compile(r"GPU (\d+): (.+?) \(UUID: \S+\)\s*", re.ASCII)
_UP = re.compile(r"\s+Link (\d+): \d+(?:\.\d+)? GB/s\s*", re.ASCII)
_DOWN = re.compile(r"\s+Link (\d+): <?inactive>?\s*", re.ASCII | re.IGNORECASE)
# Said in place of the links, where none is up or the board has none.
_NONE = re.compile(
    r"\s*(?:NVML: )?Unable to retrieve NVLink information as all links are inActive\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Links:
    """One GPU's links: how many are up, and the numbers of those that are down."""

    index: int
    name: str
    up: int = 0
    down: tuple[int, ...] = ()


def read_nvlink(text: str) -> tuple[tuple[Links, ...], tuple[str, ...]]:
    """Links by GPU, and the lines that are neither a GPU nor a link.

    >>> read_nvlink("GPU 0: NVIDIA H200 (UUID: GPU-0)\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: <inactive>\\n")
    ((Links(index=0, name='NVIDIA H200', up=1, down=(1,)),), ())
    """
    gpus: list[Links] = []
    strays: list[str] = []
    for line in text.splitlines():
        gpu, down = _GPU.fullmatch(line), _DOWN.fullmatch(line)
        if gpu:
            gpus.append(Links(int(gpu[1]), gpu[2]))
            continue
        last = gpus[-1] if gpus else None
        if last and _UP.fullmatch(line):
            gpus[-1] = Links(last.index, last.name, last.up + 1, last.down)
        elif last and down:
            gpus[-1] = Links(last.index, last.name, last.up, (*last.down, int(down[1])))
        elif line.strip() and not _NONE.fullmatch(line):
            strays.append(line)
    return tuple(gpus), tuple(strays)
