"""Digests in the Dockerfile: all of them, or the file as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from host import pin
from tests.unit.host.checkout import REPOSITORY, Checkout
from torchtap.variants import VARIANTS

DIGEST = "sha256:" + "0123456789abcdef" * 4
OTHER = "sha256:" + "f" * 64
ANSWERS = {"when": "^buildx imagetools inspect --format {{.Manifest.Digest}} ", "out": DIGEST + "\n"}


@pytest.fixture
def dockerfile(checkout: Checkout) -> Path:
    file = checkout.root / "Dockerfile"
    file.write_text((REPOSITORY / "Dockerfile").read_text())
    return file


def test_the_bases_are_those_of_the_table() -> None:
    found = pin.bases((REPOSITORY / "Dockerfile").read_text())
    assert list(found) == [row.base for row in VARIANTS.values()]


def test_pin_writes_every_base_and_nothing_else(checkout: Checkout, dockerfile: Path) -> None:
    before = dockerfile.read_text()
    docker = checkout.fake("docker").answer(ANSWERS)
    done = checkout.run("pin")
    assert done.returncode == 0, done.stderr
    after = dockerfile.read_text()
    changed = [new for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
    assert changed == [f"FROM {row.base}@{DIGEST} AS variant-{row.name}" for row in VARIANTS.values()]
    assert len(docker.calls) == len(VARIANTS)
    assert not list(checkout.root.glob("*.tmp"))


def test_pinning_twice_changes_nothing_and_unpin_takes_it_back(checkout: Checkout, dockerfile: Path) -> None:
    before = dockerfile.read_text()
    checkout.fake("docker").answer(ANSWERS)
    assert checkout.run("pin").returncode == 0
    pinned = dockerfile.read_text()
    again = checkout.run("pin")
    assert dockerfile.read_text() == pinned
    assert again.stdout.count("(as before)") == len(VARIANTS)
    assert checkout.run("pin", "--unpin").returncode == 0
    assert dockerfile.read_text() == before


def test_a_digest_that_moved_is_found_by_check_and_replaced_by_pin(
    checkout: Checkout, dockerfile: Path
) -> None:
    docker = checkout.fake("docker").answer(ANSWERS)
    assert checkout.run("pin", "--check").returncode == 1  # not pinned at all
    checkout.run("pin")
    assert checkout.run("pin", "--check").returncode == 0
    docker.answer({**ANSWERS, "out": OTHER + "\n"})
    pinned = dockerfile.read_text()
    done = checkout.run("pin", "--check")
    assert done.returncode == 1
    assert OTHER in done.stdout
    assert dockerfile.read_text() == pinned
    assert checkout.run("pin").returncode == 0
    assert DIGEST not in dockerfile.read_text()


@pytest.mark.parametrize(
    "row",
    [
        {"when": "", "rc": 1, "err": "ERROR: failed to do request: no such host\n"},
        {"when": "", "out": "no digest\n"},
        {"when": "", "out": ""},
    ],
    ids=["no registry", "nonsense", "nothing"],
)
def test_without_a_registry_there_is_one_error_and_the_file_is_as_it_was(
    checkout: Checkout, dockerfile: Path, row: dict[str, object]
) -> None:
    before = dockerfile.read_bytes()
    checkout.fake("docker").answer(row)
    done = checkout.run("pin")
    assert done.returncode == 1
    assert done.stderr.startswith(f"pin: the digest of {VARIANTS['cu130'].base} could not be had: ")
    assert "its tags work without digests" in done.stderr
    assert done.stdout == ""
    assert dockerfile.read_bytes() == before


def test_a_registry_that_is_lost_half_way_changes_nothing(checkout: Checkout, dockerfile: Path) -> None:
    before = dockerfile.read_bytes()
    checkout.fake("docker").answer({"when": "ubuntu:24.04$", "rc": 1, "err": "EOF\n"}, ANSWERS)
    assert checkout.run("pin").returncode == 1
    assert dockerfile.read_bytes() == before


def test_no_docker_is_said(checkout: Checkout, dockerfile: Path) -> None:
    done = checkout.run("pin")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "pin: docker is not installed: it asks the registry for the digests",
    )


def test_arguments_that_make_no_sense(checkout: Checkout, dockerfile: Path) -> None:
    assert checkout.run("pin", "--check", "--unpin").returncode == 2
    assert checkout.run("pin", "now").returncode == 2
