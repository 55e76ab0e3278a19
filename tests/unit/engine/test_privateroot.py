"""The private root: whole or not there, and up to date with the machine."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.engine import privateroot
from tests.engine.privateroot import RootError


def fake(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of fakes: mmdebstrap makes a folder (its last argument) with one file."""
    folder = tmp_path / "bin"
    fake(folder, "mmdebstrap", 'for last; do :; done; mkdir -p "$last" && echo made > "$last/file"')
    for name in ("gcc", "unshare"):
        fake(folder, name, "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def nothing(text: str) -> None:
    pass


def test_a_root_is_made_once(tmp_path: Path, tools: Path) -> None:
    root = tmp_path / "root"
    privateroot.build(root, nothing)
    (root / "file").write_text("kept")
    privateroot.build(root, nothing)
    assert (root / "file").read_text() == "kept"


def test_a_root_of_another_recipe_is_made_anew(tmp_path: Path, tools: Path) -> None:
    root = tmp_path / "root"
    privateroot.build(root, nothing)
    (root / "file").write_text("old")
    (root / privateroot.MARK).write_text("another")
    privateroot.build(root, nothing)
    assert (root / "file").read_text() == "made\n"


def test_a_failed_build_is_no_root_and_says_why(tmp_path: Path, tools: Path) -> None:
    fake(tools, "mmdebstrap", 'for last; do :; done; mkdir -p "$last"; echo "E: no network" >&2; exit 25')
    with pytest.raises(RootError, match=r"mmdebstrap trixie failed \(exit status 25\):\n  E: no network"):
        privateroot.build(tmp_path / "root", nothing)
    assert not privateroot.is_current(tmp_path / "root")
    fake(tools, "mmdebstrap", 'for last; do :; done; mkdir "$last"')
    privateroot.build(tmp_path / "root", nothing)  # mkdir without -p: the leftover is gone
    assert privateroot.is_current(tmp_path / "root")


def test_missing_tools_without_apt_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(privateroot, "SYSTEM_PATH", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RootError, match="gcc, mmdebstrap, util-linux not installed and there is no apt-get"):
        privateroot.install_host_tools(nothing)


def test_a_failing_apt_get_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(tmp_path / "bin", "apt-get", 'echo "E: cannot lock" >&2; exit 100')
    monkeypatch.setattr(privateroot, "SYSTEM_PATH", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(RootError, match="apt-get -qq update failed: E: cannot lock"):
        privateroot.install_host_tools(nothing)


def test_certificates_follow_the_machine_and_links_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, outside, root = tmp_path / "bundle.pem", tmp_path / "outside", tmp_path / "root"
    bundle.write_text("authorities")
    outside.write_text("untouched")
    inside = root / "etc/ssl/certs/ca-certificates.crt"
    inside.parent.mkdir(parents=True)
    inside.symlink_to(outside)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    privateroot.refresh(root)
    assert inside.read_text() == "authorities"
    assert outside.read_text() == "untouched"
    assert stat.S_ISREG(inside.lstat().st_mode)
    assert (root / "etc/resolv.conf").read_text() == Path("/etc/resolv.conf").read_text()
