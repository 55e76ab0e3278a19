"""start as a whole: exit codes, messages and what it becomes, run as the image runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entrypoint import hostkey, paths

from .conftest import GID, UID, needs_root, places

DOCKER = Path(__file__).parents[3] / "docker"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"


def command(image: Path, *words: str) -> list[str]:
    """The image's `start`, with every path of the image below tmp. Fails rather than touch a real one."""
    constants = "".join(
        f"paths.{name} = {tuple(map(str, value)) if isinstance(value, tuple) else str(value)!r}\n"
        for name, value in places(image).items()
    )
    script = (
        f"import os, sys\nsys.path.insert(0, {str(DOCKER)!r})\n"
        "from pathlib import Path\nfrom entrypoint import gather, paths\n"
        f"{constants}"
        f"for name in {list(places(image))}:\n"
        "    value = getattr(paths, name)\n"
        "    value = tuple(map(Path, value)) if isinstance(value, tuple) else Path(value)\n"
        "    setattr(paths, name, value)\n"
        f"gather.SECRET_KEY_FILE = Path({str(image / 'secret')!r})\n"
        f"paths.VENV = Path({str(image / 'venv')!r})\n"
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"  # as bin/start does
        "from entrypoint.main import main\nsys.exit(main(sys.argv[1:], os.environ))\n"
    )
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    return [python, "-IS", "-c", script, *words]


