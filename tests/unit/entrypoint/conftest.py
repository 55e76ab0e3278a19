"""What tests of start-up share: the image's folders in tmp_path, identities to act as, and a place for processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrypoint import paths

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files and processes to others")
# Ids that belong to nobody on a usual machine.
UID, GID = 23_456, 23_457
OTHER = 23_458


@pytest.fixture(autouse=True)
def _nothing_changes_identity_or_umask() -> Iterator[None]:
    """Code that acts as another user must be itself again, whatever happened meanwhile."""
    before = os.getresuid(), os.getresgid(), os.getgroups(), os.umask(0o022)
    yield
    after = os.getresuid(), os.getresgid(), os.getgroups(), os.umask(before[3])
    assert after == (*before[:3], 0o022)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary directory that other users can enter. pytest closes tmp_path to them at every start."""
    with tempfile.TemporaryDirectory(prefix="entrypoint-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def image(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root directory with the folders that the image has; every path of start-up leads into it."""
    root = open_path / "image"
    for name in ("workspace", "home/dev", "var/lib/torchtap", "run/torchtap", "tmp", "etc/skel"):
        (root / name).mkdir(parents=True)
    for name, place in {"WORKSPACE": "workspace", "HOME": "home/dev", "STATE": "var/lib/torchtap"}.items():
        monkeypatch.setattr(paths, name, root / place)
    monkeypatch.setattr(paths, "RUN_CANDIDATES", (root / "run/torchtap", root / "tmp/torchtap"))
    (root / "run/torchtap").chmod(0o1777)
    (root / "tmp").chmod(0o1777)
    return root
