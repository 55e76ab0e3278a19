"""What the build prepares for packages of the user's own."""

from __future__ import annotations

import doctest
import importlib.util
import json
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
MANIFEST = {
    "variant": "cu130",
    "torch": "2.14.1",
    "cuda": "13.0",
    "cudnn": 92400,
    "nccl": [2, 30, 7],
    "arch_list": [],
}


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("overlay_build", ROOT / "docker/build/overlay.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(packages: Path, name: str, *requires: str, entry_points: bool = False) -> None:
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {each}" for each in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    if entry_points:
        (info / "entry_points.txt").write_text("")


def test_its_examples_are_right(build: ModuleType) -> None:
    found = doctest.testmod(build)
    assert found.attempted > 0
    assert found.failed == 0


def test_what_belongs_to_torch_is_pinned_and_nothing_else(build: ModuleType, tmp_path: Path) -> None:
    """Not nvidia-ml-py, which nvitop brings, and not what is pure Python."""
    install(
        tmp_path,
        "torch",
        "nvidia-cudnn-cu13==9; sys_platform == 'linux'",
        "cuda-toolkit[cudart]==13",
        "sympy",
        "triton",
    )
    for name in ("nvidia_cudnn_cu13", "cuda_toolkit", "sympy", "triton", "nvidia_ml_py"):
        install(tmp_path, name)
    install(tmp_path, "nvitop", "nvidia-ml-py", entry_points=True)
    base = build.described(list(distributions(path=[str(tmp_path)])), MANIFEST, tmp_path)
    assert set(base["pinned"]) == {"torch", "nvidia-cudnn-cu13", "cuda-toolkit", "triton"}
    assert base["stubs"]["nvitop-1.0.dist-info"] is True
    assert base["stubs"]["nvidia_ml_py-1.0.dist-info"] is False
    json.dumps(base)


@pytest.mark.parametrize("field", ["variant", "torch", "cuda", "cudnn", "nccl", "arch_list"])
def test_another_torch_or_cuda_is_another_overlay(build: ModuleType, field: str) -> None:
    assert build.key({**MANIFEST, field: "other"}, "3.12") != build.key(MANIFEST, "3.12")


def test_another_python_is_another_overlay_and_a_newer_build_is_not(build: ModuleType) -> None:
    assert build.key(MANIFEST, "3.13") != build.key(MANIFEST, "3.12")
    assert build.key({**MANIFEST, "base": "ubuntu@sha256:1", "python": "3.12.9"}, "3.12") == build.key(
        MANIFEST, "3.12"
    )


def test_programs_are_run_by_the_users_python_except_pip_and_torchtap(
    build: ModuleType, tmp_path: Path
) -> None:
    for name in ("pytest", "pip", "pip3.12", "torchtap"):
        (tmp_path / name).write_text(f"#!{tmp_path}/python\nimport x\n")
    (tmp_path / "uv").write_bytes(b"\x7fELF")
    (tmp_path / "activate").write_text("# source me\n")
    (tmp_path / "python").symlink_to("/usr/bin/python3")
    assert build.programs(tmp_path, "/opt/env-python") == {"pytest": b"#!/opt/env-python\nimport x\n"}


def test_every_spelling_of_pip_and_python_is_the_images_own(build: ModuleType, tmp_path: Path) -> None:
    """Root's `pip3.12 install` must not reach the base because only `pip` has a wrapper."""
    base, own = tmp_path / "base", tmp_path / "own"
    for folder in (base, own):
        folder.mkdir()
    for name in ("pip", "pip3", "pip3.12", "python", "python3.12", "pip-audit", "uv", "pythonize"):
        (base / name).touch()
    for name in ("pip", "env-python", "python"):
        (own / name).touch()
    assert build.spell(base, own) == ["pip3", "pip3.12", "python3.12"]
    links = {path.name: str(path.readlink()) for path in own.iterdir() if path.is_symlink()}
    assert links == {"pip3": "pip", "pip3.12": "pip", "python3.12": "env-python"}
    assert build.spell(base, own) == []
