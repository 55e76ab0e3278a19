"""JupyterLab as its user configures it: base_url, TLS, port, password; who gets in; TensorBoard, culling, examples."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine import Engine

from .conftest import OFF, Container, Run, wait_until
from .test_health import health

REFUSED = r"ERROR   jupyter: not started, it would be open to anyone: no token and no password"
ENDED = r"WARNING jupyter: ended \(exit code 78"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """~/.jupyter, as it lies in the home volume."""
    folder = tmp_path / "jupyter"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    return folder


def configured(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "jupyter_server_config.py").write_text(text)
    for path in folder.iterdir():
        os.chown(path, 1000, 1000)
    return ("-v", f"{folder}:/home/dev/.jupyter")


def status(container: Container, url: str, *options: str) -> int:
    """HTTP status of a GET inside the container, without redirects."""
    curl = ("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "--noproxy", "*", *options, url)
    return int(container.exec(*curl, check=False).stdout or 0)


def test_c29_base_url_tls_port_runtime_folder_and_proxy_of_the_users_own(run: Run, settings: Path) -> None:
    """docker-stacks#1698, #1709, #1817, #1962 and #2073 in one container: healthy, and the link leads there."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lab -keyout key.pem -out cert.pem"
    subprocess.run(make.split(), cwd=settings, check=True, capture_output=True)
    options = configured(
        settings,
        "c.ServerApp.base_url = '/my/'\nc.ServerApp.port = 9443\n"
        "c.ServerApp.certfile = '/home/dev/.jupyter/cert.pem'\nc.ServerApp.keyfile = '/home/dev/.jupyter/key.pem'\n",
    )
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:1")
    own = {"JUPYTER_RUNTIME_DIR": "/home/dev/runtime"}
    container = run("jupyter", env={**OFF, **proxies, **own}, options=options).wait_healthy()
    link = container.exec("torchtap-url").stdout.strip()
    assert re.fullmatch(r"https://127\.0\.0\.1:9443/my/lab\?token=[0-9a-f]{48}", link)
    assert status(container, link.replace("/lab?", "/api/status?")) == 200
    assert status(container, link.partition("?")[0].replace("/lab", "/api/status")) == 403


HASHED = "from jupyter_server.auth import passwd; print(passwd('a long phrase'))"


def test_a_password_of_the_users_own(run: Run, settings: Path, engine: Engine, image: str) -> None:
    """Password alone: no token opens anything, the link has none, and health says how far it can see."""
    hashed = engine.docker("run", "--rm", image, "python", "-c", HASHED).stdout.strip()
    options = configured(
        settings, f"c.IdentityProvider.token = ''\nc.PasswordIdentityProvider.hashed_password = {hashed!r}\n"
    )
    greeting = r"\[C .* ServerApp\]"  # JupyterLab's own, where it has no token
    container = run("jupyter", env=OFF, options=options, allow=(greeting,)).wait_healthy()
    assert health(container)[1].startswith("jupyter: answers; it has no token to ask more with; ")
    assert "403" not in container.logs, "health does not fill the log"
    link = container.exec("torchtap-url").stdout.strip()
    assert link == "http://127.0.0.1:8888/lab"
    api = "http://127.0.0.1:8888/api/status"
    assert status(container, api) == 403
    kept = container.exec("cat", "/var/lib/torchtap/jupyter-token").stdout.strip()
    assert status(container, api, "-H", f"Authorization: token {kept}") == 403
    login = "http://127.0.0.1:8888/login"
    script = (
        f"curl -s -c /tmp/jar -o /dev/null {login}; xsrf=$(awk '$6 == \"_xsrf\" {{ print $7 }}' /tmp/jar); "
        "curl -s -b /tmp/jar -c /tmp/jar -o /dev/null --data-urlencode 'password=a long phrase' "
        f"-d _xsrf=$xsrf {login}; "
        f"curl -s -b /tmp/jar -o /dev/null -w '%{{http_code}}' {api}"
    )
    assert container.exec("sh", "-c", script).stdout == "200"


def test_c30_a_jupyter_that_would_be_open_is_refused_and_ssh_runs_on(run: Run, settings: Path) -> None:
    """docker-stacks#325: an empty token needs a switch whose name says what it does."""
    options = configured(settings, "c.IdentityProvider.token = ''\n")
    container = run(key=True, env=OFF, options=options, allow=(REFUSED, ENDED))
    container.wait_log(ENDED)
    assert "Open on purpose: -e JUPYTER_OPEN_TO_ANYONE=1" in container.logs
    assert container.ssh("echo hello").stdout == "hello\n"
    well, said = health(container)
    assert not well
    assert "jupyter: does not run: ended (exit code 78: JupyterLab would be open to anyone; " in said
    # The remedy, without a restart of the container.
    (settings / "jupyter_server_config.py").write_text("")
    container.wait_healthy()
    assert container.api("/api/status", None)[0] == 403


def test_a_token_removed_or_closed_while_it_runs_never_opens_jupyter_nor_reaches_the_log(run: Run) -> None:
    """Jupyter would go on without the image's configuration, and write a token of its own into the log."""
    gone = r"WARNING jupyter: the token's file .* was gone: a new one is made"
    closed = r"ERROR   jupyter: not started, its token cannot be read: .*Permission denied"
    ended = r"WARNING jupyter: ended \((signal|exit code 77)"
    container = run("jupyter", env=OFF, allow=(gone, closed, ended)).wait_healthy()
    token = "/var/lib/torchtap/jupyter-token"
    first = container.token
    container.exec("sh", "-c", f"rm {token}; pkill -9 -f [o]verlay/bin/jupyter-lab", root=True)
    wait_until(lambda: container.exec("health", check=False).returncode == 0, 40, lambda: container.logs)
    second = container.token
    assert second != first
    assert container.api("/api/status", second)[0] == 200
    words = f"chown 0:0 {token}; pkill -9 -f [o]verlay/bin/jupyter-lab"
    container.exec("sh", "-c", words, root=True)
    wait_until(
        lambda: "exit code 77: its token cannot be read" in health(container)[1], 40, lambda: container.logs
    )
    assert "token=" not in container.logs