def start(image: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": f"{image}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", **environment}
    return subprocess.run(
        command(image, *words),
        env=given,
        cwd=paths.WORKSPACE,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def container(image: Path) -> Path:
    """An image whose workspace has an owner, and whose s6-svscan says that it was reached."""
    program(image / "bin/s6-svscan", 'echo "supervising as $(id -u): $*"')
    program(image / "bin/jupyter-lab", "exit 0")
    (image / "run").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(paths.WORKSPACE, UID, GID)
        os.chown(paths.HOME, UID, GID)
    return image


def program(path: Path, script: str, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)


ANNOUNCED = "INFO    jupyter: JupyterLab on port 8888. The link with its token: make url, or docker exec CONTAINER torchtap-url\n"  # noqa: E501
ANNOUNCED_SSH = "INFO    ssh: sshd on port 22022, user dev, 1 public key\n"
PORT = "22022"


# ---- services ----
@needs_root
def test_role_dev_becomes_supervision_and_says_what_runs_where(container: Path) -> None:
    done = start(container, SSH_PUBLIC_KEY=KEY, SSH_PORT_IN_CONTAINER=PORT)
    assert done.returncode == 0
    assert done.stdout == f"supervising as 0: -c 32 -t 0 {container}/run/torchtap/services\n"
    key = (container / "var/lib/torchtap/ssh/ssh_host_ed25519_key.pub").read_text()
    said = f"INFO    ssh: host key {hostkey.fingerprint(key)}\n"
    assert done.stderr == ANNOUNCED + ANNOUNCED_SSH + said
    assert {path.name for path in (container / "run/torchtap/services").iterdir()} == {
        ".s6-svscan",
        "sshd",
        "jupyter",
        "selftest",
    }


@needs_root
def test_role_jupyter_says_nothing_of_ssh(container: Path) -> None:
    done = start(container, "jupyter", TORCHTAP_SELFTEST="off")
    assert (done.returncode, done.stderr) == (0, ANNOUNCED)


@needs_root
def test_keys_are_counted(container: Path) -> None:
    second = KEY.replace("HR4f", "HR4e")
    done = start(container, "ssh", SSH_PUBLIC_KEY=f"{KEY}\n{second}", SSH_PORT_IN_CONTAINER=PORT)
    assert "INFO    ssh: sshd on port 22022, user dev, 2 public keys\n" in done.stderr


@needs_root
def test_supervision_that_is_not_there_is_one_line(container: Path) -> None:
    (container / "bin/s6-svscan").unlink()
    (paths.WORKSPACE / "train.py").touch()
    done = start(container, "jupyter", PATH=f"{container}/bin")
    assert done.returncode == 126
    assert (
        done.stderr.splitlines()[1] == f"ERROR   start: {container}/bin/s6-svscan: No such file or directory"
    )
    assert "Traceback" not in done.stderr


# ---- commands ----
@needs_root
def test_a_command_becomes_the_process_as_dev(container: Path) -> None:
    done = start(container, "sh", "-c", "id -u; id -g; pwd; echo $HOME $USER; exit 7")
    assert done.returncode == 7
    assert done.stdout.split() == [
        str(UID),
        str(GID),
        str(paths.WORKSPACE),
        str(paths.HOME),
        "dev",
    ]
    assert done.stderr == ""


def test_role_selftest_is_the_torchtap_command(container: Path) -> None:
    program(container / "bin/torchtap", 'echo "$@"')
    done = start(container, "selftest")
    assert (done.returncode, done.stdout) == (0, "selftest\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ("jupiter",),
            127,
            "ERROR   start: 'jupiter' is neither a role nor a command in this image\n        did you mean jupyter?\n",
        ),
        (
            ("selftset", "--json"),
            127,
            "ERROR   start: 'selftset' is neither a role nor a command in this image\n        did you mean selftest?\n",
        ),
        (
            ("dev", "foo"),
            127,
            "ERROR   start: role dev takes no words; a command of more words must be a program\n",
        ),
        (("sshd",), 127, "ERROR   start: 'sshd' alone is not a role; the role is called ssh\n"),
        (
            ("jupyter-lab",),
            127,
            "ERROR   start: 'jupyter-lab' alone is not a role; the role is called jupyter\n",
        ),
        (
            ("jupyter-lub",),
            127,
            "ERROR   start: 'jupyter-lub' is neither a role nor a command in this image\n"
            "        did you mean jupyter-lab?\n",
        ),
        (
            ("qqqqqqqq",),
            127,
            "ERROR   start: 'qqqqqqqq' is neither a role nor a command in this image\n"
            "        roles: dev, jupyter, ssh, selftest; anything else is a command\n",
        ),
        (
            ("",),
            127,
            "ERROR   start: '' is neither a role nor a command in this image\n"
            "        roles: dev, jupyter, ssh, selftest; anything else is a command\n",
        ),
        (("./none.sh",), 127, "ERROR   start: ./none.sh: no such file\n"),
        (("/etc/passwd",), 126, "ERROR   start: /etc/passwd cannot be run: Permission denied\n"),
        (("./not-executable",), 126, "ERROR   start: ./not-executable cannot be run: Permission denied\n"),
        (("./folder",), 126, "ERROR   start: ./folder cannot be run: Permission denied\n"),
        (("./no-hashbang",), 126, "ERROR   start: ./no-hashbang cannot be run: Exec format error\n"),
        (
            ("./no-interpreter",),
            127,
            "ERROR   start: ./no-interpreter: cannot be run: the interpreter in its first line is not in this image\n",
        ),
    ],
    ids=[
        "near a role",
        "near another role, with words",
        "a role with more words",
        "what people call a role",
        "a program that people mean as a role",
        "near a command of the image",
        "near nothing",
        "empty",
        "a path to nothing",
        "a file that is no program",
        "a script without the executable bit",
        "a folder",
        "a script without #!",
        "a script whose interpreter is missing",
    ],
)
def test_what_cannot_be_run(container: Path, words: tuple[str, ...], code: int, says: str) -> None:
    program(paths.WORKSPACE / "not-executable", "", mode=0o644)
    (paths.WORKSPACE / "folder").mkdir()
    (paths.WORKSPACE / "no-hashbang").write_text("echo\n")
    (paths.WORKSPACE / "no-hashbang").chmod(0o755)
    (paths.WORKSPACE / "no-interpreter").write_text("#!/bin/no-such-shell\n")
    (paths.WORKSPACE / "no-interpreter").chmod(0o755)
    done = start(container, *words)
    assert (done.returncode, done.stderr, done.stdout) == (code, says, "")


@needs_root
def test_a_script_that_only_dev_can_reach_is_run(container: Path) -> None:
    program(paths.WORKSPACE / "private/run.sh", "echo ran")
    (paths.WORKSPACE / "private").chmod(0o700)
    os.chown(paths.WORKSPACE / "private", UID, GID)
    assert start(container, "./private/run.sh").stdout == "ran\n"


# ---- what ends it ----
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "TORCHTAP_SELFTEST",
            "stric",
            "TORCHTAP_SELFTEST is 'stric': one of warn, strict, off (did you mean strict?)",
        ),
        ("HOST_UID", "me", "HOST_UID is 'me': a numeric id, such as 1000 (id -u prints yours)"),
        ("HOST_UID", "a\nb", "HOST_UID is 'a\\nb': a numeric id, such as 1000 (id -u prints yours)"),
    ],
    ids=["policy", "id", "several lines"],
)
def test_an_unusable_variable_ends_2_in_one_line(container: Path, name: str, value: str, says: str) -> None:
    done = start(container, **{name: value})
    assert (done.returncode, done.stderr) == (2, f"ERROR   start: {says}\n")
    assert not (container / "run/torchtap" / paths.STARTED).exists(), "nothing half started"


