"""make up, in a copy of the checkout, with the engine: what a new user does first."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Engine

from .conftest import CA_BUNDLE, NAME, ROOT, SSH_OPTIONS, VARIANT, free_port
from .test_compose import memlock


class Checkout:
    """A copy of what git knows of this checkout, with make in it."""

    def __init__(self, engine: Engine, folder: Path, key: Path, base: str) -> None:
        self.folder = folder / "torchtap"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
        for name in names:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
            target.chmod((ROOT / name).stat().st_mode)
        home = folder / "home"
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh" / "id_ed25519.pub").write_text(key.with_suffix(".pub").read_text())
        self.ssh_port, self.jupyter_port = free_port(), free_port()
        # Nothing of this run's own make, nor of the user's wishes.
        dropped = ("SSH_AUTH_SOCK", "VARIANT", "ARGS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
        self.env = {
            **{name: value for name, value in engine.env.items() if name not in dropped},
            "HOME": str(home),
            "COMPOSE_PROJECT_NAME": f"torchtap-up-{os.getpid()}",
            "BASE_IMAGE": base,
            "JUPYTER_PORT": str(self.jupyter_port),
            "SSH_PORT": str(self.ssh_port),
            "MEMLOCK": str(memlock()),
            **({"TORCHTAP_CA_BUNDLE": str(CA_BUNDLE)} if CA_BUNDLE.exists() else {}),
        }

    def make(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["make", *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"make {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def shell(self, command: str) -> str:
        """What a command in the container says, as its user."""
        words = [str(self.folder / "scripts/shell"), "sh", "-c", command]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout


@pytest.fixture
def checkout(
    simulated: Engine, image: str, ssh_key: Path, tmp_path: Path, base_image: str
) -> Iterator[Checkout]:
    """Only with our own engine: make up uses the name torchtap:VARIANT, which may be a user's on another."""
    copy = Checkout(simulated, tmp_path, ssh_key, base_image)
    yield copy
    copy.make("down", check=False)
    of_it = f"--filter=label=com.docker.compose.project={copy.env['COMPOSE_PROJECT_NAME']}"
    if volumes := simulated.docker("volume", "ls", "-q", of_it).stdout.split():
        simulated.docker("volume", "rm", *volumes)


