"""The scan of an image's layers, on a folder. On real layers: tests/image/test_hardening.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.image.scan import scan


@pytest.mark.parametrize(
    "name",
    [
        "1/etc/ssh/ssh_host_rsa_key",
        "1/root/.ssh/id_ed25519",
        "2/src/.git/config",
        "2/src/.git",
        "1/root/.cache/pip/http/a",
        "1/home/dev/.cache/uv/b",
        "0/var/lib/apt/lists/deb_main_binary-amd64_Packages.lz4",
        "3/var/lib/torchtap/jupyter-token",
        "0/root/.netrc",
    ],
)
def test_a_file_that_must_not_be_there_is_found_by_its_name(tmp_path: Path, name: str) -> None:
    for each in (name, "0/etc/passwd"):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("x")
    found, seen = scan(tmp_path)
    assert seen == 2
    assert [path for path, _ in found] == [name]


def test_a_key_is_found_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n" + "A" * 70 + "\n")
    assert scan(tmp_path) == ([("notes", "a private key")], 1)
