"""The examples in the host side's docstrings hold: pytest collects those of src/ only."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import host

MODULES = sorted(each.name for each in pkgutil.iter_modules(host.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"host.{name}")).failed == 0