def test_make_up_takes_the_gpu_and_ends_with_verdict_link_and_ssh(checkout: Checkout, ssh_key: Path) -> None:
    said = checkout.make("up", f"VARIANT={VARIANT}").stdout
    assert re.search(r"gpu +Docker hands it out .*NVIDIA H200", said)
    assert re.search(r"selftest +WARN: ", said), "a simulated GPU is never a pass"
    link = re.search(rf"http://127\.0\.0\.1:{checkout.jupyter_port}/lab\?token=[0-9a-f]+", said)
    assert link
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(link[0].replace("/lab?", "/api/status?"), timeout=20) as answer:
        assert answer.status == 200
    assert f"ssh -p {checkout.ssh_port} dev@127.0.0.1" in said
    command = [
        "ssh",
        *SSH_OPTIONS,
        "-i",
        str(ssh_key),
        "-p",
        str(checkout.ssh_port),
        "dev@127.0.0.1",
        "nvidia-smi",
        "-L",
    ]
    assert (
        "NVIDIA H200"
        in subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    )

    assert checkout.make("url").stdout.strip() == link[0]
    assert "healthy" in checkout.make("status").stdout
    assert (
        "dev"
        in subprocess.run(
            ["make", "shell"],
            cwd=checkout.folder,
            env=checkout.env,
            input="id -un\n",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    logs = checkout.make("logs")
    assert "JupyterLab on port 8888" in logs.stdout + logs.stderr
    assert checkout.make("selftest").returncode == 0
    checkout.make("down")
    assert "nothing runs" in checkout.make("status", check=False).stdout


def test_make_up_on_the_cpu(checkout: Checkout) -> None:
    said = checkout.make("up", f"VARIANT={VARIANT}", "MODE=cpu", "SSH_KEY=none").stdout
    assert re.search(r"selftest +pass: ", said)
    assert re.search(r"ssh +off", said)
    assert "compose.cpu.yaml" in (checkout.folder / ".env").read_text()


REPORTS = ["junit.xml", "metrics.prom", "preflight.json", "report.json", "report.txt"]


def verdict(folder: Path) -> str:
    """What the report says that make selftest left."""
    return str(json.loads((folder / "report.json").read_text())["verdict"])


@pytest.fixture
def bench(checkout: Checkout) -> Checkout:
    """With the image under test, and as sudo calls: for user 4242."""
    checkout.env |= {"TORCHTAP_IMAGE": NAME, "VARIANT": VARIANT, "SUDO_UID": "4242", "SUDO_GID": "4242"}
    return checkout


def selftest(bench: Checkout, *words: str) -> subprocess.Popen[str]:
    """scripts/selftest, in a process group of its own as a shell's job is; its exit code is not yet make's."""
    return subprocess.Popen(
        [str(bench.folder / "scripts/selftest"), *words],
        cwd=bench.folder,
        env=bench.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_make_selftest_leaves_reports_of_the_caller_and_has_the_self_tests_exit_code(
    bench: Checkout, simulated: Engine
) -> None:
    folder = bench.folder / "selftest-report"
    for host, code, says in (("one-of-two-lost", 1, "fail"), ("h200-good", 0, "warn")):
        simulated.simulate(host)
        child = selftest(bench, "--expect-driver-min", "580")
        said, _ = child.communicate(timeout=120)
        assert child.returncode == code, said
        assert verdict(folder) == says, "a simulated GPU is never a pass"
        assert sorted(each.name for each in folder.iterdir()) == REPORTS
        assert {each.stat().st_uid for each in (folder, *folder.iterdir())} == {4242}
    # The real settings of the service, not Docker's 64 MB.
    results = {each["id"]: each for each in json.loads((folder / "report.json").read_text())["results"]}
    assert results["host.shm"]["status"] == "pass", results["host.shm"]
    assert simulated.docker("ps", "-aq", "--filter=name=torchtap-selftest").stdout == ""


def test_ctrl_c_ends_make_selftest_with_what_was_found_and_no_container_left(
    bench: Checkout, simulated: Engine
) -> None:
    bench.env["MODE"] = "cpu"
    child = selftest(bench)
    name = f"torchtap-selftest-{child.pid}"
    end = time.monotonic() + 60
    while simulated.docker("exec", name, "test", "-d", "/tmp/selftest-report", check=False).returncode:
        assert time.monotonic() < end, "the self-test has not begun"
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert verdict(bench.folder / "selftest-report")
    assert simulated.docker("ps", "-aq", f"--filter=name={name}").stdout == ""


@pytest.fixture
def own_image(checkout: Checkout) -> Checkout:
    """With an image of its own name, which may be removed; on the CPU."""
    checkout.env |= {
        "TORCHTAP_IMAGE": f"{NAME}-own",
        "TORCHTAP_SELFTEST": "off",
        "MODE": "cpu",
        "VARIANT": VARIANT,
    }
    return checkout


def test_update_replaces_what_runs_and_purge_leaves_the_workspace_alone(
    own_image: Checkout, simulated: Engine
) -> None:
    """Home, token and host key outlive the update; purge removes all that is the project's."""
    make = own_image.make
    make("up")
    link = make("url").stdout
    prints = make("ssh-fingerprints").stdout
    assert re.match(r"SHA256:\S{43}\b", prints.split()[0] if prints.startswith("SHA") else prints.split()[1])
    assert "nothing changed: " in make("update").stdout
    own_image.shell("echo kept > ~/note; echo mine > /workspace/mine")

    changed = own_image.folder / "src/torchtap/__init__.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    said = make("update").stdout
    assert re.search(r"PyTorch +[0-9.]+, as before", said)
    assert re.search(r"kept +workspace, home, keys and token", said)
    assert re.search(r"docker tag [0-9a-f]{12} ", said)
    assert make("url").stdout == link
    assert make("ssh-fingerprints").stdout == prints
    assert own_image.shell("cat ~/note") == "kept\n"

    listed = make("purge", check=False)
    assert listed.returncode == 2
    project = own_image.env["COMPOSE_PROJECT_NAME"]
    assert f"{project}_home" in listed.stdout
    make("purge", "ARGS=--yes")
    left = ("ps -aq", "volume ls -q", "network ls -q")
    label = f"--filter=label=com.docker.compose.project={project}"
    assert [simulated.docker(*words.split(), label).stdout for words in left] == ["", "", ""]
    assert simulated.docker("image", "ls", "-q", f"{NAME}-own").stdout == ""
    # Other tests have built their image under the same project's name: it has a name of its own, and stays.
    unnamed = simulated.docker("image", "ls", "-q", label, "--filter=dangling=true").stdout
    assert unnamed == "", "nor what the update replaced"
    assert (own_image.folder / "workspace/mine").read_text() == "mine\n"


BREAK = """
here=$(realpath $(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'))
case $here in /home/*) ;; *) exit 9 ;; esac
echo 'raise ImportError("broken on purpose")' > "$here/jupyter_server.py"
"""


def test_reset_env_mends_a_broken_overlay_with_and_without_a_container(checkout: Checkout) -> None:
    checkout.env |= {"TORCHTAP_SELFTEST": "off", "MODE": "cpu", "VARIANT": VARIANT, "TORCHTAP_IMAGE": NAME}
    works = "python -c 'import jupyter_server' 2>&1 | tail -1"
    checkout.make("up")
    checkout.shell("echo kept > ~/note")
    for running in (True, False):
        checkout.shell(BREAK)
        assert "broken on purpose" in checkout.shell(works)
        if not running:
            checkout.make("down")
        said = checkout.make("reset-env", "ARGS=--yes").stdout
        assert ("docker restart" in said) is running
        if not running:
            checkout.make("up")
        assert checkout.shell(works) == ""
    assert checkout.shell("cat ~/note") == "kept\n"


def test_c26_make_up_without_a_gpu_to_hand_out_falls_back_to_the_cpu(
    checkout: Checkout, simulated: Engine
) -> None:
    simulated.restart("none")
    try:
        said = checkout.make("up", f"VARIANT={VARIANT}").stdout
        assert re.search(r"mode +cpu", said)
        assert re.search(r"selftest +pass: ", said)
        checkout.make("down")
    finally:
        simulated.restart("hook")
