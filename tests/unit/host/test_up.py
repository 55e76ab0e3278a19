"""`make up` in Docker, with a fake docker: what is chosen, said, called and left behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.host import dockerlike as fake
from tests.unit.host.checkout import Checkout
from tests.unit.host.test_keys import key

SMI = {
    "when": "query-gpu",
    "out": "0, GPU-aa, NVIDIA H200, 590.48.01, 9.0\n1, GPU-bb, NVIDIA H200, 590.48.01, 9.0\n",
}


@pytest.fixture(autouse=True)
def ports(checkout: Checkout) -> None:
    """Ports that are free here, and those that the fake container publishes."""
    checkout.env.update(JUPYTER_PORT="48888", SSH_PORT="42222")


def flat(text: str) -> str:
    """A text without its line breaks and columns."""
    return " ".join(text.split())


def test_a_gpu_host_gets_the_gpu_and_all_that_is_needed_to_get_in(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(fake.gpu()))
    checkout.fake("nvidia-smi").answer(SMI)
    (checkout.home / ".ssh").mkdir()
    (checkout.home / ".ssh/id_ed25519.pub").write_text(key() + " my-laptop\n")
    done = checkout.run("up")
    assert done.returncode == 0, done.stdout + done.stderr
    said = flat(done.stdout)
    assert "host 2 x NVIDIA H200 (9.0), driver 590.48.1" in said
    assert "mode gpu: if Docker hands one out (a container will tell), else cpu" in said
    assert "variant cu130, PyTorch 2.14.1: fits 2 x NVIDIA H200" in said
    assert "ssh 1 public key: ~/.ssh/id_ed25519.pub" in said
    assert "gpu Docker hands it out (--gpus): GPU 0: NVIDIA H200" in said
    assert "selftest pass: 1 passed" in said
    assert f"jupyter http://127.0.0.1:48888/lab?token={fake.TOKEN}" in said
    assert said.endswith("ssh ssh -p 42222 dev@127.0.0.1")
    env = docker.environment_of("^compose up")
    assert env["COMPOSE_FILE"] == "compose.yaml"
    assert env["VARIANT"] == "cu130"
    assert env["SSH_PUBLIC_KEY"] == key()
    assert env["JUPYTER_PORT"] == "48888"
    assert docker.called("^compose up --detach --no-build dev$")
    assert (checkout.root / "workspace").is_dir()
    assert "my-laptop" not in (checkout.root / ".env").read_text()


def test_a_host_without_a_gpu_gets_the_cpu_and_the_reason(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("up")
    assert done.returncode == 0, done.stderr
    said = flat(done.stdout)
    assert 'mode cpu after all; Docker hands out no GPU: could not select device driver "nvidia"' in said
    assert "no public key in ~/.ssh and none in an SSH agent: SSH stays off" in said
    assert docker.environment_of("^compose up")["COMPOSE_FILE"] == "compose.yaml:compose.cpu.yaml"
    assert "SSH_PUBLIC_KEY" not in docker.environment_of("^compose up")
    assert said.endswith("ssh off, without a key. Make a pair (ssh-keygen -t ed25519), then make up")


def test_none_as_a_key_is_said_as_a_choice(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    (checkout.home / ".ssh").mkdir()
    (checkout.home / ".ssh/id_ed25519.pub").write_text(key())
    done = checkout.run("up", env={"SSH_KEY": "none", "SSH_PUBLIC_KEY": key()})
    assert done.stdout.endswith("ssh       off, as SSH_KEY=none asks\n")
    assert "SSH_PUBLIC_KEY" not in docker.environment_of("^compose up")


def test_cdi_is_taken_where_gpus_is_refused(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(
        *fake.engine({"when": "^run .*--device nvidia.com/gpu=all", "out": "GPU 0: X\n"})
    )
    done = checkout.run("up")
    assert done.returncode == 0, done.stderr
    assert "Docker hands it out (CDI): GPU 0: X" in flat(done.stdout)
    assert docker.environment_of("^compose up")["COMPOSE_FILE"] == "compose.yaml:compose.cdi.yaml"


def test_mode_gpu_does_not_settle_for_less(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("up", env={"MODE": "gpu"})
    assert done.returncode == 1
    assert 'up: Docker cannot hand out the GPU: could not select device driver "nvidia"' in done.stderr
    assert "make up MODE=cpu" in done.stderr
    assert not docker.called("^compose up")
    assert not (checkout.root / ".env").exists()


def test_more_gpus_than_there_are_is_said_as_a_number(checkout: Checkout) -> None:
    words = "docker: Error response from daemon: x\nnvidia-container-cli: device error: 8: unknown device: unknown.\n"
    checkout.fake("docker").answer(*fake.engine({"when": "^run .*--gpus 9", "rc": 125, "err": words}))
    done = checkout.run("up", env={"GPUS": "count=9"})
    assert done.returncode == 1
    assert "  GPUS=count=9 asks for 9 GPUs, there are fewer; on the host:  nvidia-smi -L\n" in done.stderr


@pytest.mark.parametrize("mode", ["gpu", "cpu"])
def test_a_device_that_docker_would_not_hear_of_is_not_ignored_in_silence(
    checkout: Checkout, mode: str
) -> None:
    checkout.fake("docker").answer(*fake.engine(fake.gpu()))
    done = checkout.run("up", env={"MODE": mode, "TORCHTAP_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    assert "warning TORCHTAP_DEVICE=cpu is not heeded: in Docker MODE sets it" in flat(done.stdout)
    assert "TORCHTAP_DEVICE" not in checkout.run("up", env={"MODE": mode}).stdout


def test_mode_cpu_asks_for_no_gpu(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(fake.gpu()))
    assert checkout.run("up", env={"MODE": "cpu"}).returncode == 0
    assert not docker.called("^run ")
    assert docker.environment_of("^compose up")["COMPOSE_FILE"] == "compose.yaml:compose.cpu.yaml"


def test_several_gpus_go_into_an_override_file(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(fake.gpu()))
    checkout.fake("nvidia-smi").answer(SMI)
    done = checkout.run("up", env={"GPUS": "0,1"})
    assert done.returncode == 0, done.stderr
    assert docker.called('^run .*--gpus "device=0,1" ')
    assert docker.environment_of("^compose up")["COMPOSE_FILE"] == "compose.yaml:.torchtap/compose.gpus.yaml"
    assert 'device_ids: ["0", "1"]' in (checkout.root / ".torchtap/compose.gpus.yaml").read_text()


def test_a_gpu_that_is_not_there_ends_before_anything_is_built(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(fake.gpu()))
    checkout.fake("nvidia-smi").answer(SMI)
    done = checkout.run("up", env={"GPUS": "5"})
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "up: GPUS=5: there is no GPU 5 here")
    assert not docker.called("compose build")


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"MODE": "gpus"}, "up: MODE='gpus': one of gpu, cpu, local (did you mean gpu?)"),
        ({"VARIANT": "cu999"}, "up: VARIANT='cu999': one of cu130, cu128, cu126, cpu"),
        ({"SSH_KEY": "/nowhere.pub"}, "up: SSH_KEY=/nowhere.pub: No such file or directory"),
        ({"TORCHTAP_CA_BUNDLE": "/nowhere.pem"}, "up: TORCHTAP_CA_BUNDLE=/nowhere.pem: no such file"),
        (
            {"JUPYTER_PORT": "48888", "SSH_PORT": "48888"},
            "up: JUPYTER_PORT and SSH_PORT are both 48888: give two different ports",
        ),
        (
            {"JUPYTER_PORT": "2222", "SSH_PORT": ""},  # the default counts too
            "up: JUPYTER_PORT and SSH_PORT are both 2222: give two different ports",
        ),
        ({"WORKSPACE": "./Makefile"}, "up: WORKSPACE=./Makefile is a file, not a folder"),
        ({"WORKSPACE": "./Makefile/a/b"}, "up: WORKSPACE=./Makefile/a/b: Makefile is a file, not a folder"),
        ({"WORKSPACE": "./Makefile", "MODE": "local"}, "up: WORKSPACE=./Makefile is a file, not a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(checkout: Checkout, env: dict[str, str], line: str) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("up", env=env)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, line)
    assert "Traceback" not in done.stderr
    assert not docker.called("compose (build|up)")
    assert not (checkout.root / ".env").exists()
    assert not (checkout.root / ".venv").exists()
    looked = checkout.run("preflight", env=env)
    if "one of" in line:  # a value that cannot be right: nothing is looked at
        assert (looked.returncode, looked.stderr.splitlines()[0]) == (2, line.replace("up:", "preflight:"))
    else:
        assert looked.returncode == 1
        assert line.removeprefix("up: ") in flat(looked.stdout)


def test_make_passes_words_and_code_on(checkout: Checkout) -> None:
    done = checkout.make("up", "MODE=gpus")
    assert done.returncode == 2
    assert "up: MODE='gpus': one of gpu, cpu, local (did you mean gpu?)" in done.stderr


def test_a_broken_env_file_stops_before_docker_is_asked(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    (checkout.root / ".env").write_text("A=1\nSSH_PUBLIC_KEY='ssh-ed25519\n")
    done = checkout.run("up")
    assert done.returncode == 2
    assert done.stderr.startswith("up: .env line 2: SSH_PUBLIC_KEY begins with ' and has no closing one\n")
    assert docker.calls == []
    assert (checkout.root / ".env").read_text() == "A=1\nSSH_PUBLIC_KEY='ssh-ed25519\n"


def test_the_users_env_file_is_kept_and_obeyed(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    del checkout.env["JUPYTER_PORT"]
    (checkout.root / ".env").write_bytes(b"# mine\r\nJUPYTER_PORT=48888\nVARIANT=cu128")
    done = checkout.run("up")
    assert done.returncode == 0, done.stderr
    written = (checkout.root / ".env").read_bytes()
    assert written.startswith(b"# mine\r\nJUPYTER_PORT=48888\nVARIANT=cu128\n# >>> ")
    block = written.partition(b"# >>> ")[2]
    assert b"VARIANT" not in block  # the user's own line says it already
    assert b"COMPOSE_FILE=compose.yaml:compose.cpu.yaml\n" in block
    assert "make's block now says COMPOSE_FILE=compose.yaml:compose.cpu.yaml" in flat(done.stdout)
    assert docker.environment_of("^compose up")["VARIANT"] == "cu128"
    assert "make's block" not in checkout.run("up").stdout  # nothing changed, nothing said


def test_the_users_own_compose_files_win(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    (checkout.root / ".env").write_text("COMPOSE_FILE=compose.yaml:mine.yaml\n")
    assert checkout.run("up").returncode == 0
    assert docker.environment_of("^compose up")["COMPOSE_FILE"] == "compose.yaml:mine.yaml"
    assert (checkout.root / ".env").read_text().count("COMPOSE_FILE") == 1


def test_an_override_file_of_the_users_is_not_forgotten(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    (checkout.root / "compose.override.yaml").write_text("services: {}\n")
    assert checkout.run("up", env={"TORCHTAP_CA_BUNDLE": "/etc/hostname"}).returncode == 0
    files = "compose.yaml:compose.cpu.yaml:compose.ca.yaml:compose.override.yaml"
    assert docker.environment_of("^compose up")["COMPOSE_FILE"] == files


def test_no_permission_says_what_to_do_and_how_to_go_on(checkout: Checkout) -> None:
    denied = {
        "ServerErrors": ["permission denied while trying to connect to the Docker daemon socket at unix:///x"]
    }
    checkout.fake("docker").answer({"when": "^info", "out": json.dumps(denied), "rc": 1})
    done = checkout.run("up")
    assert done.returncode == 2
    assert done.stderr.startswith("up: Docker is here, but this user may not use it")
    assert "sudo usermod -aG docker $USER" in done.stderr
    assert "make up MODE=local" in done.stderr


def test_a_port_in_use_is_found_before_the_build(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = checkout.run("up", env={"SSH_PORT": str(port)})
    assert done.returncode == 2
    assert done.stderr.startswith(f"up: port {port} (SSH_PORT) is taken on 127.0.0.1 by ")
    assert "make up SSH_PORT=" in done.stderr
    assert not docker.called("compose (build|up)")


def test_a_port_that_our_own_container_has_is_not_in_the_way(checkout: Checkout) -> None:
    ours = fake.container()
    with socket.create_server(("127.0.0.1", 0)) as jupyter, socket.create_server(("127.0.0.1", 0)) as ssh:
        for server, inside in ((jupyter, "8888/tcp"), (ssh, "22/tcp")):
            ours["NetworkSettings"]["Ports"][inside][0]["HostPort"] = str(server.getsockname()[1])
        rows = fake.engine({"when": "^compose ps", "out": "c0ffee\n"}, inspect=ours)
        docker = checkout.fake("docker").answer(*rows)
        ports = {"JUPYTER_PORT": str(jupyter.getsockname()[1]), "SSH_PORT": str(ssh.getsockname()[1])}
        done = checkout.run("up", env=ports)
    assert done.returncode == 0, done.stderr
    assert "the one that runs is replaced if it differs" in done.stdout
    assert not docker.called("compose down")


def test_a_failed_build_starts_nothing(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(
        *fake.engine({"when": "^compose build", "rc": 17, "err": "no space left\n"})
    )
    done = checkout.run("up")
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert "up: the image torchtap:cu130 could not be built" in done.stderr
    assert not docker.called("compose (up|down)")
    assert not (checkout.root / ".env").exists()


def test_too_little_disk_is_found_before_the_build(checkout: Checkout) -> None:
    """A data folder of the engine with little room: a tmpfs would need root, so the limit is raised instead."""
    docker = checkout.fake("docker").answer(*fake.engine(info={"DockerRootDir": "/"}))
    disk = checkout.root / "scripts/host/disk.py"
    disk.write_text(disk.read_text().replace("IMAGE_BYTES = 15_000_000_000", "IMAGE_BYTES = 10**17"))
    done = checkout.run("up")
    assert done.returncode == 2
    assert done.stderr.startswith("up: too little disk: building torchtap:cu130 needs 100000000.0 GB, / has ")
    assert not docker.called("compose build")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (fake.container("exited"), "the container ended with exit code 1"),
        (fake.container(health="unhealthy", output="jupyter: no answer"), "is unhealthy: jupyter: no answer"),
        (fake.container(health="starting", RestartCount=1), "was started again by Docker"),
    ],
    ids=["exited", "unhealthy", "falls over and over"],
)
def test_a_container_that_does_not_come_up_is_told_and_taken_away(
    checkout: Checkout, state: dict[str, object], words: str
) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(inspect=state))
    done = checkout.run("up")
    assert done.returncode == 1
    assert words in flat(done.stderr)
    assert "the last words" in done.stdout
    assert docker.called("^compose down")
    assert "what was started is removed; volumes stay" in flat(done.stdout)


def test_what_ran_before_is_left_alone_when_the_start_fails(checkout: Checkout) -> None:
    row = {"when": "^compose ps", "out": "c0ffee\n"}
    docker = checkout.fake("docker").answer(*fake.engine(row, {"when": "^compose up", "rc": 1}))
    done = checkout.run("up")
    assert done.returncode == 1
    assert not docker.called("^compose down")
    assert "is left as it is" in flat(done.stdout)


def test_what_differs_is_said_before_a_running_container_is_replaced(checkout: Checkout) -> None:
    ours = fake.container()
    ours["NetworkSettings"]["Ports"]["8888/tcp"][0]["HostPort"] = "48889"
    ours["Mounts"] = [{"Destination": "/workspace", "Source": str(checkout.root / "workspace")}]
    ours["Config"].update(StopTimeout=45, Env=["SSH_PUBLIC_KEY="])
    row = {"when": "^compose ps", "out": "c0ffee\n"}
    checkout.fake("docker").answer(*fake.engine(row, inspect=ours))
    words = "start replaces the running container: {}; what runs in it gets SIGTERM and 45 s"
    assert words.format("JUPYTER_PORT 48889 -> 48888") in flat(checkout.run("up").stdout)

    other = {"JUPYTER_PORT": "48889", "WORKSPACE": "./code", "VARIANT": "cu128", "SSH_PUBLIC_KEY": key()}
    mine = f"WORKSPACE {checkout.root}/workspace -> {checkout.root}/code"
    said = flat(checkout.run("up", env=other).stdout)
    assert words.format(f"image torchtap:cu130 -> torchtap:cu128, {mine}, other SSH keys") in said

    ours["HostConfig"]["DeviceRequests"] = [{"Driver": "nvidia"}]
    checkout.fake("docker").answer(*fake.engine(row, inspect=ours))
    assert words.format("MODE gpu -> cpu") in flat(checkout.run("up", env={"JUPYTER_PORT": "48889"}).stdout)


def test_nothing_is_foretold_of_a_running_container_that_is_as_chosen_or_has_files_of_the_users(
    checkout: Checkout,
) -> None:
    row = {"when": "^compose ps", "out": "c0ffee\n"}
    checkout.fake("docker").answer(*fake.engine(row))
    said = flat(checkout.run("up").stdout)
    assert "start the container; the one that runs is replaced if it differs" in said
    (checkout.root / "compose.override.yaml").write_text("services: {}\n")
    said = flat(checkout.run("up", env={"JUPYTER_PORT": "48887"}).stdout)
    assert "start the container; the one that runs is replaced if it differs" in said


def test_waiting_shows_that_something_happens(checkout: Checkout) -> None:
    """Three rounds of the health check, then healthy."""
    starting = json.dumps([fake.container(health="starting", output="jupyter: no answer yet")])
    rows = fake.engine({"when": "^inspect", "out": starting, "until": "^inspect"})
    checkout.fake("docker").answer(*rows)
    done = checkout.run("up")
    assert done.returncode == 0, done.stderr
    assert "ready healthy after" in flat(done.stdout)


def test_a_limit_that_the_engine_may_not_raise_is_answered_with_one_it_may(checkout: Checkout) -> None:
    words = "Error response from daemon: … error setting rlimit type 8: operation not permitted: unknown\n"
    docker = checkout.fake("docker").answer(*fake.engine({"when": "^compose up", "rc": 1, "err": words}))
    done = checkout.run("up")
    assert done.returncode == 1
    assert "operation not permitted" in done.stderr
    assert "This engine may not raise the limit of pinned memory:  make up MEMLOCK=" in done.stderr
    assert docker.called("^compose down")


def test_an_image_and_a_project_of_another_name(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("up", env={"TORCHTAP_IMAGE": "mine", "COMPOSE_PROJECT_NAME": "second"})
    assert done.returncode == 0, done.stderr
    assert docker.called("^image inspect .* mine:cu130$")
    assert docker.environment_of("^compose up")["COMPOSE_PROJECT_NAME"] == "second"
    # so that make down finds it from another terminal
    assert "COMPOSE_PROJECT_NAME=second\n" in (checkout.root / ".env").read_text()


def test_ctrl_c_while_waiting_takes_away_what_was_started(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine(inspect=fake.container(health="starting")))
    program = [sys.executable, str(checkout.root / "scripts/up")]
    child = subprocess.Popen(
        program,
        env=checkout.env,
        cwd=checkout.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not docker.called("^inspect") and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.endswith("up: interrupted\n")
    assert "Traceback" not in err
    assert docker.called("^compose down")
    assert "what was started is removed; volumes stay" in flat(out)


def test_a_failed_self_test_is_told_with_its_remedy_and_the_services_stay(checkout: Checkout) -> None:
    found = {
        "id": "gpu.nodes",
        "status": "fail",
        "seen": "no device node",
        "cause": "not handed out",
        "remedy": "--gpus all",
    }
    report = fake.report("fail", {"status": "pass"}, found)
    docker = checkout.fake("docker").answer(*fake.engine({"when": "exec .*selftest.json", "out": report}))
    done = checkout.run("up")
    assert done.returncode == 0
    said = flat(done.stdout)
    assert (
        "selftest FAIL: 1 passed, 1 failed FAIL gpu.nodes no device node cause not handed out do --gpus all"
        in said
    )
    assert not docker.called("compose down")


def test_a_report_of_an_earlier_start_is_not_taken_for_this_one(checkout: Checkout) -> None:
    stale = fake.report().replace("1893456000", "1000000000")
    rows = fake.engine({"when": "exec .*selftest.json", "out": stale, "until": "selftest.json"})
    docker = checkout.fake("docker").answer(*rows)
    done = checkout.run("up")
    assert "selftest pass" in flat(done.stdout)
    assert sum("selftest.json" in " ".join(call) for call in docker.calls) == 2


def test_build_no_starts_what_is_there_and_nothing_else(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("up", env={"BUILD": "no"})
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "up: BUILD=no, but there is no image torchtap:cu130",
    )
    docker.answer(*fake.engine({"when": "^image inspect", "out": "sha256:1\n"}))
    assert checkout.run("up", env={"BUILD": "no"}).returncode == 0
    assert not docker.called("compose build")


def test_an_open_address_is_said_aloud(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine())
    done = checkout.run("up", env={"BIND_ADDRESS": "0.0.0.0"})
    assert "warning BIND_ADDRESS=0.0.0.0 opens JupyterLab and SSH to your network" in flat(done.stdout)
    assert "warning" not in checkout.run("up", env={"BIND_ADDRESS": "127.0.0.1"}).stdout


def test_preflight_says_the_same_and_changes_nothing(checkout: Checkout) -> None:
    docker = checkout.fake("docker").answer(*fake.engine())
    before = sorted(path for path in checkout.root.rglob("*") if "__pycache__" not in path.parts)
    done = checkout.run("preflight")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "image torchtap:cu130 is not built yet" in flat(done.stdout)
    assert not docker.called("^(run|compose (build|up))")
    after = sorted(path for path in checkout.root.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


def test_two_at_once_do_not_disturb_each_other(checkout: Checkout) -> None:
    import fcntl

    checkout.fake("docker").answer(*fake.engine())
    folder = checkout.root / ".torchtap/local" / socket.gethostname()
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = checkout.run("up")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "up: another make up or make down is at work in this checkout",
    )
    assert Path(folder / "lock").exists()


def block(**variables: str) -> str:
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    return f"# >>> written by make: it rewrites the lines down to <<< and no others\n{lines}# <<<\n"


def test_another_project_while_the_one_before_runs_is_refused(checkout: Checkout) -> None:
    """Volumes carry the project's name. Its container would go on unseen, and home and keys would be others."""
    running = {"when": "^compose ps", "out": "c0ffee\n"}
    docker = checkout.fake("docker").answer(*fake.engine(running))
    (checkout.root / ".env").write_text(block(COMPOSE_PROJECT_NAME="mine"))
    done = checkout.run("up")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "up: a container of project mine runs here, and this call means project torchtap, with another home\n"
        "  Go on with it:  make up COMPOSE_PROJECT_NAME=mine\n"
    )
    assert docker.environment_of("^compose ps")["COMPOSE_PROJECT_NAME"] == "mine"
    assert not docker.called("^compose (build|up|down)")


def test_another_project_than_before_is_said(checkout: Checkout) -> None:
    checkout.fake("docker").answer(*fake.engine())
    (checkout.root / ".env").write_text(block(VARIANT="cu130"))
    done = checkout.run("up", env={"COMPOSE_PROJECT_NAME": "other"})
    assert done.returncode == 0, done.stderr
    assert (
        "project other, where the last make up was project torchtap: home, token and keys are others"
        in flat(done.stdout)
    )


@pytest.mark.parametrize(
    "line", ["COMPOSE_PROJECT_NAME=mine\n", ""], ids=["a line of the user's", "the default"]
)
def test_the_same_project_as_before_is_not_worth_a_word(checkout: Checkout, line: str) -> None:
    checkout.fake("docker").answer(*fake.engine())
    (checkout.root / ".env").write_text(line + block(VARIANT="cu130"))
    done = checkout.run("up")
    assert done.returncode == 0, done.stderr
    assert "the last make up was" not in flat(done.stdout)
