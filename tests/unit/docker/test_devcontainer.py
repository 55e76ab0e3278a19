"""The dev container configurations: what they name is there, and they differ only in what they have to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with JupyterLab (lab.lock)")
ROOT = Path(__file__).parents[3]
GPU, CPU = (ROOT / ".devcontainer" / name for name in ("devcontainer.json", "cpu/devcontainer.json"))
BOTH = pytest.mark.parametrize("file", [GPU, CPU], ids=["gpu", "cpu"])


def load(file: Path) -> dict[str, Any]:
    """JSON with comments on lines of their own."""
    kept = "\n".join(line for line in file.read_text().splitlines() if not line.lstrip().startswith("//"))
    return json.loads(kept)  # type: ignore[no-any-return]


@BOTH
def test_compose_files_are_there_and_hold_the_service(file: Path) -> None:
    found = load(file)
    files = [(file.parent / name).resolve() for name in found["dockerComposeFile"]]
    assert all(path.is_file() for path in files)
    assert files[0] == ROOT / "compose.yaml", "the project's folder, where .env is read, is that of the first"
    assert files[-1] == ROOT / ".devcontainer/compose.yaml"
    assert found["service"] in yaml.safe_load(files[0].read_text())["services"]


@BOTH
def test_the_images_own_start_up_decides_about_user_and_services(file: Path) -> None:
    found = load(file)
    assert found["overrideCommand"] is False
    assert found["updateRemoteUserUID"] is False
    assert (found["remoteUser"], found["workspaceFolder"]) == ("dev", "/workspace")
    assert found["shutdownAction"] == "stopCompose"
    assert found["forwardPorts"] == [8888]


@BOTH
def test_the_gpu_is_asked_for_once(file: Path) -> None:
    """hostRequirements.gpu adds a second request beside compose.yaml's own: the container then does not start."""
    assert "hostRequirements" not in load(file)


@BOTH
def test_what_runs_on_the_host_first_is_a_program_of_this_checkout(file: Path) -> None:
    match = re.fullmatch(r"(MODE=cpu )?python3 (scripts/\w+)", load(file)["initializeCommand"])
    assert match
    assert os.access(ROOT / match[2], os.X_OK)
    assert bool(match[1]) == (file == CPU)


@BOTH
def test_the_interpreter_is_the_images(file: Path) -> None:
    settings = load(file)["customizations"]["vscode"]["settings"]
    interpreter = settings["python.defaultInterpreterPath"]
    assert os.access(ROOT / "docker/rootfs" / interpreter.lstrip("/"), os.X_OK)


def test_the_configurations_differ_in_name_files_and_mode_alone() -> None:
    gpu, cpu = load(GPU), load(CPU)
    assert {key for key in gpu | cpu if gpu.get(key) != cpu.get(key)} == {
        "name",
        "dockerComposeFile",
        "initializeCommand",
    }
    assert any(name.endswith("compose.cpu.yaml") for name in cpu["dockerComposeFile"])


def test_the_client_is_kept_waiting_until_dev_has_its_ids() -> None:
    """It runs `docker exec -u dev` as soon as `up` returns, which is before start has named dev (seen)."""
    services = yaml.safe_load((ROOT / ".devcontainer/compose.yaml").read_text())["services"]
    assert services["ready"]["depends_on"] == {"dev": {"condition": "service_healthy"}}
    assert services["ready"]["entrypoint"] == ["true"]