def test_role_ssh_without_a_key_ends_2_with_the_option(container: Path) -> None:
    done = start(container, "ssh")
    assert done.returncode == 2
    assert done.stderr == (
        "ERROR   start: role ssh has nothing to run: sshd needs a public key\n"
        '        Add: -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"\n'
    )


@needs_root
def test_what_the_system_refuses_is_one_line_without_a_traceback(container: Path) -> None:
    for run in paths.RUN_CANDIDATES:
        if run.exists():
            run.rmdir()
    (container / "run/torchtap").mkdir()
    (container / "run/torchtap/extrausers").touch()
    (container / "var/lib/torchtap/ssh").write_text("in the way")
    done = start(container, "true")
    assert done.returncode == 126
    assert done.stderr == (
        f"ERROR   start: {container}/var/lib/torchtap/ssh: File exists\n"
        "        The container cannot start without this. "
        "Look at its volumes and options (--read-only, --cap-drop, --user)\n"
    )


def test_ctrl_c_ends_it_without_a_traceback(container: Path) -> None:
    program(container / "venv/bin/torchtap", "exec sleep 30")
    process = subprocess.Popen(
        command(container, "jupyter"),
        env={"PATH": f"{container}/bin:/usr/bin:/bin", "TORCHTAP_SELFTEST": "strict"},
        cwd=paths.WORKSPACE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 10
    while not (container / "run/torchtap" / paths.STARTED).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert b"Traceback" not in said


# ---- the self-test before the services ----
@pytest.mark.parametrize(
    ("code", "starts"), [(0, True), (1, False), (2, False)], ids=["passes", "fails", "cannot run"]
)
def test_policy_strict_starts_services_only_after_a_pass(container: Path, code: int, starts: bool) -> None:
    program(
        container / "venv/bin/torchtap",
        f'echo "report as $(id -u)" >&2; echo "$@" >"{container}/workspace/asked"; exit {code}',
    )
    done = start(container, "jupyter", TORCHTAP_SELFTEST="strict")
    uid = UID if os.geteuid() == 0 else os.geteuid()
    assert done.stderr.splitlines()[0] == f"report as {uid}"
    assert (container / "workspace/asked").read_text() == (
        f"selftest --output {container}/var/lib/torchtap/selftest.json\n"
    )
    assert ("supervising" in done.stdout) is starts
    assert done.returncode == (0 if starts else 1)
    if not starts:
        why = "failed" if code == 1 else f"could not run (exit code {code})"
        assert done.stderr.endswith(
            f"ERROR   selftest: {why}, so the services are not started (TORCHTAP_SELFTEST=strict)\n"
            "        Mend what the report above names, or start with -e TORCHTAP_SELFTEST=warn to look around\n"
        )


# ---- again, and in any locale ----
@needs_root
def test_a_restart_begins_anew_and_keeps_the_token(container: Path) -> None:
    assert start(container, "jupyter").returncode == 0
    token = (paths.STATE / "jupyter-token").read_text()
    (container / "run/torchtap/stopping").touch()
    assert start(container, "jupyter").returncode == 0
    assert (paths.STATE / "jupyter-token").read_text() == token
    assert not (container / "run/torchtap/stopping").exists(), "the stop before is over"


@needs_root
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "xx_XX.ISO-8859-1"])
def test_text_beyond_ascii_is_no_matter_in_any_locale(container: Path, locale: str) -> None:
    key = f"{KEY} Jürgen {os.fsdecode(bytes([0xFF]))}"
    done = start(container, SSH_PUBLIC_KEY=key, SSH_PORT_IN_CONTAINER=PORT, LC_ALL=locale, A="ü")
    assert done.returncode == 0, done.stderr
    run = container / "run/torchtap"
    assert os.fsencode(key) in (run / "authorized_keys").read_bytes()
    assert b"\0A=\xc3\xbc\0" in b"\0" + (run / "environment").read_bytes()


@needs_root
def test_what_was_started_can_be_read_by_the_others(container: Path) -> None:
    start(container, "jupyter")
    said = json.loads((container / "run/torchtap" / paths.STARTED).read_text())
    assert (said["role"], said["services"], said["uid"]) == ("jupyter", ["jupyter"], UID)
    assert paths.started() == said
