"""Examples in the docstrings of start-up and of the build: pytest itself looks for them only in src/ and tests/."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "docker/entrypoint"
MODULES = [importlib.import_module(f"entrypoint.{path.stem}") for path in sorted(FOLDER.glob("[!_]*.py"))]
WITH_EXAMPLES = [module for module in MODULES if ">>>" in Path(module.__file__ or "").read_text()]


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=lambda module: module.__name__)
def test_examples_are_right(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_start_up_needs_nothing_but_the_standard_library() -> None:
    """The distribution's python3 runs it, with -I and -S."""
    names = ", ".join(module.__name__ for module in MODULES)
    code = f"import sys; sys.path.insert(0, {str(FOLDER.parent)!r}); import {names}"
    subprocess.run([sys.executable, "-IS", "-c", code], check=True)
