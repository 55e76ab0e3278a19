"""What tests of start-up share: the image's folders in tmp_path, identities to act as, and a place for processes."""

from __future__ import annotations

import os
import signal
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
    for name in (
        "workspace",
        "home/dev",
        "var/lib/torchtap",
        "run/torchtap",
        "tmp",
        "etc/skel",
        "bin",
        "notebooks",
        "usr/local/share/ca-certificates",
        "etc/ssl/certs",
    ):
        (root / name).mkdir(parents=True)
    for name, path in places(root).items():
        monkeypatch.setattr(paths, name, path)
    (root / "run/torchtap").chmod(0o1777)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:/bin/false\n"
    )
    (root / "etc/group").write_text("root:x:0:\nwww-data:x:33:\n")
    (root / "etc/skel/.bashrc").write_text("# bashrc\n")
    (root / "etc/skel/.profile").write_text("# profile\n")
    return root


def places(root: Path) -> dict[str, Path | tuple[Path, ...]]:
    """The constants of `entrypoint.paths` for an image that lies in `root`. None may stay as it is: /etc is real."""
    return {
        "WORKSPACE": root / "workspace",
        "HOME": root / "home/dev",
        "STATE": root / "var/lib/torchtap",
        "RUN_CANDIDATES": (root / "run/torchtap", root / "tmp/torchtap"),
        "ACCOUNTS": root / "etc",
        "SKELETON": root / "etc/skel",
        "SSHD_EMPTY": root / "run/sshd",
        "SCREENS": root / "run/screen",
        "BIN": root / "bin",
        "OVERLAY": root / "overlay",
        "NOTEBOOKS": root / "notebooks",
        "CERTIFICATES": root / "usr/local/share/ca-certificates",
        "CA_SECRET": root / "run/secrets/ca_bundle",
        "CA_SYSTEM": root / "etc/ssl/certs/ca-certificates.crt",
    }


def ignored_by_python(status: str) -> list[signal.Signals]:
    """Of the signals that Python ignores for itself, those that the line SigIgn of /proc/PID/status names.

    Others may have been ignored already by what started the tests.
    """
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if mask >> (number - 1) & 1]
