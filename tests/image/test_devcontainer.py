"""What a dev container client does, without the client: its wrapper around the entrypoint, and its first commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import Container, check_log
from .test_compose import Project

# As the client writes it, to learn from the log that the container has begun.
WRAPPER = 'echo Container started\ntrap "exit 0" 15\n\nexec "$$@"\nwhile sleep 1 & wait $$!; do :; done'
ENTRYPOINT = ["/bin/sh", "-c", WRAPPER, "-", "/usr/bin/tini", "-s", "--", "/opt/torchtap/bin/start"]
SERVER = "mkdir -p ~/.vscode-server && cd ~/.vscode-server && printf 'echo served' > s && sh ./s"


@pytest.fixture
def client(
    engine: Engine, image: str, ssh_key: Path, tmp_path: Path
) -> Iterator[tuple[Project, tuple[str, ...]]]:
    """A project started as a client does it: `up -d`, with its own file last."""
    override = tmp_path / "client.yaml"
    override.write_text(json.dumps({"services": {"dev": {"entrypoint": ENTRYPOINT, "command": ["dev"]}}}))
    files = ("compose.yaml", "compose.cpu.yaml", ".devcontainer/compose.yaml", str(override))
    project = Project(engine, tmp_path, ssh_key)
    os.chown(project.workspace, 1234, 1235)
    project("up", "-d", "--no-build", files=files, HOST_UID="1234", HOST_GID="1235")
    yield project, files
    project("down", "--volumes", files=files)


def test_a_client_can_work_as_dev_as_soon_as_up_returns(client: tuple[Project, tuple[str, ...]]) -> None:
    project, files = client
    container: Container = project.container
    # Its shell server: one exec, commands on stdin.
    asked = container.exec("/bin/sh", input="id -u; id -g; id -un; echo $HOME; pwd\n").stdout.split()
    assert asked == ["1234", "1235", "dev", "/home/dev", "/workspace"]
    # Its probe of the user's environment.
    probed = container.exec("/bin/bash", "-lic", "cat /proc/self/environ").stdout.split("\0")
    assert any(each.startswith("PATH=/opt/torchtap/bin:") for each in probed)
    # It puts a server of its own into the home and starts it.
    assert container.exec("sh", "-c", SERVER).stdout == "served\n"
    project("stop", files=files)
    assert container.state(".State.ExitCode") == 0, "the stop signal reaches start through the wrapper"
    check_log(container.logs, [])
