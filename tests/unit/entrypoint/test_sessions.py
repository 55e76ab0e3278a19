"""An SSH session has the container's environment byte for byte, and starts whatever the shell variable says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint import paths, sessions

from .conftest import ignored_by_python

DOCKER = Path(__file__).parents[3] / "docker"
AWKWARD = {
    "PLAIN": "a b",
    "QUOTES": 'it\'s "so"',
    "SHELL_SYNTAX": "$HOME `id` $(id) \\n !x; exit",
    "LINES": "one\ntwo\n\nfour\n",
    "EMPTY": "",
    "EQUALS": "a=b=c",
    "NOT_ASCII": "Grüße, 世界",
    "NOT_UTF8": os.fsdecode(b"\xff\xfe"),
    "LONG": "x" * 100_000,
}


def test_awkward_values_survive_packing() -> None:
    assert sessions.unpack(sessions.pack(AWKWARD)) == AWKWARD


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1)
VALUES = st.binary().map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(NAMES, VALUES))
def test_whatever_an_environment_can_hold_survives_packing(environment: dict[str, str]) -> None:
    assert sessions.unpack(sessions.pack(environment)) == environment


@pytest.mark.parametrize(
    ("container", "sshd", "session"),
    [
        ({"PATH": "/opt/bin"}, {"PATH": "/usr/bin", "HOME": "/"}, {"PATH": "/opt/bin"}),
        (
            {"A": "1"},
            {"SSH_CONNECTION": "c", "SSH_TTY": "/dev/pts/0"},
            {"A": "1", "SSH_CONNECTION": "c", "SSH_TTY": "/dev/pts/0"},
        ),
        ({"TERM": "dumb"}, {"TERM": "xterm-256color"}, {"TERM": "xterm-256color"}),
        ({"TERM": "dumb"}, {}, {"TERM": "dumb"}),
        ({}, {"SSH_ORIGINAL_COMMAND": "ls"}, {}),
        ({"SSH_PUBLIC_KEY": "k"}, {"SSH_AUTH_SOCK": "/s"}, {"SSH_PUBLIC_KEY": "k", "SSH_AUTH_SOCK": "/s"}),
        ({}, {"DISPLAY": ":10", "XAUTHORITY": "/x"}, {"DISPLAY": ":10", "XAUTHORITY": "/x"}),
    ],
    ids=[
        "the container's values win",
        "the connection's own are added",
        "the client's terminal wins",
        "without a terminal the container's stays",
        "the command is not part of the environment",
        "agent forwarding beside the container's own",
        "X11",
    ],
)
def test_environment_of_a_session(
    container: dict[str, str], sshd: dict[str, str], session: dict[str, str]
) -> None:
    assert sessions.merged(container, sshd) == session


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("vt100", "vt100"),
        ("mine", "mine"),
        ("xterm-kitty", "xterm-256color"),
        ("xterm-ghostty", "xterm-256color"),
        ("", "xterm-256color"),
        ("../vt100", "xterm-256color"),
    ],
    ids=["described", "described in the home", "kitty", "ghostty", "none", "a path"],
)
def test_a_terminal_that_nothing_describes_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, used: str
) -> None:
    for place in ("etc/v/vt100", "home/.terminfo/m/mine"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    monkeypatch.setattr(sessions, "TERMINFO", (f"{tmp_path}/etc",))
    assert sessions.terminal(name, {"HOME": f"{tmp_path}/home"}) == used


SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def run(run_directory: Path, typed: str = "", **sshd: str) -> subprocess.CompletedProcess[str]:
    """What sshd's forced command does, with the environment that sshd gives it, run as the image runs it."""
    script = (
        f"import sys; sys.path.insert(0, {str(DOCKER)!r})\n"
        "from pathlib import Path\nfrom entrypoint import paths, sessions\n"
        f"paths.RUN_CANDIDATES = (Path({str(run_directory)!r}),)\nsessions.main()\n"
    )
    return subprocess.run(
        [sys.executable, "-IS", "-c", script],
        env={"PATH": "/usr/bin:/bin", "HOME": "/", "USER": "dev", **sshd},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        errors="surrogateescape",
    )


@pytest.fixture
def started(image: Path) -> Path:
    run_directory = image / "run/torchtap"
    (run_directory / paths.STARTED).write_text("{}")
    environment = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/bash", **AWKWARD}
    (run_directory / sessions.ENVIRONMENT).write_bytes(sessions.pack(environment))
    return run_directory


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "xx_XX.ISO-8859-1"])
def test_a_command_gets_the_containers_environment_in_any_locale(started: Path, locale: str) -> None:
    command = f"exec {sys.executable} -c '{SHOW}' 'Grüße  \"x\"' \"$PLAIN\""
    done = run(started, LC_ALL=locale, SSH_ORIGINAL_COMMAND=command, SSH_CONNECTION="1 2 3 4")
    environment, words = json.loads(done.stdout)
    assert {name: environment[name] for name in AWKWARD} == AWKWARD
    assert environment["SSH_CONNECTION"] == "1 2 3 4"
    assert "HOME" not in environment  # sshd's own idea of it
    assert words == ['Grüße  "x"', "a b"]


