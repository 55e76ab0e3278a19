"""The commands pip and uv of the image, around real ones that only say how they were called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entrypoint.install import is_told, refused_by_pip, refused_by_uv, uv_pip

ROOT = Path(__file__).parents[3]
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {docker!r})
from entrypoint import install, overlay, paths, user_env
root = Path({root!r})
paths.RUN_CANDIDATES = (root / "run",)
paths.VENV, paths.OVERLAY, paths.HOME = root / "venv", root / "overlay", root / "home"
overlay.SYSTEM_PYTHON = str(root / "python")
user_env.become_user = lambda: None
user_env.mend = lambda place: 0
sys.exit(install.main(sys.argv[1], sys.argv[2:]))
"""
PIN = "note: torch 2.14.1 is pinned: torch, CUDA and cuDNN of this image were tested together.\n"


@pytest.fixture
def container(tmp_path: Path) -> Path:
    for name in ("run", "home", "overlay", "venv/bin", "venv/lib", "work"):
        (tmp_path / name).mkdir(parents=True)
    base = {
        "key": "cu130-torch2.14.1-py3.12-1234",
        "python": "3.12",
        "packages": str(tmp_path / "venv/lib"),
        "pinned": {"torch": "2.14.1", "triton": "3.8.0"},
        "stubs": {},
    }
    (tmp_path / "overlay/base.json").write_text(json.dumps(base))
    folder = tmp_path / "home/.local/share/torchtap/env" / str(base["key"])
    (tmp_path / "run/env").symlink_to(folder)
    (tmp_path / "run/started.json").write_text(
        json.dumps({"home": str(tmp_path / "home"), "overlay": str(folder)})
    )
    script(tmp_path, "python", 'echo "pip: $@"')
    script(tmp_path, "venv/bin/uv", 'echo "uv: $@"')
    return tmp_path


def script(container: Path, name: str, text: str) -> None:
    (container / name).write_text(f"#!/bin/sh\n{text}\n")
    (container / name).chmod(0o755)


