"""The build ends unless what is installed is what the table says. Asked of the torch that the tests run with."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torchtap import variants

ROOT = Path(__file__).parents[3]


@pytest.fixture
def manifest(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "variants", variants)  # the build mounts it beside the script
    spec = importlib.util.spec_from_file_location("manifest", ROOT / "docker/build/manifest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def here() -> variants.Variant:
    """The variant that the installed torch is."""
    torch = pytest.importorskip("torch")
    for row in variants.VARIANTS.values():
        if (row.torch, row.cuda) == (torch.__version__.partition("+")[0], torch.version.cuda):
            return row
    pytest.skip(f"torch {torch.__version__} with CUDA {torch.version.cuda} is no variant of the image")


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, variant: str, base: str = "") -> int:
    monkeypatch.setattr(sys, "argv", ["manifest.py", "--variant", variant, "--base", base, "--out", str(out)])
    return int(module.main())


# ---- differences ----
def test_its_examples_are_right(manifest: ModuleType) -> None:
    found = doctest.testmod(manifest)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("expected", "found", "lines"),
    [
        ({"torch": "2.14.1"}, {"torch": "2.14.1"}, []),
        (
            {"torch": "2.14.1"},
            {"torch": "2.13.0"},
            ["torch is '2.13.0', the table of variants says '2.14.1'"],
        ),
        ({"cuda": "13.0"}, {"cuda": None}, ["cuda is None, the table of variants says '13.0'"]),
        ({"nccl": None}, {"nccl": [2, 30, 7]}, []),
        (
            {"arch_list": ["sm_75"]},
            {"arch_list": ["sm_75", "sm_80"]},
            ["arch_list is ['sm_75', 'sm_80'], the table of variants says ['sm_75']"],
        ),
        ({"arch_list": []}, {"arch_list": []}, []),
        (
            {"a": 1, "b": 2},
            {"a": 2, "b": 1},
            ["a is 2, the table of variants says 1", "b is 1, the table of variants says 2"],
        ),
    ],
    ids=[
        "equal",
        "another torch",
        "a CPU build",
        "the table does not know",
        "one architecture more",
        "none on either side",
        "all of them are named",
    ],
)
def test_each_difference_is_one_line(
    manifest: ModuleType, expected: dict[str, Any], found: dict[str, Any], lines: list[str]
) -> None:
    assert manifest.differences(expected, found) == lines


# ---- the installed torch ----
def test_the_installed_torch_passes_as_what_it_is(
    manifest: ModuleType, here: variants.Variant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(manifest, monkeypatch, tmp_path / "manifest.json", here.name) == 0
    said = json.loads((tmp_path / "manifest.json").read_text())
    assert said == {
        "schema": 1,
        "variant": here.name,
        "torch": here.torch,
        "cuda": here.cuda,
        "cudnn": here.cudnn,
        "nccl": list(here.nccl) if here.nccl else said["nccl"],
        "arch_list": list(here.arch_list),
        "driver_floor": ".".join(map(str, here.driver_floor)) if here.driver_floor else None,
        "require_cuda": here.require_cuda,
        "base": here.base,
        "python": ".".join(map(str, sys.version_info[:3])),
        "triton": said["triton"],
        "packages": sysconfig.get_path("purelib"),
    }


def test_a_base_of_the_users_own_is_written_down(
    manifest: ModuleType, here: variants.Variant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(manifest, monkeypatch, tmp_path / "manifest.json", here.name, base="debian:12") == 0
    assert json.loads((tmp_path / "manifest.json").read_text())["base"] == "debian:12"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch", "2.99.0"),
        ("cuda", "99.0"),
        ("cudnn", 12345),
        ("nccl", (9, 9, 9)),
        ("arch_list", ("sm_10",)),
    ],
)
def test_a_table_that_says_otherwise_ends_the_build(
    manifest: ModuleType,
    here: variants.Variant,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: object,
) -> None:
    doctored = dataclasses.replace(here, **{field: value})  # type: ignore[arg-type]
    monkeypatch.setitem(variants.VARIANTS, here.name, doctored)
    assert run(manifest, monkeypatch, tmp_path / "manifest.json", here.name) == 1
    out, error = capsys.readouterr()
    head, line = error.splitlines()
    assert head == f"torchtap: this is not variant {here.name}:"
    shown = list(value) if isinstance(value, tuple) else value
    assert line.startswith(f"  {field} is ")
    assert line.endswith(f", the table of variants says {shown!r}")
    assert out == ""
    assert not (tmp_path / "manifest.json").exists()


def test_a_cpu_variant_with_a_cuda_build_ends_the_build(
    manifest: ModuleType,
    here: variants.Variant,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """pip may well take the CUDA build from another index: the name must not hide it."""
    if here.cuda is None:
        pytest.skip("the installed torch is a CPU build")
    assert run(manifest, monkeypatch, tmp_path / "manifest.json", "cpu") == 1
    assert f"  cuda is {here.cuda!r}, but variant cpu is a CPU build" in capsys.readouterr().err


def test_an_unknown_variant_names_the_known_ones(
    manifest: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(variants.UnknownVariantError, match="one of cu130, cu128, cu126, cpu"):
        run(manifest, monkeypatch, tmp_path / "manifest.json", "cu999")
