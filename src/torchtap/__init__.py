"""Torchtap: see what your network is doing, and prove that the GPU works.

Nothing is imported until it is used: `import torchtap` costs a few milliseconds and imports neither torch nor rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap import hooks, modes, selftest, variants

__version__ = "0.1.0"
__all__ = ["__version__", "hooks", "modes", "selftest", "variants"]
# Public names that are loaded at first use: submodules here, later also functions (name -> where it lives).
_SUBMODULES = frozenset({"hooks", "modes", "selftest", "variants"})


def __getattr__(name: str) -> object:
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'torchtap' has no attribute {name!r}")
    return import_module(f"torchtap.{name}")  # the import system stores it: asked once


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
