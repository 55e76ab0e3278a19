"""Loads the compiled kernel where there is one that fits, and says why where there is none."""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from torchtap.monitor.stats import build
from torchtap.monitor.stats.rows import ROW

# The numbers of kernel.c.
ABI = 1
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}

# (address of the values, how many, type, how often each stands there, zeros, address of the row)
Measure = Callable[[int, int, int, int, bool, int], None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The compiled kernel: one function, called in two ways."""

    holding: Measure  # keeps the GIL: cheaper where the work takes less than giving it back does
    releasing: Measure
    level: str  # the instructions that it uses here
    set_level: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Found:
    """What there is: the kernel, or None, and why, in one sentence."""

    kernel: Kernel | None
    why: str


class KernelWarning(RuntimeWarning):
    """A compiled kernel is there and cannot be used: PyTorch's operators do, some three times slower."""


@lru_cache(maxsize=1)
def found() -> Found:
    """The kernel of this process, looked for once. Warns once, and only if one is there that is broken."""
    return find(build.SOURCE.parent)


def has_kernel() -> bool:
    """Whether CPU tensors are measured by the compiled kernel."""
    return found().kernel is not None


def find(folder: Path) -> Found:
    """The kernel in `folder`. A warning where a library of this source is there and cannot be used."""
    library = folder / build.library_name()
    if not library.exists():
        older = [path.name for path in folder.glob("_kernel.*.so")]
        why = f"{older[0]} is of another source or processor" if older else "it was not compiled"
        return Found(None, f"{why}; to compile it: python -m torchtap.monitor.stats --build")
    try:
        if not build.existing(folder):
            raise OSError("it is damaged")
        kernel = load(library)
    except (OSError, AttributeError) as error:
        why = f"{library} cannot be used: {error}"
        again = "to compile it again: python -m torchtap.monitor.stats --build"
        warnings.warn(f"{why}; {again}", KernelWarning, stacklevel=2)
        return Found(None, f"{why}; {again}")
    return Found(kernel, f"{library.name}, {kernel.level}")


def load(library: Path) -> Kernel:
    """The kernel in this file. Raises OSError or AttributeError where it cannot be loaded or measures wrongly."""
    holding, releasing = ctypes.PyDLL(str(library)), ctypes.CDLL(str(library))
    if (abi := holding.torchtap_abi()) != ABI:
        raise OSError(f"its interface is {abi}, not {ABI}")
    holding.torchtap_level(-1)
    name = holding.torchtap_level_name
    name.restype = ctypes.c_char_p
    kernel = Kernel(_typed(holding), _typed(releasing), name().decode(), holding.torchtap_level)
    _try(kernel)
    return kernel


def _typed(library: ctypes.CDLL) -> Measure:
    measure = library.torchtap_row
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    measure.argtypes = (pointer, int64, ctypes.c_int, int64, ctypes.c_int, pointer)
    measure.restype = None
    return measure


def _try(kernel: Kernel) -> None:
    values = (ctypes.c_float * 5)(-2.0, 0.0, 3.0, math.inf, math.nan)
    row = (ctypes.c_double * ROW)()
    kernel.holding(ctypes.addressof(values), 5, TYPES[torch.float32], 1, True, ctypes.addressof(row))
    if list(row) != [-2.0, 3.0, 1.0, 13.0, 1.0, 2.0, 5.0, 0.0]:
        raise OSError(f"it measures wrongly: {list(row)}")
