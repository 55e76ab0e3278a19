"""The same environment in five places: docker exec, SSH logins, `ssh host command`, Jupyter's terminals and kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import KEPT, Container, Run, containers, wait_until

# What people put into variables. Each must arrive byte for byte; what stands in a value is never run.
AWKWARD = {
    "TT_PLAIN": "a b  c ",
    "TT_QUOTES": "it's \"so\" 'so'",
    "TT_DOLLAR": "$HOME ${HOME} $1 $$",
    "TT_BACKTICKS": "`touch /workspace/was-run`",
    "TT_COMMAND": "$(touch /workspace/was-run)",
    "TT_SYNTAX": "a; touch /workspace/was-run & | > < * ? ! # ~ \\ \\n %s",
    "TT_LINES": "one\ntwo\n\nPATH=/four\nexport X=1\n",
    "TT_TABS": "\ta\tb\r",
    "TT_NOT_ASCII": "Grüße, 世界 ✓ \u00a0",
    "TT_EMPTY": "",
    "TT_EQUALS": "=a=b=",
    "TT_LONG": "x y\n" * 25_000,
    "TT.DOT": "a name with a dot",
    "tt-dash": "a name with a dash",
    "BASH_ENV": "/workspace/never-read",
    "LD_LIBRARY_PATH": "/workspace/lib:/opt/my lib",
}
SECRET = {"JUPYTER_TOKEN": "kept-out-of-sessions"}
DUMP = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))\n"
# What belongs to one place, and differs there by its nature: from the shell, from sshd, from Jupyter and its terminal.
SHELL = {"SHLVL", "PWD", "OLDPWD", "_", "LS_COLORS", "COLUMNS", "LINES"}
OWN = {
    "docker exec": {"HOSTNAME", *SECRET},
    "login": {"SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TERM"},
    "command": {"SSH_CLIENT", "SSH_CONNECTION"},
    "terminal": {"TERM", "JUPYTER_SERVER_ROOT", "JUPYTER_SERVER_URL", "PYXTERM_DIMENSIONS"},
    "kernel": {
        "JPY_PARENT_PID",
        "JPY_SESSION_NAME",
        "PYDEVD_USE_FRAME_EVAL",
        "TERM",
        "CLICOLOR",
        "CLICOLOR_FORCE",
    }
    | {"FORCE_COLOR", "PAGER", "GIT_PAGER", "MPLBACKEND"},
}
TERMINAL_CLIENT = """
import asyncio, json, tornado.websocket
async def main():
    url = "ws://127.0.0.1:8888/terminals/websocket/{name}?token={token}"
    connection = await tornado.websocket.websocket_connect(url)
    await connection.write_message(json.dumps(["stdin", {typed!r} + chr(10)]))
    await asyncio.sleep(1)
    connection.close()
asyncio.run(main())
"""


def docker_exec(container: Container, file: str) -> None:
    container.exec("python", "/workspace/dump.py", file)


def login(container: Container, file: str) -> None:
    container.ssh(options=("-tt",), input=f"python /workspace/dump.py {file}; exit\n")


def command(container: Container, file: str) -> None:
    container.ssh(f"python /workspace/dump.py {file}")


def terminal(container: Container, file: str) -> None:
    status, made = container.api("/api/terminals", container.token, "POST")
    assert status == 200
    typed = f"python /workspace/dump.py {file}"
    container.python(TERMINAL_CLIENT.format(name=made["name"], token=container.token, typed=typed))


def kernel(container: Container, file: str) -> None:
    container.kernel(f"import sys; sys.argv[1:] = ['{file}']\n{DUMP}")


PLACES: dict[str, Callable[[Container, str], None]] = {
    "docker exec": docker_exec,
    "login": login,
    "command": command,
    "terminal": terminal,
    "kernel": kernel,
}


@pytest.fixture(scope="module")
def awkward(engine: Engine, image: str, ssh_key: Path) -> Iterator[Container]:
    """A container whose variables are as awkward as an environment allows."""
    with containers(engine, image, ssh_key) as start:
        env = {**AWKWARD, **SECRET, "TORCHTAP_SELFTEST": "off"}
        container = start(key=True, env=env).wait_healthy()
        container.ssh("cat >/workspace/dump.py", input=DUMP)
        yield container


@pytest.fixture(scope="module")
def seen(awkward: Container) -> dict[str, dict[str, str]]:
    """Place: the whole environment there, less what a shell adds."""
    found = {}
    for place, ask in PLACES.items():
        file = f"/workspace/{place.replace(' ', '-')}.json"
        ask(awkward, file)

        def whole(file: str = file) -> bool:
            return awkward.exec("tail", "-c1", file, check=False).stdout == "}"

        wait_until(whole, 30, lambda place=place: f"no answer from {place}\n{awkward.logs}")  # type: ignore[misc]
        environment = json.loads(awkward.exec("cat", file).stdout)
        found[place] = {name: value for name, value in environment.items() if name not in SHELL}
    return found


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("place", PLACES)
def test_c1_c2_a_variable_arrives_byte_for_byte(
    seen: dict[str, dict[str, str]], place: str, name: str
) -> None:
    """runpod/containers#70, #101: missing, cut off at a line end or a quote, or run."""
    assert seen[place].get(name) == AWKWARD[name]


def test_c2_no_value_was_evaluated_anywhere(seen: dict[str, dict[str, str]], awkward: Container) -> None:
    assert set(seen) == set(PLACES)
    assert "was-run" not in awkward.exec("ls", "/workspace").stdout


