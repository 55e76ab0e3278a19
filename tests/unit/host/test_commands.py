"""down, url, logs, status, shell, ssh and clean, with a fake docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import Checkout, Fake
from tests.unit.host.test_keys import key
from tests.unit.host.test_up import flat

RUNS = {"when": "^compose ps", "out": "c0ffee\n"}


@pytest.fixture
def running(checkout: Checkout) -> Fake:
    return checkout.fake("docker").answer(*fake.engine(RUNS))


@pytest.fixture
def idle(checkout: Checkout) -> Fake:
    return checkout.fake("docker").answer(*fake.engine())


def test_down_removes_the_container_and_says_what_stays(checkout: Checkout, running: Fake) -> None:
    done = checkout.run("down")
    assert done.returncode == 0, done.stderr
    assert running.called("^compose down$")
    assert "stopped the container is removed; workspace, home, keys and token stay" in flat(done.stdout)


def test_down_with_nothing_running_is_fine(checkout: Checkout, idle: Fake) -> None:
    done = checkout.run("down")
    assert (done.returncode, flat(done.stdout)) == (0, "stopped nothing ran here")
    assert not idle.called("compose down")


def test_down_also_removes_a_container_that_ended(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(RUNS, inspect=fake.container("exited")))
    assert checkout.run("down").returncode == 0
    assert docker.called("^compose down$")


def test_url_prints_nothing_but_the_link_with_the_published_port(checkout: Checkout, running: Fake) -> None:
    done = checkout.run("url")
    assert done.stdout == f"http://127.0.0.1:48888/lab?token={fake.TOKEN}\n"


@pytest.mark.parametrize(
    ("address", "shown"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("192.168.1.5", "192.168.1.5")]
)
def test_url_names_an_address_that_one_can_connect_to(checkout: Checkout, address: str, shown: str) -> None:
    container = fake.container()
    container["NetworkSettings"]["Ports"]["8888/tcp"][0]["HostIp"] = address
    checkout.fake("docker").answer(*fake.engine(RUNS, inspect=container))
    assert checkout.run("url").stdout.startswith(f"http://{shown}:48888/lab?token=")


def test_url_keeps_scheme_base_url_and_port_of_the_users_own(checkout: Checkout) -> None:
    """images.md 29, docker-stacks#1698, #1709, #1817: TLS, base_url and port set in ~/.jupyter."""
    container = fake.container()
    container["NetworkSettings"]["Ports"]["9999/tcp"] = [{"HostIp": "127.0.0.1", "HostPort": "49999"}]
    said = {
        "when": "exec .*-e JUPYTER_PORT= .*torchtap-url",
        "out": "https://127.0.0.1:9999/my/lab?token=t\n",
    }
    checkout.fake("docker").answer(*fake.engine(RUNS, said, inspect=container))
    assert checkout.run("url").stdout == "https://127.0.0.1:49999/my/lab?token=t\n"


def test_url_of_a_port_that_is_not_published_says_how_to_publish_it(checkout: Checkout) -> None:
    said = {"when": "torchtap-url", "out": "http://127.0.0.1:9999/lab?token=t\n"}
    checkout.fake("docker").answer(*fake.engine(RUNS, said))
    done = checkout.run("url")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "url: JupyterLab listens on port 9999 in the container, which is not published\n"
    )
    assert 'ports: ["127.0.0.1:9999:9999"]' in done.stderr


def test_url_without_jupyter_tells_why(checkout: Checkout) -> None:
    words = "torchtap-url: JupyterLab does not run in this container (role ssh)\n"
    checkout.fake("docker").answer(*fake.engine(RUNS, {"when": "torchtap-url", "rc": 1, "err": words}))
    done = checkout.run("url")
    assert done.returncode == 1
    assert done.stderr.startswith("url: JupyterLab does not run in this container (role ssh)\n")


@pytest.mark.parametrize("name", ["url", "shell", "ssh"])
def test_what_needs_something_running_says_how_to_start_it(checkout: Checkout, idle: Fake, name: str) -> None:
    done = checkout.run(name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: nothing runs here")
    assert "make up" in done.stderr


def test_no_permission_is_not_taken_for_nothing_running(checkout: Checkout) -> None:
    denied = json.dumps({"ServerErrors": ["permission denied while trying to connect"]})
    checkout.fake("docker").answer({"when": "^info", "out": denied, "rc": 1})
    done = checkout.run("status")
    assert done.returncode == 2
    assert "this user may not use it" in done.stderr


@pytest.mark.parametrize("name", ["down", "status", "url", "logs", "shell", "ssh", "up"])
def test_a_compose_that_fails_is_not_taken_for_nothing_running(checkout: Checkout, name: str) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(fake.BROKEN))
    done = checkout.run(name)
    assert done.returncode == 2
    reason = "failed to read .env: required variable UNSET is missing a value: boo"
    assert done.stderr.startswith(f"{name}: Compose cannot ")
    assert done.stderr.splitlines()[0].endswith(f": {reason}")
    assert "noth" not in done.stdout
    assert not docker.called("^(run|compose (build|up|down))")
    assert not (checkout.root / "workspace").exists()
    assert not (checkout.root / ".env").exists()


