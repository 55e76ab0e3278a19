"""Local mode end to end: a copied checkout, the real JupyterLab, a free port on loopback.

The copy has a virtual environment of its own, made in a moment: it borrows the packages of the one that runs the
tests. So nothing of the developer's checkout (its `.env`, a JupyterLab that runs there) is touched.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import site
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from host import local, venv
from host.paths import Paths
from tests.unit.host.checkout import Checkout, make_checkout

pytestmark = pytest.mark.slow
SELFTEST = """\
#!/bin/sh
exec {python} -m torchtap.cli "$@"
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    if importlib.util.find_spec("jupyterlab") is None:
        pytest.skip("JupyterLab is not installed in the environment that runs the tests")
    made = make_checkout(tmp_path_factory.mktemp("local"), "src")
    made.env["JUPYTER_PORT"] = str(free_port())
    # As a shell has it; HOME is the checkout's own, so nobody's Jupyter settings count.
    made.env["PATH"] += f"{os.pathsep}{os.defpath}"
    borrow_packages(made)
    yield made
    made.run("down", env={"MODE": "local"})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def borrow_packages(checkout: Checkout) -> None:
    """A complete environment for the copy: this one's packages by a path file, and a stamp that says what it is."""
    paths = Paths(checkout.root)
    place = venv.Venv(paths.venv)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place.path], check=True)
    packages = next(place.path.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text(
        "\n".join([str(checkout.root / "src"), *site.getsitepackages()]) + "\n"
    )
    for name in ("share", "etc"):  # JupyterLab's pages, extensions and kernels
        source = Path(sys.prefix) / name
        if source.exists():
            (place.path / name).symlink_to(source)
    program = place.bin / "torchtap"
    program.write_text(SELFTEST.format(python=place.python))
    program.chmod(0o755)
    locks = venv.locks_of(paths, "cu130", dev=False)
    stamp = {**locks, "variant": "cu130", "place": str(place.path), "checkout": str(paths.root)}
    place.stamp.write_text(json.dumps(stamp))


def status_of(port: int, path: str, token: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": f"token {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def started(checkout: Checkout) -> subprocess.CompletedProcess[str]:
    """`make up MODE=local`, once for all the tests below."""
    return checkout.make("up", "MODE=local")


def test_up_ends_with_verdict_and_link(checkout: Checkout, started: subprocess.CompletedProcess[str]) -> None:
    assert started.returncode == 0, started.stdout + started.stderr
    said = started.stdout
    assert re.search(r"^mode +local: MODE says so$", said, re.M)
    assert re.search(r"^ready +JupyterLab answers after \d+\.\d s", said, re.M)
    assert re.search(r"^selftest +(pass|WARN|FAIL|UNKNOWN)", said, re.M)
    link = f"http://127.0.0.1:{checkout.env['JUPYTER_PORT']}/lab?token="
    assert re.search(rf"^jupyter +{re.escape(link)}[0-9a-f]{{48}}$", said, re.M)


def test_it_answers_to_the_token_and_to_nothing_else(
    checkout: Checkout, started: subprocess.CompletedProcess[str]
) -> None:
    port, token = int(checkout.env["JUPYTER_PORT"]), local.token(Paths(checkout.root))
    assert status_of(port, "/api/contents", token) == 200
    assert status_of(port, "/api/contents") == 403
    assert status_of(port, "/api/contents", "0" * 48) == 403
    assert status_of(port, f"/lab?token={token}") == 200


def test_it_listens_on_loopback_alone(checkout: Checkout, started: subprocess.CompletedProcess[str]) -> None:
    """Asked of the kernel: a connection over another address of this machine could be refused by a firewall."""
    port = int(checkout.env["JUPYTER_PORT"])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port]
    assert listening == [f"0100007F:{port:04X}"]


def test_the_token_is_in_no_argument_and_no_log(
    checkout: Checkout, started: subprocess.CompletedProcess[str]
) -> None:
    paths = Paths(checkout.root)
    token = local.token(paths)
    running = local.running(paths)
    assert running is not None
    for name in ("cmdline", "environ"):
        assert token.encode() not in Path(f"/proc/{running.pid}/{name}").read_bytes()
    assert token not in (paths.local / "jupyter.log").read_text()
    private = [path for path in paths.local.iterdir() if path.is_file() and token in path.read_text()]
    assert {path.name for path in private} == {"jupyter-token", "jupyter.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*private, paths.local])


def test_a_kernel_runs_in_the_environment(
    checkout: Checkout, started: subprocess.CompletedProcess[str]
) -> None:
    """The kernel of the running server, asked over its own channels: its Python is that of the copy."""
    from jupyter_client.blocking.client import BlockingKernelClient

    paths = Paths(checkout.root)
    port, token = int(checkout.env["JUPYTER_PORT"]), local.token(paths)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    connection.request("POST", "/api/kernels", body=json.dumps({"name": "python3"}), headers=headers)
    response = connection.getresponse()
    kernel = json.loads(response.read())
    assert response.status == 201, kernel
    file = paths.local / "runtime" / f"kernel-{kernel['id']}.json"
    deadline = time.monotonic() + 30
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        said: list[str] = []

        def hear(message: dict[str, object]) -> None:
            content = message["content"]
            assert isinstance(content, dict)
            said.append(str(content.get("text", "")))

        client.execute_interactive(
            "import os, sys, torchtap; print(sys.prefix, torchtap.__file__, os.getcwd())",
            timeout=60,
            output_hook=hear,
        )
    finally:
        client.stop_channels()
        connection.request("DELETE", f"/api/kernels/{kernel['id']}", headers=headers)
        assert connection.getresponse().status == 204
    root = checkout.root
    assert "".join(said).split() == [f"{root}/.venv", f"{root}/src/torchtap/__init__.py", f"{root}/workspace"]


def test_up_again_leaves_it_and_is_quick(
    checkout: Checkout, started: subprocess.CompletedProcess[str]
) -> None:
    before = local.running(Paths(checkout.root))
    again = checkout.run("up", env={"MODE": "local", "TORCHTAP_SELFTEST": "off"})
    assert again.returncode == 0, again.stderr
    assert "JupyterLab runs already" in again.stdout
    assert local.running(Paths(checkout.root)) == before


def test_url_status_logs_shell_and_ssh(checkout: Checkout, started: subprocess.CompletedProcess[str]) -> None:
    paths = Paths(checkout.root)
    token = local.token(paths)
    env = {"MODE": "local"}
    assert checkout.run("url", env=env).stdout == (
        f"http://127.0.0.1:{checkout.env['JUPYTER_PORT']}/lab?token={token}\n"
    )
    status = checkout.run("status", env=env)
    assert status.returncode == 0
    assert "JupyterLab answers (pid " in status.stdout
    assert token not in status.stdout
    logs = checkout.run("logs", env=env)
    assert "Jupyter Server" in logs.stdout
    assert token not in logs.stdout
    shell = checkout.run("shell", "python", "-c", "import sys, os; print(sys.prefix, os.getcwd())", env=env)
    assert shell.stdout.split() == [str(paths.venv), str(paths.root / "workspace")]
    ssh = checkout.run("ssh", env=env)
    assert ssh.returncode == 2
    assert ssh.stderr.startswith("ssh: local mode has no SSH")


def test_a_port_in_use_is_told_and_nothing_is_left(
    checkout: Checkout, started: subprocess.CompletedProcess[str]
) -> None:
    """Last but one: it stops what the tests above use."""
    paths = Paths(checkout.root)
    assert checkout.run("down", env={"MODE": "local"}).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = checkout.run("up", env={"MODE": "local", "JUPYTER_PORT": str(port)})
    assert done.returncode == 2
    assert done.stderr.startswith(f"up: port {port} (JUPYTER_PORT) is taken on 127.0.0.1 by ")
    assert local.running(paths) is None


def test_a_jupyter_that_cannot_start_is_told_with_its_words_and_leaves_nothing(checkout: Checkout) -> None:
    paths = Paths(checkout.root)
    broken = next(paths.venv.glob("lib/python*/site-packages")) / "jupyterlab.py"
    broken.write_text("raise SystemExit('jupyterlab is broken here')\n")
    try:
        done = checkout.run("up", env={"MODE": "local", "TORCHTAP_SELFTEST": "off"})
    finally:
        broken.unlink()
    assert done.returncode == 1
    assert "jupyterlab is broken here" in done.stdout
    assert done.stderr.startswith("up: JupyterLab ended with exit code 1")
    assert local.running(paths) is None


def test_selftest_leaves_every_report_in_one_folder_of_the_caller(checkout: Checkout) -> None:
    env = {"MODE": "local", "TORCHTAP_DEVICE": "cpu"}
    done = checkout.run("selftest", "--only", "cpu.matmul", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = checkout.root / "selftest-report"
    names = ["junit.xml", "metrics.prom", "preflight.json", "report.json", "report.txt"]
    assert sorted(each.name for each in folder.iterdir()) == names
    assert {each.stat().st_uid for each in (folder, *folder.iterdir())} == {os.getuid()}
    assert json.loads((folder / "report.json").read_text())["verdict"] == "pass"
    again = checkout.run("selftest", "--only", "cpu.matmul", env={**env, "LEVEL": "full", "EXPECT_GPUS": "8"})
    assert again.returncode == 2, "no GPU by design, and eight expected: one of them is wrong"
    assert sorted(each.name for each in folder.iterdir()) == names, "the last good reports stay"


def test_down_ends_it_for_good(checkout: Checkout) -> None:
    paths = Paths(checkout.root)
    assert checkout.run("up", env={"MODE": "local", "TORCHTAP_SELFTEST": "off"}).returncode == 0
    running = local.running(paths)
    assert running is not None
    done = checkout.make("down", "MODE=local")
    assert done.returncode == 0, done.stderr
    assert re.match(rf"stopped +JupyterLab \(pid {running.pid}\) after ", done.stdout)
    assert local.start_ticks(running.pid) is None
    with pytest.raises(ConnectionRefusedError):
        status_of(running.port, "/api/status")
    assert checkout.run("down", env={"MODE": "local"}).stdout.split() == ["stopped", "nothing", "ran", "here"]