@pytest.mark.parametrize("place", ["login", "command", "terminal", "kernel"])
def test_the_places_differ_in_nothing_but_what_is_their_own(
    seen: dict[str, dict[str, str]], place: str
) -> None:
    """Beyond the user's variables: PATH, HOME, and whatever start has computed."""
    reference = {k: v for k, v in seen["command"].items() if k not in OWN["command"]}
    here = {k: v for k, v in seen[place].items() if k not in OWN[place] or k in reference}
    assert here == reference


def test_docker_exec_differs_only_in_what_start_computes(seen: dict[str, dict[str, str]]) -> None:
    """Docker knows what the user and the image have set; docs/ssh.md lists the rest."""
    by_docker, by_start = seen["docker exec"], seen["command"]
    shared = by_docker.keys() - OWN["docker exec"]
    assert {name: by_start.get(name) for name in shared} == {name: by_docker[name] for name in shared}
    computed = by_start.keys() - by_docker.keys() - OWN["command"]
    page = (Path(__file__).parents[2] / "docs/ssh.md").read_text()
    assert [name for name in sorted(computed) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("place", ["login", "command", "terminal", "kernel"])
def test_secrets_are_left_out(seen: dict[str, dict[str, str]], place: str) -> None:
    assert not SECRET.keys() & seen[place].keys()
    assert not [name for name, value in seen[place].items() if SECRET["JUPYTER_TOKEN"] in value]


def test_c3_the_library_path_reaches_every_place(seen: dict[str, dict[str, str]]) -> None:
    assert {seen[place]["LD_LIBRARY_PATH"] for place in PLACES} == {AWKWARD["LD_LIBRARY_PATH"]}


def test_c4_path_is_the_same_in_every_shell(awkward: Container) -> None:
    """/etc/profile of the distribution sets it anew for login shells."""
    expected = awkward.exec("sh", "-c", "echo $PATH").stdout
    assert expected.startswith("/opt/torchtap/bin:")
    assert expected.endswith(":/run/torchtap/env/bin:/opt/torchtap/overlay/bin:/opt/torchtap/venv/bin\n")
    assert ":/usr/bin:" in expected, "where the NVIDIA runtime puts nvidia-smi"
    for shell in ("bash -lc", "sh -lc", "bash -ic", "tmux new-session -d 'bash -l'; bash -lc"):
        assert awkward.ssh(f"{shell} 'echo $PATH' 2>/dev/null").stdout == expected, shell


def test_a_login_shell_in_tmux_keeps_path_and_what_was_added(awkward: Container) -> None:
    """An environment that is active when tmux starts stays so in its windows, which are login shells."""
    awkward.ssh(
        "PATH=/workspace/mine:$PATH tmux -L path new-session -d 'bash -lc \"echo \\$PATH >/workspace/path\"'"
    )
    wait_until(lambda: awkward.exec("cat", "/workspace/path", check=False).stdout, 20, lambda: "no path")
    given = awkward.ssh("echo $PATH").stdout
    assert awkward.exec("cat", "/workspace/path").stdout == f"/workspace/mine:{given}"


def test_su_gets_the_images_path_too(awkward: Container) -> None:
    """It begins with an empty environment, so only what start has written can tell."""
    path = awkward.exec("su", "-l", "dev", "-c", "echo $PATH", root=True).stdout
    assert path == awkward.ssh("echo $PATH").stdout


def test_login_shells_have_the_path_where_only_tmp_can_be_written(run: Run) -> None:
    """`--read-only --tmpfs /tmp`: the run directory is in /tmp then."""
    options = ("--read-only", "--tmpfs", "/tmp:mode=1777", *KEPT, "-v", "/workspace")
    container = run(
        key=True,
        options=options,
        env={"TORCHTAP_SELFTEST": "off"},
        allow=(r"WARNING ssh: not started: /run/torchtap cannot be written",),
    ).wait_healthy()
    for shell in ("bash", "sh"):
        # By number: Docker itself looks the name up in /etc/passwd, which is read-only.
        command = ("exec", "-u", "1000:1000", container.id, shell, "-lc", "command -v python; echo $PATH")
        path = container.engine.docker(*command).stdout
        assert path.startswith("/opt/torchtap/bin/python\n/opt/torchtap/bin:"), path


def test_groups_given_by_option_are_in_every_session(run: Run) -> None:
    """--group-add for a data directory or a device: sshd asks the account files, not the container."""
    options = ("--group-add", "44", "--group-add", "33333")
    container = run(key=True, options=options, env={"TORCHTAP_SELFTEST": "off"}).wait_healthy()
    for groups in (container.ssh("id -G").stdout, container.kernel("import os; print(*os.getgroups())")):
        assert {"44", "33333"} <= set(groups.split()), groups
    assert "44(video)" in container.ssh("id").stdout, "a group that has a name keeps it"


def test_a_command_gets_the_same_environment(engine: Engine, image: str) -> None:
    env = [f"--env={name}={value}" for name, value in AWKWARD.items()]
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    said = engine.docker(
        "run", "--rm", *env, "-e", "JUPYTER_TOKEN=kept-out", image, "python", "-c", code
    ).stdout
    environment = json.loads(said)
    assert {name: environment.get(name) for name in AWKWARD} == AWKWARD
    assert "JUPYTER_TOKEN" not in environment