def test_an_engine_that_does_not_answer_for_the_container_is_not_taken_for_none(checkout: Checkout) -> None:
    trouble = {"when": "^inspect", "rc": 1, "err": "error during connect: EOF\n"}
    checkout.fake("docker").answer(*fake.engine(RUNS, trouble))
    done = checkout.run("down")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Docker cannot say how the container c0ffee is: error during connect: EOF" in done.stderr


def test_a_container_that_vanished_between_two_looks_is_none(checkout: Checkout) -> None:
    gone = {"when": "^inspect", "rc": 1, "out": "[]\n", "err": "Error: No such object: c0ffee\n"}
    checkout.fake("docker").answer(*fake.engine(RUNS, gone))
    assert flat(checkout.run("status").stdout) == "status nothing runs here. Start it: make up"


def test_logs_are_those_of_the_container(checkout: Checkout, running: Fake) -> None:
    done = checkout.run("logs")
    assert done.stdout == "the last words\n"
    assert running.called("^logs --tail 200 c0ffee$")  # not followed: stdout is no terminal


def test_status_tells_health_ports_and_verdict(checkout: Checkout) -> None:
    container = fake.container(output="jupyter: answers, kernels: 2; sshd: answers")
    container["HostConfig"]["DeviceRequests"] = [{"Driver": "nvidia", "Count": -1}]
    container["Mounts"] = [{"Destination": "/workspace", "Source": "/home/me/code"}]
    checkout.fake("docker").answer(*fake.engine(RUNS, inspect=container))
    done = checkout.run("status")
    assert done.returncode == 0
    said = flat(done.stdout)
    assert "docker torchtap-dev-1: running, healthy jupyter: answers, kernels: 2; sshd: answers" in said
    assert "image torchtap:cu130, with GPU" in said
    assert "jupyter port 48888 on 127.0.0.1 ssh port 42222 on 127.0.0.1 workspace /home/me/code" in said
    assert "selftest pass" in said
    assert fake.TOKEN not in done.stdout


def test_status_of_a_container_that_ended(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine(RUNS, inspect=fake.container("exited")))
    assert "exited, healthy exit code 1. Its log: make logs" in flat(checkout.run("status").stdout)


def test_status_of_nothing(checkout: Checkout, idle: Fake) -> None:
    done = checkout.run("status")
    assert (done.returncode, flat(done.stdout)) == (0, "status nothing runs here. Start it: make up")


def test_shell_is_the_containers_user_with_the_environment_of_its_sessions(
    checkout: Checkout, running: Fake
) -> None:
    done = checkout.run("shell")
    assert done.stdout == "in the container\n"
    assert running.called("^compose exec --user 1000:1001 -T dev /opt/torchtap/bin/session$")


def test_shell_runs_a_command_with_its_words_as_they_are(checkout: Checkout, running: Fake) -> None:
    assert checkout.run("shell", "python", "-c", "print('a b')").returncode == 0
    (call,) = [call for call in running.calls if "exec" in call and "--env" in call]
    assert call[call.index("--env") + 1] == """SSH_ORIGINAL_COMMAND=python -c 'print('"'"'a b'"'"')'"""


def test_ssh_knows_the_host_key_beforehand(checkout: Checkout, running: Fake) -> None:
    ssh = checkout.fake("ssh").answer({"when": "", "out": "logged in\n"})
    done = checkout.run("ssh", "nvidia-smi")
    assert done.stdout == "logged in\n"
    (call,) = ssh.calls
    assert call[-4:] == ["-p", "42222", "dev@127.0.0.1", "nvidia-smi"]
    assert "StrictHostKeyChecking=yes" in call
    known = next(word.partition("=")[2] for word in call if word.startswith("UserKnownHostsFile="))
    assert Path(known).read_text() == "torchtap ssh-ed25519 AAAA\n"


def test_ssh_uses_the_private_twin_of_the_key_that_up_was_given(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine())
    ssh = checkout.fake("ssh").answer({"when": "", "out": "logged in\n"})
    folder = checkout.root / "keys"
    folder.mkdir()
    (folder / "mine.pub").write_text(key())
    (folder / "mine").touch()
    ports = {"JUPYTER_PORT": "48888", "SSH_PORT": "42222"}
    up = checkout.run("up", env={"SSH_KEY": "keys/mine.pub", **ports})
    assert up.returncode == 0, up.stderr
    assert checkout.run("ssh").stdout == "logged in\n"
    call = ssh.calls[-1]
    assert call[call.index("-i") + 1] == str(folder / "mine")

    assert checkout.run("up", env=ports).returncode == 0  # another choice: the old one is forgotten
    assert checkout.run("ssh").returncode == 0
    assert "-i" not in ssh.calls[-1]