def test_c30_open_to_anyone_by_name(run: Run) -> None:
    warning = r"WARNING jupyter: no token and no password \(JUPYTER_OPEN_TO_ANYONE=1\): whoever reaches its port runs"
    container = run("jupyter", env={**OFF, "JUPYTER_OPEN_TO_ANYONE": "1"}, allow=(warning,)).wait_healthy()
    assert container.api("/api/status", None)[0] == 200
    assert container.exec("torchtap-url").stdout == "http://127.0.0.1:8888/lab\n"


def test_a_taken_port_is_named_with_the_variable_that_moves_jupyter(run: Run) -> None:
    """As with --network host; here two containers share one network."""
    first = run("jupyter", env=OFF).wait_healthy()
    shared = ("--network", f"container:{first.id}")
    taken = (
        r"ERROR   jupyter: port 8888 cannot be used here",
        r"WARNING jupyter: ended",
        r"\[C .* port 8888 is not",
    )
    second = run("jupyter", env=OFF, options=shared, allow=taken)
    second.wait_log("WARNING jupyter: ended")
    assert "Another port: -e JUPYTER_PORT_IN_CONTAINER=8889" in second.logs
    assert (
        "port 8888 is taken by another program; start with -e JUPYTER_PORT_IN_CONTAINER=" in health(second)[1]
    )
    third = run("jupyter", env={**OFF, "JUPYTER_PORT_IN_CONTAINER": "8889"}, options=shared).wait_healthy()
    assert third.exec("torchtap-url").stdout.startswith("http://127.0.0.1:8889/lab?token=")
    assert "JupyterLab on port 8889" in third.logs


# ---- servers behind JupyterLab's login ----
def test_tensorboard_is_reached_through_jupyters_port_by_who_may(shared: Container) -> None:
    url = "http://127.0.0.1:8888/tensorboard/"
    login = f"Authorization: token {shared.token}"
    assert status(shared, url) in (302, 403)
    page = shared.exec("curl", "-s", "--max-time", "90", "-H", login, url).stdout
    assert "TensorBoard" in page
    running = shared.exec("ps", "axww", "-o", "user,args", root=True).stdout
    assert re.search(r"^dev .*tensorboard.main --logdir=\. --port=\d+ --host=127\.0\.0\.1$", running, re.M)
    names = shared.api("/server-proxy/servers-info", shared.token)[1]["server_processes"]
    assert [each["launcher_entry"]["title"] for each in names if each["name"] == "tensorboard"] == [
        "TensorBoard"
    ]


def test_any_port_in_the_container_is_reached_in_the_same_way(shared: Container) -> None:
    serve = "cd /opt/torchtap/notebooks && python -m http.server --bind 127.0.0.1 9753 >/dev/null 2>&1 &"
    shared.exec("sh", "-c", serve)
    url = "http://127.0.0.1:8888/proxy/9753/"
    login = ("-H", f"Authorization: token {shared.token}")
    wait_until(lambda: status(shared, url, *login) == 200, 20, lambda: f"{status(shared, url, *login)}")
    assert status(shared, url) in (302, 403)


def test_nvitop_starts_and_says_that_there_is_no_gpu(shared: Container) -> None:
    assert re.match(r"nvitop \d", shared.exec("nvitop", "--version").stdout)
    done = shared.exec("nvitop", "-1", check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "NVML" in done.stdout + done.stderr


# ---- kernels ----
def kernels(container: Container) -> list[Any]:
    return list(container.api("/api/kernels", container.token)[1])


def test_idle_kernels_are_culled_when_that_is_asked_for_and_busy_ones_are_not(run: Run) -> None:
    container = run("jupyter", env={**OFF, "JUPYTER_CULL_IDLE_S": "4"}).wait_healthy()
    container.kernel("import time; time.sleep(600)", wait=False)
    container.kernel("1")
    assert len(kernels(container)) == 2
    wait_until(lambda: len(kernels(container)) == 1, 60, lambda: str(kernels(container)))
    assert kernels(container)[0]["execution_state"] == "busy"


# ---- examples ----
def test_examples_never_replace_a_users_file_and_stay_deleted(run: Run, tmp_path: Path) -> None:
    mine, empty = tmp_path / "mine", tmp_path / "empty"
    own = mine / "notebooks/01-cudnn-rnn-error.ipynb"
    own.parent.mkdir(parents=True)
    empty.mkdir()
    own.write_text("my own")
    for folder in (mine, own.parent, own, empty):
        os.chown(folder, 1000, 1000)
    run("jupyter", env=OFF, options=("-v", f"{mine}:/workspace")).wait_healthy()
    assert own.read_text() == "my own"
    assert [path.name for path in own.parent.iterdir()] == [own.name]
    container = run("jupyter", env=OFF, options=("-v", f"{empty}:/workspace")).wait_healthy()
    assert (empty / "notebooks" / own.name).stat().st_uid == 1000
    container.exec("rm", "-r", "/workspace/notebooks")
    container.engine.docker("restart", container.id)
    container.wait_healthy()
    assert not [path.name for path in empty.iterdir() if not path.name.startswith(".")]
