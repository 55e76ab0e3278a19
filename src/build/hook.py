"""Compiles the C kernel into every wheel, and into the source tree for an editable install. Run by hatchling.

Without a compiler the wheel is pure Python and the statistics are made by PyTorch's operators: the build says so and
goes on. In a folder that pytest does not collect: hatchling need not be where the tests run.
"""

from __future__ import annotations

import importlib.util
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("torchtap", "monitor", "stats")


class KernelHook(BuildHookInterface):  # type: ignore[type-arg] # of a configuration that has no options
    """Named in pyproject.toml: [tool.hatch.build.hooks.custom]."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source = Path(self.root, "src") / PACKAGE
        build = _load(source / "build.py")
        folder = source
        if version != "editable":
            self.folder = tempfile.TemporaryDirectory(prefix="torchtap-kernel-")
            folder = Path(self.folder.name)
        try:
            library = build.existing() or build.build(folder)
        except build.BuildError as error:
            self.app.display_warning(f"torchtap: no C kernel for the statistics: {error}")
            return
        self.app.display_info(f"torchtap: with {library.name}")
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"  # no Python.h in it: one wheel for every Python 3
            build_data["force_include"][str(library)] = str(PACKAGE / library.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if folder := getattr(self, "folder", None):
            folder.cleanup()


def _load(path: Path) -> ModuleType:
    """By its path: to import it by name would import torch, which is not there."""
    spec = importlib.util.spec_from_file_location("torchtap_kernel_build", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