def command(container: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", RUN.format(docker=str(ROOT / "docker"), root=str(container)), *words]


def run(container: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command(container, *words),
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=container / "work",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.replace(str(container), ""), done.stderr.replace(str(container), "")


def test_pip_is_that_of_the_users_python(container: Path) -> None:
    assert run(container, "pip", "list", "-v") == (0, "pip: -m pip list -v\n", "")


def test_pip_makes_or_mends_the_overlay_first(container: Path) -> None:
    run(container, "pip", "list")
    assert "constraint" in (container / "run/env/pip.conf").read_text()


@pytest.mark.parametrize("code", [0, 1, 7])
def test_exit_codes_are_the_tools_own(container: Path, code: int) -> None:
    script(container, "python", f"exit {code}")
    script(container, "venv/bin/uv", f"exit {code}")
    assert run(container, "pip", "install", "x")[0] == code
    assert run(container, "pip", "list")[0] == code
    assert run(container, "uv", "pip", "install", "x")[0] == code
    assert run(container, "uv", "sync")[0] == code


def test_a_tool_that_was_killed_ends_as_a_shell_would_say(container: Path) -> None:
    script(container, "python", "kill -9 $$")
    assert run(container, "pip", "install", "x")[0] == 137


def test_sigterm_reaches_the_tool(container: Path) -> None:
    script(
        container, "python", f"trap 'echo told; exit 3' TERM; : >{container}/up; while :; do sleep 0.05; done"
    )
    process = subprocess.Popen(
        command(container, "pip", "install", "x"),
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not (container / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "told\n"
    assert process.returncode == 3


def test_the_tool_has_the_terminal_to_itself(container: Path) -> None:
    """Bars and colours: it sees the same standard output and error as it would without us."""
    script(container, "python", "[ -t 1 ] && [ -t 2 ] && echo terminal")
    script(container, "venv/bin/uv", "[ -t 1 ] && [ -t 2 ] && echo terminal")
    for words in (("pip", "install", "x"), ("uv", "pip", "install", "x")):
        main, side = os.openpty()
        environment = {"PATH": "/usr/bin:/bin"}
        with subprocess.Popen(
            command(container, *words), stdout=side, stderr=side, env=environment
        ) as process:
            os.close(side)
            assert process.wait(timeout=20) == 0
        assert os.read(main, 1000) == b"terminal\r\n"
        os.close(main)


def test_c11_pip_stopped_by_the_pin_is_followed_by_a_note(container: Path) -> None:
    script(
        container,
        "python",
        'echo "2026 The user requested (constraint) torch==2.14.1" >"$PIP_LOG"; echo "ERROR: no" >&2; exit 1',
    )
    code, _, errors = run(container, "pip", "install", "torch==2.9.0")
    assert code == 1
    assert errors == (
        f"ERROR: no\n{PIN}"
        "      Take a version of your package that works with it, or another environment (docs/packages.md).\n"
        "      To lift the pin, knowingly:  torchtap-env unpin\n"
    )


def test_c11_uv_stopped_by_the_pin_is_followed_by_a_note(container: Path) -> None:
    why = "Because you require torch==2.9.0 and torch==2.14.1, we can conclude"
    script(container, "venv/bin/uv", f'echo "{why}" >&2; echo "$@" >>{container}/calls; exit 1')
    code, _, errors = run(container, "uv", "pip", "install", "torch==2.9.0")
    assert code == 1
    assert errors.startswith(f"{why}\n{PIN}")
    first, again = (container / "calls").read_text().splitlines()
    assert again == f"{first} --dry-run"


def test_a_failure_that_the_pin_did_not_cause_gets_no_note(container: Path) -> None:
    script(container, "python", 'echo "No matching distribution found for x" >"$PIP_LOG"; exit 1')
    script(container, "venv/bin/uv", 'echo "x was not found" >&2; exit 2')
    assert run(container, "pip", "install", "x") == (1, "", "")
    assert run(container, "uv", "pip", "install", "x") == (2, "", "x was not found\n")


def test_a_constraint_of_the_users_own_is_kept_beside_the_pin(container: Path) -> None:
    """PIP_CONSTRAINT would take the place of the line in pip.conf."""
    script(container, "python", 'echo "$PIP_CONSTRAINT"')
    assert (
        run(container, "pip", "install", "x", PIP_CONSTRAINT="mine.txt")[1]
        == "/overlay/constraints.txt mine.txt\n"
    )
    (container / "run/env/unpinned").touch()
    assert run(container, "pip", "install", "x", PIP_CONSTRAINT="mine.txt")[1] == "mine.txt\n"


def test_uv_pip_is_told_where_and_what_is_pinned(container: Path) -> None:
    to = "--python /run/env/bin/python"
    pinned = "--constraint /overlay/constraints.txt"
    assert run(container, "uv", "pip", "install", "x")[1] == f"uv: pip install {to} {pinned} x\n"
    assert run(container, "uv", "-q", "pip", "list")[1] == f"uv: -q pip list {to}\n"
    (container / "run/env/unpinned").touch()
    assert run(container, "uv", "pip", "install", "x")[1] == f"uv: pip install {to} x\n"


def test_a_uv_of_the_users_own_comes_first(container: Path) -> None:
    run(container, "pip", "list")
    script(container, "run/env/bin/uv", "echo mine")
    assert run(container, "uv", "sync")[1] == "mine\n"


@pytest.mark.parametrize(
    "words",
    [
        ["sync"],
        ["run", "pip", "install"],
        ["venv"],
        ["pip", "compile", "requirements.in"],
        ["pip"],
        ["--directory", "pip", "pip"],
        [],
    ],
    ids=" ".join,
)
def test_every_other_use_of_uv_is_left_as_it_is(words: list[str]) -> None:
    assert uv_pip(words) is None


TOLD = [
    ["--system"],
    ["-p", "3.12"],
    ["-p3.12"],
    ["--python=3.12"],
    ["--python", "python"],
    ["--target", "there"],
    ["--prefix=there"],
]


@pytest.mark.parametrize("words", TOLD, ids=" ".join)
def test_an_environment_that_uv_is_told_is_uvs_affair(container: Path, words: list[str]) -> None:
    script(
        container,
        "venv/bin/uv",
        'echo "uv: $@"; echo "Using Python 3.12.3 environment at: /workspace/mine" >&2',
    )
    assert run(container, "uv", "pip", "install", *words, "x")[1] == f"uv: pip install {' '.join(words)} x\n"


@pytest.mark.parametrize("words", TOLD[:5], ids=" ".join)
@pytest.mark.parametrize("at", ["{}/run/env", "../run/env"], ids=["absolute", "relative"])
def test_the_overlay_by_another_name_has_its_pin(container: Path, words: list[str], at: str) -> None:
    """`--python python` is the overlay: who spells it out does not lift the pin by that."""
    says = f"Using Python 3.12.3 environment at: {at.format(container)}"
    script(container, "venv/bin/uv", f'echo "uv: $@"; echo "{says}" >&2')
    assert run(container, "uv", "-q", "pip", "install", *words, "torch==2.9")[1] == (
        f"uv: -q pip install --constraint /overlay/constraints.txt {' '.join(words)} torch==2.9\n"
    )
    assert run(container, "uv", "pip", "list", *words)[1] == f"uv: pip list {' '.join(words)}\n"
    (container / "run/env/unpinned").touch()
    assert "constraint" not in run(container, "uv", "pip", "install", *words, "torch==2.9")[1]


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON"])
def test_a_variable_that_names_the_overlay_does_not_lift_the_pin(container: Path, name: str) -> None:
    says = f"Using Python 3.12.3 environment at: {container}/run/env"
    script(container, "venv/bin/uv", f'echo "uv: $@"; echo "{says}" >&2')
    environment = {name: f"{container}/run/env"}
    assert "--constraint" in run(container, "uv", "pip", "install", "torch==2.9", **environment)[1]


@pytest.mark.parametrize("words", ["--prefix {}/run/env", "--target={}/run/env/lib/python3.12/site-packages"])
def test_a_folder_of_the_overlay_has_its_pin(container: Path, words: str) -> None:
    told = words.format(container).split()
    assert "--constraint" in run(container, "uv", "pip", "install", *told, "torch==2.9")[1]


def test_a_constraint_of_the_users_own_is_kept_beside_the_pin_for_uv_too(container: Path) -> None:
    said = run(container, "uv", "pip", "install", "x", UV_CONSTRAINT="a.txt b.txt")[1]
    assert said.endswith("--constraint /overlay/constraints.txt --constraint a.txt --constraint b.txt x\n")


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_SYSTEM_PYTHON"])
def test_an_environment_that_is_active_is_left_to_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--python-version", "3.12", "x"]
    assert is_told(words, {name: "1"}, tmp_path / "overlay") is True
    assert is_told(words, {name: ""}, tmp_path / "overlay") is False


def test_a_project_with_an_environment_is_left_to_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "src/deep"
    deep.mkdir(parents=True)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    monkeypatch.chdir(deep)
    assert is_told(["x"], {}, overlay) is False
    (tmp_path / ".venv").mkdir()
    assert is_told(["x"], {}, overlay) is True
    (tmp_path / "src/.venv").symlink_to(overlay)  # for an editor, say
    assert is_told(["x"], {}, overlay) is False


@pytest.mark.parametrize("tool", [("pip",), ("uv", "pip")], ids=" ".join)
def test_who_uninstalls_what_is_the_images_is_told_that_it_stays(
    container: Path, tool: tuple[str, ...]
) -> None:
    """pip removes the stub and says "Successfully uninstalled"."""
    base = json.loads((container / "overlay/base.json").read_text())
    stub = container / "run/env/lib/python3.12/site-packages/torch-2.14.1.dist-info"
    (container / "overlay/base.json").write_text(
        json.dumps({**base, "stubs": {"torch-2.14.1.dist-info": False, "numpy-2.4.6.dist-info": True}})
    )
    program = "python" if tool == ("pip",) else "venv/bin/uv"
    script(container, program, f"rm -r {stub}; exit 3")
    code, _, errors = run(container, *tool, "uninstall", "torch")
    assert code == 3
    assert errors == "note: the image's own torch 2.14.1 stays: it is part of the image\n"
    assert (stub / "INSTALLER").exists()
    script(container, program, "true")
    assert run(container, *tool, "uninstall", "x") == (0, "", "")


def test_a_dry_run_of_the_users_own_is_asked_again_as_it_is(container: Path) -> None:
    why = "Because you require torch==2.9.0 and torch==2.14.1, we can conclude"
    script(container, "venv/bin/uv", f'echo "{why}" >&2; echo "$@" >>{container}/calls; exit 1')
    assert PIN in run(container, "uv", "pip", "install", "torch==2.9", "--dry-run")[2]
    first, again = (container / "calls").read_text().splitlines()
    assert again == first


def test_pip_says_when_an_active_environment_has_no_pip_of_its_own(container: Path) -> None:
    _, _, errors = run(container, "pip", "install", "x", VIRTUAL_ENV="/workspace/mine")
    assert errors.startswith(
        "note: /workspace/mine has no pip of its own, so this goes to /home/.local/share/"
    )


def test_started_without_the_overlay_it_still_installs_there_and_says_so(container: Path) -> None:
    """TORCHTAP_SAFE=1: that is how a broken package is removed."""
    (container / "run/env").unlink()
    (container / "run/started.json").write_text(
        json.dumps({"home": str(container / "home"), "overlay": None})
    )
    code, said, errors = run(container, "pip", "uninstall", "x", TORCHTAP_SAFE="1")
    assert (code, said) == (0, "pip: -m pip uninstall x\n")
    assert "which python does not see now (TORCHTAP_SAFE=1)" in errors


def test_an_image_without_an_overlay_runs_the_tools_as_they_are(container: Path) -> None:
    (container / "overlay/base.json").unlink()
    script(container, "venv/bin/pip", 'echo "base $@"')
    assert run(container, "pip", "install", "x")[1] == "base install x\n"


PINNED = {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7", "triton": "3.8.0"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("    The user requested (constraint) nvidia_nccl-cu13==2.30.7", ["nvidia-nccl-cu13"]),
        ("    The user requested (constraint) numpy==1", []),
        ("    The user requested torch==2.14.1", []),
        ("", []),
    ],
)
def test_what_pip_names(text: str, names: list[str]) -> None:
    assert refused_by_pip(text, PINNED) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Because x==1 depends on torch<2 and you require torch==2.14.1, we can conclude", ["torch"]),
        ("Because you require triton==1.0 and triton==3.8.0, we can conclude", ["triton"]),
        ("Because torch==2.14.1 and torch==2.14.10", ["torch"]),
        ("torch==2.14.10", []),
        ("pytorch-torch==2.14.1+cpu", []),
        ("x was not found in the package registry", []),
    ],
)
def test_what_uv_names(text: str, names: list[str]) -> None:
    assert refused_by_uv(text, PINNED) == names


def test_a_bare_docker_exec_has_the_mounted_certificates_too(container: Path) -> None:
    script(container, "venv/bin/uv", 'echo "$SSL_CERT_FILE $PIP_CERT"')
    assert run(container, "uv", "sync")[1] == " \n"
    (container / "run/ca-certificates.pem").touch()
    assert run(container, "uv", "sync", PIP_CERT="/mine")[1] == "/run/ca-certificates.pem /mine\n"