@pytest.mark.parametrize(("rc", "hint"), [(255, True), (1, False), (0, False)])
def test_ssh_that_fails_without_a_known_key_says_how_to_name_one(
    checkout: Checkout, running: Fake, rc: int, hint: bool
) -> None:
    checkout.fake("ssh").answer({"when": "", "rc": rc})
    done = checkout.run("ssh")
    assert done.returncode == rc
    assert ("make ssh SSH_KEY=FILE.pub" in done.stderr) is hint


def test_ssh_that_is_not_installed_is_said_with_the_command_for_elsewhere(
    checkout: Checkout, running: Fake
) -> None:
    done = checkout.run("ssh")
    assert done.returncode == 127
    assert done.stderr.startswith("ssh: ssh is not installed on this machine\n  It would be:  ssh -o ")


def test_ssh_without_sshd_says_how_to_get_it(checkout: Checkout) -> None:
    started = {"when": "started.json", "out": '{"uid": 1, "gid": 1, "services": ["jupyter"]}'}
    checkout.fake("docker").answer(*fake.engine(RUNS, started))
    done = checkout.run("ssh")
    assert done.returncode == 2
    assert done.stderr.startswith("ssh: SSH is off in this container: it was started without a public key\n")


def test_ssh_in_local_mode_says_why_not(checkout: Checkout) -> None:
    done = checkout.run("ssh", env={"MODE": "local"})
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "ssh: local mode has no SSH: it runs on this machine already",
    )


def test_clean_takes_caches_and_nothing_of_the_users(checkout: Checkout) -> None:
    for name in (
        "src/torchtap/__pycache__/x.pyc",
        ".mypy_cache/x",
        "workspace/.mypy_cache/x",
        ".venv/__pycache__/x",
    ):
        path = checkout.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert checkout.run("clean").returncode == 0
    left = {str(path.relative_to(checkout.root)) for path in checkout.root.rglob("x*")}
    assert left == {"workspace/.mypy_cache/x", ".venv/__pycache__/x"}


def test_clean_all_does_not_pull_the_rug_from_under_what_runs(checkout: Checkout, running: Fake) -> None:
    done = checkout.run("clean", "--all")
    assert done.returncode == 2
    assert "First:  make down" in done.stderr


def test_clean_all_removes_the_images_of_the_name_that_is_set_and_no_volume(checkout: Checkout) -> None:
    listed = {"when": r"^image ls --quiet --filter reference=mine:\*$", "out": "aaaa\nbbbb\n"}
    docker = checkout.fake("docker").answer(*fake.engine(listed, {"when": "^image rm aaaa bbbb$"}))
    done = checkout.run("clean", "--all", env={"TORCHTAP_IMAGE": "mine"})
    assert done.returncode == 0, done.stderr
    assert docker.called("^image rm aaaa bbbb$")
    assert not docker.called("volume")
    assert "To remove them too: make purge" in flat(done.stdout)


@pytest.mark.parametrize("name", ["up", "down", "url", "status", "logs", "build", "preflight"])
def test_a_word_that_is_no_variable_is_refused(checkout: Checkout, idle: Fake, name: str) -> None:
    done = checkout.run(name, "gpu")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"{name}: 'gpu' is not understood: give variables, as in `make up MODE=cpu`\n"
    )


@pytest.mark.parametrize("name", ["up", "down", "status", "url"])
def test_a_container_of_another_checkout_is_not_taken_for_ours(checkout: Checkout, name: str) -> None:
    """compose.yaml names the project: two checkouts on one host would replace and stop each other's container."""
    other = checkout.root.parent / "other"
    other.mkdir()
    container = fake.container()
    container["Config"]["Labels"] = {"com.docker.compose.project.working_dir": str(other)}
    docker = checkout.fake("docker").answer(*fake.engine(RUNS, inspect=container))
    done = checkout.run(name)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"{name}: a container of another checkout has this project's name: {other}\n"
    )
    assert "COMPOSE_PROJECT_NAME=another" in done.stderr
    assert not docker.called("^compose (up|down|build)")


def test_a_checkout_that_was_renamed_still_finds_its_container(checkout: Checkout) -> None:
    container = fake.container()
    container["Config"]["Labels"] = {
        "com.docker.compose.project.working_dir": str(checkout.root.parent / "old")
    }
    docker = checkout.fake("docker").answer(*fake.engine(RUNS, inspect=container))
    assert checkout.run("down").returncode == 0
    assert docker.called("^compose down$")
