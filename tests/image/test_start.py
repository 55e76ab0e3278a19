"""What a started container does: roles, JupyterLab, SSH, commands, and what it says when something is wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import NO_KEY, OFF, Container, Run


@pytest.mark.every_variant
def test_jupyter_answers_with_the_token_and_refuses_without(shared: Container) -> None:
    assert shared.api("/api/status", shared.token)[0] == 200
    assert shared.api("/api/status", None)[0] == 403
    assert shared.api("/api/status", "0" * 48)[0] == 403


@pytest.mark.every_variant
def test_a_kernel_has_torch_and_torchtap(shared: Container) -> None:
    said = shared.kernel(
        "import torch, torchtap, sys; print(torch.__version__, torchtap.__version__, sys.prefix)"
    )
    assert re.fullmatch(r"2\.\d+\.\d+\+cu\d+ 0\.1\.0 /run/torchtap/env", said)


def test_token_is_in_no_log_and_on_no_command_line(shared: Container) -> None:
    token = shared.token
    assert len(token) == 48
    assert token not in shared.logs
    assert token not in shared.exec("ps", "axww", "-o", "args", root=True).stdout
    assert shared.exec("stat", "-c", "%a %U", "/var/lib/torchtap/jupyter-token").stdout.split() == [
        "600",
        "dev",
    ]
    assert "JUPYTER_TOKEN" not in shared.kernel("import os; print(sorted(os.environ))")


def test_url_command_prints_the_link(shared: Container) -> None:
    assert re.fullmatch(
        r"http://127\.0\.0\.1:8888/lab\?token=[0-9a-f]{48}\n", shared.exec("torchtap-url").stdout
    )


@pytest.mark.every_variant
def test_ssh_lets_the_key_in(shared: Container) -> None:
    assert shared.ssh("id -un; python -c 'import torch; print(torch.__version__[:2])'").stdout.split() == [
        "dev",
        "2.",
    ]


def test_ssh_refuses_passwords_and_unknown_keys(shared: Container, tmp_path: Path) -> None:
    """Other than the key there is no way in, and the server does not even offer one."""
    offered = shared.ssh(
        "true", options=("-o", "PreferredAuthentications=password,keyboard-interactive"), check=False
    )
    assert offered.returncode == 255
    assert "Permission denied (publickey)" in offered.stderr
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    refused = Container(shared.engine, shared.id, other).ssh("true", check=False)
    assert "Permission denied (publickey)" in refused.stderr


@pytest.mark.parametrize("name", ["root", "nobody", "torchtap"])
def test_ssh_knows_no_user_but_dev(shared: Container, name: str) -> None:
    refused = shared.ssh("true", user=name, check=False)
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr


def test_scp_and_sftp_work(shared: Container, tmp_path: Path) -> None:
    sent = tmp_path / "sent.bin"
    sent.write_bytes(bytes(range(256)) * 100)
    common = [
        "-i",
        str(shared.key),
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-q",
    ]
    for extra in ([], ["-O"]):  # SFTP and the old protocol
        command = [
            "scp",
            *extra,
            *common,
            "-P",
            str(shared.port(22)),
            str(sent),
            "dev@127.0.0.1:/workspace/got.bin",
        ]
        subprocess.run(command, check=True, timeout=60)
        assert shared.exec("md5sum", "/workspace/got.bin").stdout[:32] == _md5(sent)


def _md5(path: Path) -> str:
    return subprocess.run(["md5sum", str(path)], capture_output=True, text=True, check=True).stdout[:32]


def test_health_names_what_answers(shared: Container) -> None:
    health = shared.state(".State.Health")
    assert health["Status"] == "healthy"
    said = health["Log"][-1]["Output"].strip()
    assert re.fullmatch(r"sshd: answers; jupyter: answers, kernels: \d+; gpu: none.*", said), said


def test_without_a_key_sshd_stays_off_and_the_log_prints_the_option(run: Run) -> None:
    container = run(allow=(NO_KEY,)).wait_healthy()
    assert (
        'JupyterLab runs as usual. For SSH add:  -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"'
        in container.logs
    )
    assert "sshd" not in container.exec("ps", "axo", "args", root=True).stdout
    assert container.api("/api/status", container.token)[0] == 200


def test_a_malformed_key_is_named_and_jupyter_starts(run: Run) -> None:
    container = run(
        env={"SSH_PUBLIC_KEY": "ssh-ed25519 AAAAC3NzaC1"},
        allow=(NO_KEY, "ERROR   ssh: SSH_PUBLIC_KEY line 1"),
    )
    container.wait_healthy()
    assert "the key is cut off or damaged" in container.logs


def test_a_private_key_given_by_mistake_is_never_shown(run: Run, ssh_key: Path) -> None:
    private = ssh_key.read_text()
    container = run(
        env={"SSH_PUBLIC_KEY": private}, allow=(NO_KEY, "ERROR   ssh: SSH_PUBLIC_KEY holds a private key")
    )
    container.wait_healthy()
    assert private.splitlines()[1] not in container.logs
    assert "Give the file that ends in .pub" in container.logs


def test_host_key_is_made_once_and_differs_between_containers(run: Run) -> None:
    first, second = (run(key=True, env=OFF).wait_healthy() for _ in range(2))
    keys = [
        c.exec("cat", "/var/lib/torchtap/ssh/ssh_host_ed25519_key.pub", root=True).stdout
        for c in (first, second)
    ]
    token = first.token
    assert keys[0] != keys[1]
    first.engine.docker("restart", first.id)
    first.wait_healthy()
    assert first.exec("cat", "/var/lib/torchtap/ssh/ssh_host_ed25519_key.pub", root=True).stdout == keys[0]
    assert first.token == token


def test_role_jupyter_runs_no_sshd(run: Run) -> None:
    container = run("jupyter", key=True, env=OFF).wait_healthy()
    assert "sshd" not in container.exec("ps", "axo", "args", root=True).stdout


def test_role_ssh_runs_no_jupyter(run: Run) -> None:
    container = run("ssh", key=True, env=OFF).wait_healthy()
    assert "jupyter" not in container.exec("ps", "axo", "args", root=True).stdout
    assert container.ssh("echo hello").stdout == "hello\n"


def test_role_ssh_without_a_key_ends_with_the_remedy(engine: Engine, image: str) -> None:
    done = engine.docker("run", "--rm", image, "ssh", check=False)
    assert done.returncode == 2
    assert 'Add: -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"' in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("/etc/passwd",), 126),
    ],
    ids=["success", "own exit code", "killed", "not executable"],
)
def test_exit_code_of_a_command_is_kept(
    engine: Engine, image: str, words: tuple[str, ...], code: int
) -> None:
    assert engine.docker("run", "--rm", image, *words, check=False).returncode == code


@pytest.mark.every_variant
def test_a_command_runs_as_dev_in_the_workspace(engine: Engine, image: str) -> None:
    said = engine.docker(
        "run", "--rm", image, "sh", "-c", "id -un; pwd; echo $HOME; which python"
    ).stdout.split()
    assert said == ["dev", "/workspace", "/home/dev", "/opt/torchtap/bin/python"]


@pytest.mark.parametrize(
    ("word", "near"), [("jupiter", "jupyter"), ("selftset", "selftest"), ("pyhton", "python")]
)
def test_an_unknown_word_ends_127_with_the_nearest(engine: Engine, image: str, word: str, near: str) -> None:
    done = engine.docker("run", "--rm", image, word, check=False)
    assert done.returncode == 127
    assert f"did you mean {near}?" in done.stderr
    assert "Traceback" not in done.stderr


def test_role_word_with_more_words_is_a_command(engine: Engine, image: str) -> None:
    assert re.match(r"\d+\.\d+", engine.docker("run", "--rm", image, "jupyter", "lab", "--version").stdout)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "TORCHTAP_SELFTEST",
            "stric",
            "TORCHTAP_SELFTEST is 'stric': one of warn, strict, off (did you mean strict?)",
        ),
        ("HOST_UID", "me", "HOST_UID is 'me': a numeric id, such as 1000 (id -u prints yours)"),
        ("TORCHTAP_STOP_GRACE", "soon", "TORCHTAP_STOP_GRACE is 'soon': seconds, such as 10"),
    ],
)
def test_an_unusable_variable_ends_2_in_one_line(
    engine: Engine, image: str, name: str, value: str, says: str
) -> None:
    done = engine.docker("run", "--rm", "-e", f"{name}={value}", image, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == f"ERROR   start: {says}"


def test_a_workspace_that_cannot_be_written_is_named_with_the_chown_line(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    (folder / "train.py").write_text("")
    container = run(
        options=("-v", f"{folder}:/workspace"),
        env={"HOST_UID": "1234", "HOST_GID": "1234", "TORCHTAP_SELFTEST": "off"},
        allow=(
            NO_KEY,
            r"WARNING workspace: /workspace cannot be written by uid 1234, gid 1234 \(from HOST_UID\)",
        ),
    )
    container.wait_healthy()
    assert "sudo chown -R 1234:1234 FOLDER" in container.logs


def test_a_folder_that_docker_made_as_root_becomes_the_users(run: Run, tmp_path: Path) -> None:
    """`docker compose up` in a fresh clone: ./workspace does not exist yet, and Docker makes it as root."""
    missing = tmp_path / "missing"
    container = run(key=True, options=("-v", f"{missing}:/workspace"), env=OFF).wait_healthy()
    container.ssh("touch /workspace/mine")
    assert (missing.stat().st_uid, (missing / "mine").stat().st_uid) == (1000, 1000)


def test_jupyterlab_neither_asks_for_news_nor_checks_for_builds(shared: Container) -> None:
    settings = shared.api("/lab/api/settings/@jupyterlab/apputils-extension:notification", shared.token)[1]
    assert settings["schema"]["properties"]["fetchNews"]["default"] == "false"
    page = shared.exec(
        "curl", "-sf", "-H", f"Authorization: token {shared.token}", "http://127.0.0.1:8888/lab"
    ).stdout
    assert '"buildCheck": false' in page


def test_it_starts_below_dockers_own_init(run: Run) -> None:
    run(key=True, env=OFF, options=("--init",)).wait_healthy()
