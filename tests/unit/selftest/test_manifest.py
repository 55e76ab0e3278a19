"""The image's manifest, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchtap.selftest.manifest import read_manifest, variant_like
from torchtap.variants import VARIANTS

GOOD = {
    "schema": 1,
    "variant": "cu130",
    "torch": "2.14.1",
    "cuda": "13.0",
    "cudnn": 92400,
    "nccl": [2, 30, 7],
    "arch_list": ["sm_75", "sm_80"],
    "driver_floor": "580.65.6",
    "require_cuda": "cuda>=13.0",
    "base": "nvidia/cuda:13.0.2-base-ubuntu24.04",
    "python": "3.12",
}


def test_the_images_manifest_is_read(tmp_path: Path):
    """Where it lies in the image, without a variable."""
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(GOOD))
    manifest = read_manifest({}, file)
    assert manifest is not None
    assert (manifest.error, manifest.torch, manifest.cudnn) == ("", "2.14.1", 92400)
    assert manifest.driver_floor == (580, 65, 6)


def test_no_manifest_outside_the_image(tmp_path: Path):
    """None, and no error."""
    assert read_manifest({}, tmp_path / "none.json") is None


def test_a_cpu_manifest_has_no_cuda(tmp_path: Path):
    """Null where there is nothing."""
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps({**GOOD, "variant": "cpu", "cuda": None, "cudnn": None, "driver_floor": None}))
    manifest = read_manifest({"TORCHTAP_MANIFEST": str(file)})
    assert manifest is not None
    assert (manifest.error, manifest.cuda, manifest.driver_floor) == ("", None, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe", "codec can't decode"),
        (b"[]", "not a manifest of schema 1"),
        (json.dumps({**GOOD, "schema": 2}).encode(), "not a manifest of schema 1"),
        (json.dumps({**GOOD, "cudnn": "9.24"}).encode(), "cudnn is '9.24'"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "torch"}).encode(), "torch is None"),
        (json.dumps({**GOOD, "driver_floor": "new"}).encode(), "invalid literal"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_broken_manifest_says_what_is_wrong(tmp_path: Path, content: bytes, said: str):
    """And nothing else of it is used."""
    file = tmp_path / "manifest.json"
    file.write_bytes(content)
    manifest = read_manifest({"TORCHTAP_MANIFEST": str(file)})
    assert manifest is not None
    assert manifest.error
    assert said in manifest.error
    assert manifest.torch == ""


def test_a_named_manifest_that_is_missing_is_an_error(tmp_path: Path):
    """Somebody asked for it."""
    manifest = read_manifest({"TORCHTAP_MANIFEST": str(tmp_path / "gone.json")})
    assert manifest is not None
    assert manifest.error == "No such file or directory"


@pytest.mark.parametrize("name", ["cu130", "cu128", "cu126", "cpu"])
def test_a_wheel_is_known_by_torch_and_cuda(name: str):
    """Each variant's own torch finds it."""
    variant = VARIANTS[name]
    assert variant_like(f"{variant.torch}+local", variant.cuda) is variant


def test_another_torch_is_like_no_variant():
    """Nothing to compare with then."""
    assert variant_like("2.12.0", "13.0") is None
