"""The built image: what it says of itself is true, and nothing is in it that must not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine import base
from tests.engine.engine import Engine
from torchtap.variants import variant

from .conftest import ROOT, VARIANT


@pytest.fixture(scope="module")
def config(engine: Engine, image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(engine.docker("image", "inspect", image).stdout)[0]["Config"]
    return found


@pytest.fixture(scope="module")
def manifest(engine: Engine, image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        engine.docker("run", "--rm", "--entrypoint", "cat", image, "/opt/torchtap/manifest.json").stdout
    )
    return found


@pytest.mark.every_variant
def test_manifest_is_the_row_of_the_table(manifest: dict[str, Any]) -> None:
    row = variant(VARIANT)
    assert (manifest["variant"], manifest["torch"], manifest["cuda"]) == (row.name, row.torch, row.cuda)
    assert manifest["cudnn"] == row.cudnn
    assert tuple(manifest["nccl"]) == row.nccl
    assert tuple(manifest["arch_list"]) == row.arch_list


@pytest.mark.every_variant
def test_labels_equal_the_manifest(config: dict[str, Any], manifest: dict[str, Any], base_image: str) -> None:
    labels = config["Labels"]
    said = {
        name.removeprefix("torchtap."): value
        for name, value in labels.items()
        if name.startswith("torchtap.")
    }
    said.pop("test-base.recipe", None)
    assert said == {
        "variant": manifest["variant"],
        "torch": manifest["torch"],
        "cuda": manifest["cuda"],
        "cudnn": str(manifest["cudnn"]),
        "nccl": ".".join(map(str, manifest["nccl"])),
        "arch_list": " ".join(manifest["arch_list"]),
        "driver_floor": manifest["driver_floor"],
    }
    assert (
        labels["org.opencontainers.image.base.name"]
        == manifest["base"]
        == (base_image or variant(VARIANT).base)
    )


@pytest.mark.every_variant
def test_c20_floor_is_that_of_the_cuda_major_not_of_the_base(config: dict[str, Any]) -> None:
    environment = dict(item.split("=", 1) for item in config["Env"])
    assert environment["NVIDIA_REQUIRE_CUDA"] == variant(VARIANT).require_cuda
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


@pytest.mark.every_variant
def test_c21_no_compat_or_stub_directory_is_on_the_loader_path(engine: Engine, image: str) -> None:
    script = 'echo "$LD_LIBRARY_PATH"; cat /etc/ld.so.conf.d/*.conf; ldconfig -p'
    said = engine.docker("run", "--rm", "--entrypoint", "sh", image, "-c", script).stdout
    assert "/compat" not in said
    assert "/stubs" not in said
    assert "libcudnn" not in said, "cuDNN comes with torch's wheel alone"


def test_c18_no_library_of_the_driver_is_in_the_image(engine: Engine, image: str) -> None:
    """images.md 18: a libcuda that an image brings along is another one than the host's kernel module."""
    found = engine.docker(
        "run", "--rm", "--entrypoint", "find", image, "/", "-xdev", "(", "-name", "libcuda.so*", "-o",
        "-name", "libnvidia-ml.so*", "-o", "-name", "libnvidia-ptxjitcompiler.so*", ")",
    ).stdout.split()  # fmt: skip
    assert found == []


@pytest.mark.every_variant
def test_torch_in_the_image_is_the_pinned_one(engine: Engine, image: str) -> None:
    code = "import torch; print(torch.__version__.split('+')[0], torch.version.cuda, torch.backends.cudnn.version())"
    said = engine.docker("run", "--rm", "--entrypoint", "python", image, "-c", code).stdout.split()
    row = variant(VARIANT)
    assert said == [row.torch, str(row.cuda), str(row.cudnn)]


@pytest.mark.every_variant
def test_torch_compile_finds_compiler_and_headers(engine: Engine, image: str) -> None:
    code = "import torch; print(torch.compile(lambda x: torch.sin(x) + 1)(torch.zeros(8)).sum().item())"
    assert engine.docker("run", "--rm", image, "python", "-c", code).stdout.strip() == "8.0"


@pytest.mark.every_variant
def test_static_libraries_of_the_profiler_are_left_out(engine: Engine, image: str) -> None:
    said = engine.docker(
        "run", "--rm", "--entrypoint", "find", image, "/opt/torchtap/venv", "-name", "*.a", "-size", "+8M"
    )
    assert said.stdout == ""


def test_jupyterlab_starts_without_the_grammar_of_iris(engine: Engine, image: str) -> None:
    """jsonschema would load it at every start (docker/build/install.sh), and the rest does not miss it."""
    code = "import sys, jupyterlab.labapp; print('lark' in sys.modules, 'jsonschema' in sys.modules)"
    python = "/opt/torchtap/venv/bin/python"
    words = f'{python} -c "{code}" && {python} -m pip check'
    said = engine.docker("run", "--rm", "--entrypoint", "sh", image, "-c", words).stdout.splitlines()
    assert said == ["False True", "No broken requirements found."]


def test_no_group_or_world_writable_file_in_the_environment(engine: Engine, image: str) -> None:
    said = engine.docker(
        "run",
        "--rm",
        "--entrypoint",
        "find",
        image,
        "/opt/torchtap",
        "/etc/torchtap",
        "-perm",
        "/022",
        "!",
        "-type",
        "l",
    )
    assert said.stdout == ""


def test_source_only_change_rebuilds_only_torchtaps_own_layer(
    build: Callable[..., Any], engine: Engine, image: str, tmp_path: Path
) -> None:
    marker = ROOT / "src" / "torchtap" / "_rebuild_probe.py"
    marker.write_text(f"# {tmp_path}\n")
    try:
        build("-t", "torchtap-test:rebuild")
    finally:
        marker.unlink()

    def layers(name: str) -> list[str]:
        found: list[str] = json.loads(engine.docker("image", "inspect", name).stdout)[0]["RootFS"]["Layers"]
        return found

    before, after = layers(image), layers("torchtap-test:rebuild")
    engine.docker("image", "rm", "torchtap-test:rebuild")
    changed = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    # torchtap's own layer, and WORKDIR's empty one after it.
    assert changed, "the change did not reach the image"
    assert min(changed) >= len(before) - 2, f"layers {changed} of {len(before)} changed"


def test_unknown_variant_is_named(build: Callable[..., Any]) -> None:
    failed = build("--target", "os", VARIANT="cu999", BASE_IMAGE="", check=False)
    assert failed.returncode != 0
    assert "variant-cu999" in failed.stderr


def test_unreachable_torch_index_says_so_and_what_else_works(build: Callable[..., Any]) -> None:
    """A user behind a firewall gets the reason, not a resolver's riddle."""
    failed = build(
        "--target", "environment", VARIANT="cu126", TORCH_INDEX="http://127.0.0.1:9/whl/cu126", check=False
    )
    assert failed.returncode != 0
    assert (
        "torchtap: TORCH_INDEX http://127.0.0.1:9/whl/cu126 cannot be reached from this build"
        in failed.stderr
    )
    assert "VARIANT=cu130 or cu128" in failed.stderr


def test_base_image_without_python_or_apt_is_refused(build: Callable[..., Any], simulated: Engine) -> None:
    name = base.ensure_base(simulated, base.NO_PYTHON)
    failed = build("--target", "os", BASE_IMAGE=name, check=False)
    assert failed.returncode != 0
    assert (
        "torchtap: BASE_IMAGE has no python3 of 3.10 or newer, and no apt-get to install one" in failed.stderr
    )