def test_exit_code_of_the_command_is_the_sessions(started: Path) -> None:
    assert run(started, SSH_ORIGINAL_COMMAND="exit 7").returncode == 7


def test_without_a_command_there_is_a_login_shell(started: Path) -> None:
    done = run(started, typed="shopt -q login_shell && echo login; echo $0\n")
    assert done.stdout == "login\n-bash\n"


@pytest.mark.parametrize("shell", ["/bin/no-such-shell", "", "/etc/passwd"], ids=repr)
def test_a_shell_that_is_not_there_locks_nobody_out(started: Path, shell: str) -> None:
    (started / sessions.ENVIRONMENT).write_bytes(sessions.pack({"PATH": "/usr/bin:/bin", "SHELL": shell}))
    done = run(started, SSH_ORIGINAL_COMMAND="echo $0 works")
    assert (done.stdout, done.stderr) == ("bash works\n", "")


def test_without_the_containers_environment_sshds_own_remains(tmp_path: Path) -> None:
    done = run(tmp_path, SSH_ORIGINAL_COMMAND="echo $HOME $USER", SSH_TTY="/dev/pts/0")
    assert (done.stdout, done.stderr) == ("/ dev\n", "")


def test_pipes_break_as_in_any_other_shell(started: Path) -> None:
    """Python ignores SIGPIPE; inherited, `yes` complains about a broken pipe."""
    done = run(started, SSH_ORIGINAL_COMMAND="yes | head -n 1; grep SigIgn /proc/self/status")
    assert done.stderr == ""
    assert done.stdout.startswith("y\nSigIgn:")
    assert ignored_by_python(done.stdout) == []


# ---- the last self-test, at login ----
GREETING = "self-test  pass, just now"


@pytest.fixture
def tested(started: Path, image: Path) -> Path:
    """A container whose self-test has passed."""
    report = image / "var/lib/torchtap/selftest.json"
    says = {"selftest": "warn", "report": str(report), "uid": os.getuid(), "gid": os.getgid()}
    (started / paths.STARTED).write_text(json.dumps(says))
    report.write_text('{"verdict": "pass", "first_cause": null, "results": []}')
    environment = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "HOME": str(image / "home/dev")}
    (started / sessions.ENVIRONMENT).write_bytes(sessions.pack(environment))
    return started


def on_a_terminal(run_directory: Path, **sshd: str) -> str:
    """What a terminal shows of a session whose user says `exit`."""
    script = (
        f"import sys; sys.path.insert(0, {str(DOCKER)!r})\n"
        "from pathlib import Path\nfrom entrypoint import paths, sessions\n"
        f"paths.RUN_CANDIDATES = (Path({str(run_directory)!r}),)\nsessions.main()\n"
    )
    ours, its = os.openpty()
    os.write(ours, b"exit\n")
    child = subprocess.Popen(
        [sys.executable, "-IS", "-c", script],
        env={"PATH": "/usr/bin:/bin", "SSH_TTY": os.ttyname(its), "TERM": "vt100", **sshd},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    child.wait(20)
    os.set_blocking(ours, False)
    shown = os.read(ours, 100_000).decode()
    os.close(its)
    os.close(ours)
    return shown


def test_a_login_begins_with_how_the_selftest_ended(tested: Path) -> None:
    assert on_a_terminal(tested).replace("exit\r\n", "").startswith(f"{GREETING}\r\n")


def test_a_command_is_not_greeted_not_even_on_a_terminal(tested: Path) -> None:
    """ssh -t host command, scp, rsync: nothing but what the command says."""
    assert on_a_terminal(tested, SSH_ORIGINAL_COMMAND="echo well").replace("exit\r\n", "") == "well\r\n"


def test_without_a_terminal_there_is_no_greeting(tested: Path) -> None:
    assert run(tested, typed="echo well\n").stdout == "well\n"


def test_hushlogin_in_the_home_silences_it(tested: Path, image: Path) -> None:
    (image / "home/dev" / sessions.HUSH).touch()
    assert GREETING not in on_a_terminal(tested)


@pytest.mark.parametrize(
    "broken", ["{", '{"selftest": "warn"}', '{"selftest": "warn", "report": 7, "uid": "x"}']
)
def test_a_greeting_that_fails_locks_nobody_out(tested: Path, broken: str) -> None:
    (tested / paths.STARTED).write_text(broken)
    said = on_a_terminal(tested)
    assert "Traceback" not in said
    assert "can be run here" not in said


def test_the_greeting_fits_the_terminal() -> None:
    lines = [("do", "On the host: end every process on it and reset it, or reboot the host " * 2)]
    for width in (0, 20, 80, 200):
        shown = sessions.message(lines, width)
        assert all(len(line) <= max(width or 80, 31) for line in shown)
        assert all(line.startswith(" " * sessions.MARGIN) for line in shown[1:])
