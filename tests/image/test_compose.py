"""docker compose up, as a user types it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine import Engine

from .conftest import NAME, ROOT, VARIANT, Container, check_log, free_port


def memlock() -> int:
    """-1, or this machine's own limit where even root may not raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, resource.RLIM_INFINITY))
    except ValueError:
        return hard
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    return -1


class Project:
    """One Compose project, with its own name, ports, workspace and volumes."""

    def __init__(self, engine: Engine, folder: Path, key: Path) -> None:
        self.engine, self.key = engine, key
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        os.chown(self.workspace, 1000, 1000)
        self.env = {
            **engine.env,
            "COMPOSE_PROJECT_NAME": f"torchtap-test-{os.getpid()}",
            "TORCHTAP_IMAGE": NAME,
            "VARIANT": VARIANT,
            "WORKSPACE": str(self.workspace),
            "JUPYTER_PORT": str(free_port()),
            "SSH_PORT": str(free_port()),
            "SSH_PUBLIC_KEY": key.with_suffix(".pub").read_text(),
            "HOST_UID": "1000",
            "HOST_GID": "1000",
            "MEMLOCK": str(memlock()),
        }

    def __call__(
        self, *words: str, files: tuple[str, ...] = ("compose.yaml",), check: bool = True, **env: str
    ) -> Any:
        flags = [flag for name in files for flag in ("-f", str(ROOT / name))]
        command = ["docker", "compose", "--project-directory", str(ROOT), *flags, *words]
        done = subprocess.run(
            command, env={**self.env, **env}, capture_output=True, text=True, timeout=600, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    @property
    def container(self) -> Container:
        return Container(self.engine, self("ps", "-q", "dev").stdout.strip(), self.key)


@pytest.fixture
def project(engine: Engine, image: str, ssh_key: Path, tmp_path: Path) -> Iterator[Project]:
    compose = Project(engine, tmp_path, ssh_key)
    yield compose
    compose("down", "--volumes", "--timeout", "10")


FILES = [("compose.yaml",), ("compose.yaml", "compose.cpu.yaml"), ("compose.yaml", "compose.cdi.yaml")]


@pytest.mark.parametrize("files", FILES, ids=lambda files: files[-1])
def test_every_combination_of_files_is_valid(project: Project, files: tuple[str, ...]) -> None:
    config = json.loads(project("config", "--format", "json", files=files).stdout)["services"]["dev"]
    assert {port["host_ip"] for port in config["ports"]} == {"127.0.0.1"}
    assert "init" not in config
    assert config["ulimits"]["memlock"] == memlock()
    reservations = config["deploy"]["resources"].get("reservations", {}).get("devices", [])
    assert bool(reservations) == ("compose.cpu.yaml" not in files)


def test_up_with_a_simulated_gpu(simulated: Engine, project: Project) -> None:
    """The reservation in compose.yaml reaches the toolkit's seam; JupyterLab and SSH answer."""
    project("up", "-d", "--no-build", "--wait")
    container = project.container
    assert "NVIDIA H200" in container.ssh("nvidia-smi -L").stdout
    assert container.api("/api/status", container.token)[0] == 200
    assert container.exec("sh", "-c", "df -m /dev/shm | tail -1 | awk '{print $2}'").stdout.strip() == "8192"
    assert container.ssh("ulimit -l").stdout.strip() in ("unlimited", str(memlock() // 1024))
    assert container.ssh("ulimit -s").stdout.strip() == "65536"
    container.wait_log(r"WARN +self-test", limit_s=90)


def test_a_gpu_chosen_by_its_index(simulated: Engine, project: Project) -> None:
    project("up", "-d", "--no-build", "--wait", GPUS="0")
    # Docker gives it to the container's first process; a bare `docker exec` still sees the image's own value.
    assert project.container.ssh("echo $NVIDIA_VISIBLE_DEVICES").stdout.strip() == "0"


def test_up_with_the_cpu_override(project: Project) -> None:
    files = ("compose.yaml", "compose.cpu.yaml")
    project("up", "-d", "--no-build", "--wait", files=files)
    container = project.container
    container.wait_log(r"PASS +self-test", limit_s=90)
    assert container.exec("sh", "-c", "echo $TORCHTAP_DEVICE").stdout.strip() == "cpu"
    assert container.ssh("command -v nvidia-smi", check=False).returncode == 1
    check_log(container.logs, [])


def test_state_home_and_workspace_outlive_the_container(project: Project) -> None:
    """down and up again: same token, same host key, same files."""
    files = ("compose.yaml", "compose.cpu.yaml")
    project("up", "-d", "--no-build", "--wait", files=files)
    first = project.container
    token, host_key = (
        first.token,
        first.exec("cat", "/var/lib/torchtap/ssh/ssh_host_ed25519_key.pub", root=True).stdout,
    )
    first.ssh("echo kept > ~/note; echo kept > /workspace/note")
    project("down", files=files)
    project("up", "-d", "--no-build", "--wait", files=files)
    second = project.container
    assert second.id != first.id
    assert second.token == token
    assert second.exec("cat", "/var/lib/torchtap/ssh/ssh_host_ed25519_key.pub", root=True).stdout == host_key
    assert second.ssh("cat ~/note /workspace/note").stdout.split() == ["kept", "kept"]
    assert (project.workspace / "note").stat().st_uid == 1000
