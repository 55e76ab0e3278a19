"""What several modules of these tests need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.simulate import stubs


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub libraries, built once; only read."""
    folder = tmp_path_factory.mktemp("lib")
    stubs.build(folder)
    return folder
