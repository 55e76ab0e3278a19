"""Torchtap: see what your network is doing, and prove that the GPU works.

Nothing is imported until it is used: `import torchtap` costs a few milliseconds and imports neither torch nor rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap import diagnose, hooks, modes, monitor, selftest, variants
    from torchtap.monitor import find_nan, unwatch, watch

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "diagnose",
    "find_nan",
    "hooks",
    "modes",
    "monitor",
    "selftest",
    "unwatch",
    "variants",
    "watch",
]
# Public names that are loaded at first use: submodules, and what a user's first line needs (name -> where it lives).
_SUBMODULES = frozenset({"diagnose", "hooks", "modes", "monitor", "selftest", "variants"})
_FUNCTIONS = {"find_nan": "monitor", "unwatch": "monitor", "watch": "monitor"}


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"torchtap.{name}")  # the import system stores it: asked once
    if name in _FUNCTIONS:
        value = globals()[name] = getattr(import_module(f"torchtap.{_FUNCTIONS[name]}"), name)
        return value
    raise AttributeError(f"module 'torchtap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_FUNCTIONS})
