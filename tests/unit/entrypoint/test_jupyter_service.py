"""JupyterLab with the user's packages, and from the base alone once they have broken it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {docker!r})
from entrypoint import lab, paths
root = Path({root!r})
paths.RUN_CANDIDATES = (root / "run",)
paths.VENV, paths.OVERLAY = root / "venv", root / "overlay"
sys.exit(lab.main())
"""


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A run directory with a link to an overlay; every interpreter only says how it was called."""
    for name in ("run/jupyter", "run/services/jupyter", "home/bin", "venv/bin", "overlay/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run/started.json").write_text('{"jupyter_port": 1}')
    (tmp_path / "run/path").write_text("/the/users:/usr/bin:/bin\n")
    (tmp_path / "run/env").symlink_to(tmp_path / "home")
    for program, says in (("home/bin/python", "overlay"), ("venv/bin/jupyter-lab", "base")):
        (tmp_path / program).write_text(f'#!/bin/sh\necho {says} "$@" "$PATH"\n')
        (tmp_path / program).chmod(0o755)
    return tmp_path


def start(container: Path, **environment: str) -> tuple[str, str]:
    """What was started and what was said. The process is one of its own, so that each has its own pid."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(docker=str(ROOT / "docker"), root=str(container))],
        env={"PATH": "/roots", "JUPYTER_RUNTIME_DIR": str(container / "run/jupyter"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().removeprefix(f"{container}/"), done.stderr


def ended(container: Path, how: str) -> None:
    (container / "run/services/jupyter/ended.json").write_text(json.dumps({"how": how, "times": 1}))


def record(container: Path) -> list[list[str]]:
    return [line.split() for line in (container / "run/jupyter/torchtap-starts").read_text().splitlines()]


def test_it_is_the_users_python_with_the_images_lab_and_the_users_path(container: Path) -> None:
    said, errors = start(container)
    lab = f"{container}/overlay/bin/jupyter-lab --app-dir={container}/venv/share/jupyter/lab"
    assert said == f"overlay {lab} /the/users:/usr/bin:/bin"
    assert errors == ""


def test_a_lab_of_the_users_own_keeps_its_own_files(container: Path) -> None:
    own = container / "home/share/jupyter/lab/static/index.html"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert "--app-dir" not in start(container)[0]


def test_without_an_overlay_it_is_the_base_without_a_word(container: Path) -> None:
    (container / "run/env").unlink()
    assert start(container) == ("base /the/users:/usr/bin:/bin", "")


def test_after_two_early_ends_it_is_the_base_aloud_and_stays_it(container: Path) -> None:
    start(container)
    ended(container, "exit code 1")
    assert start(container)[0].startswith("overlay")
    said, errors = start(container)
    assert said.startswith("base")
    assert errors == (
        "ERROR   jupyter: ended 2 times at its start with your packages, "
        "so it is started from the image's own alone\n"
        "        The reason is above. Remove the package (pip uninstall NAME) or all of yours (torchtap-env reset), "
        "then restart the container. Until then kernels do not see your packages\n"
    )
    assert start(container)[0].startswith("base")


@pytest.mark.parametrize(
    "how", ["exit code 77: no token", "exit code 78: open to anyone", "signal 9, SIGKILL"]
)
def test_ends_that_say_nothing_about_packages_do_not_count(container: Path, how: str) -> None:
    for _ in range(4):
        assert start(container)[0].startswith("overlay")
        ended(container, how)


@pytest.mark.parametrize("how", ["signal 11, SIGSEGV", "exit code 0"])
def test_a_crash_counts_and_a_package_that_ends_it_without_one_too(container: Path, how: str) -> None:
    ended(container, how)
    start(container)
    start(container)
    assert start(container)[0].startswith("base")


def test_a_server_that_has_answered_does_not_count(container: Path) -> None:
    for _ in range(4):
        assert start(container)[0].startswith("overlay")
        ended(container, "exit code 1")
        (container / f"run/jupyter/jpserver-{record(container)[-1][0]}.json").write_text("{}")


def test_ends_long_after_the_start_do_not_count(container: Path) -> None:
    start(container)
    ended(container, "exit code 1")
    long_ago = time.time() - 61
    os.utime(container / "run/started.json", (long_ago - 10, long_ago - 10))
    (container / "run/jupyter/torchtap-starts").write_text(f"1 {long_ago - 5}\n2 {long_ago}\n")
    assert start(container)[0].startswith("overlay")


def test_what_another_container_noted_does_not_count(container: Path) -> None:
    """A folder of the user's own for run-time files outlives the container."""
    (container / "run/jupyter/torchtap-starts").write_text("1 1.0\n2 2.0\n0 3.0\nnonsense\n")
    assert start(container)[0].startswith("overlay")


def test_a_folder_for_runtime_files_that_is_not_there_yet(container: Path) -> None:
    folder = container / "home/mine/runtime"
    for _ in range(2):
        assert start(container, JUPYTER_RUNTIME_DIR=str(folder))[0].startswith("overlay")
    assert start(container, JUPYTER_RUNTIME_DIR=str(folder))[0].startswith("base")
