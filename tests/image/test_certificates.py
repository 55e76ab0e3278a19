"""Certificate authorities and proxies: every client of the image reaches a server that only the user's own vouches for.

The server runs in the container, started by `PROBE`, which then lets each client ask it.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine import Engine

from .conftest import Run
from .test_compose import Project, project  # noqa: F401 - the fixture

# Every client asks https://localhost:8443 once; prints {client: what it said, or "" for success}.
PROBE = """
import concurrent.futures, functools, http.server, json, ssl, subprocess, sys, tempfile, threading

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/server/server.pem", "/server/server.key")
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), functools.partial(Quiet, directory="/server/site"))
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()

URL = "https://localhost:8443"
INDEX = ["--no-deps", "--index-url", URL + "/simple/", "tinypackage"]
new = tempfile.mkdtemp
CLIENTS = {
    "curl": ["curl", "--fail", "--silent", "--show-error", URL + "/hello"],
    "git": ["git", "ls-remote", "--exit-code", URL + "/repository.git"],
    "pip": ["pip", "download", "--quiet", "--retries=0", "--no-cache-dir", "--dest", new(), *INDEX],
    "uv": ["uv", "pip", "install", "--no-cache", "--target", new(), *INDEX],
    "requests": [sys.executable, "-c", f"import requests; requests.get('{URL}/hello').raise_for_status()"],
    "httpx": [sys.executable, "-c", f"import httpx; httpx.get('{URL}/hello').raise_for_status()"],
    "urllib": [sys.executable, "-c", f"import urllib.request; urllib.request.urlopen('{URL}/hello').read()"],
    "openssl": ["openssl", "s_client", "-brief", "-verify_return_error", "-connect", "localhost:8443"],
}
def ask(words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip()[-600:] + f" (exit code {done.returncode})" if done.returncode else ""
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    print(json.dumps(dict(zip(CLIENTS, pool.map(ask, CLIENTS.values())))))
"""
CLIENTS = {"curl", "git", "pip", "uv", "requests", "httpx", "urllib", "openssl"}
# They bring a list of their own, so only the variables tell them. uv does too, and the image's command tells it.
WITH_A_LIST_OF_THEIR_OWN = {"requests", "httpx"}


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate signed by it, and what the server serves."""
    folder = tmp_path_factory.mktemp("tls")
    folder.chmod(0o755)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca, csr = str(folder / "ca.pem"), str(folder / "server.csr")
    openssl(
        "req", "-x509", *key, "-subj", "/CN=Company", "-keyout", f"{folder}/ca.key", "-out", ca, "-days", "2"
    )
    openssl("req", *key, "-subj", "/CN=localhost", "-keyout", f"{folder}/server.key", "-out", csr)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    openssl(
        "x509", "-req", "-in", csr, "-CA", ca, "-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-days", "2",
        "-extfile", f"{folder}/names", "-out", f"{folder}/server.pem",
    )  # fmt: skip
    site = folder / "site"
    package = site / "simple/tinypackage"
    package.mkdir(parents=True)
    (site / "hello").write_text("hello\n")
    info = "tinypackage-1.0.dist-info"
    with zipfile.ZipFile(package / "tinypackage-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinypackage.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinypackage\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    git = ["git", "-c", "user.name=test", "-c", "user.email=test", "-C", str(site)]
    for words in (
        ["init", "-q", "work"],
        ["-C", "work", "commit", "-q", "--allow-empty", "-m", "first"],
        ["clone", "-q", "--bare", "work", "repository.git"],
        ["-C", "repository.git", "update-server-info"],
    ):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (folder / "probe.py").write_text(PROBE)
    (folder / "server.key").chmod(0o644)
    (folder / "mounted").mkdir()
    (folder / "mounted/company.crt").write_text((folder / "ca.pem").read_text())
    return folder


def ask(engine: Engine, image: str, server: Path, *options: str) -> dict[str, str]:
    """What each client said in a container with these options; "" is success."""
    done = engine.docker(
        "run", "--rm", "-v", f"{server}:/server:ro", *options, image, "python", "/server/probe.py"
    )  # fmt: skip
    answers: dict[str, str] = json.loads(done.stdout)
    assert set(answers) == CLIENTS
    return answers


def mounted(server: Path) -> tuple[str, str]:
    return "-v", f"{server}/mounted:/usr/local/share/ca-certificates:ro"


WAYS = {
    "a mounted folder": (),
    "another user and a read-only root": (
        "--user", "12345:54321", "--read-only", "--tmpfs", "/run:mode=1777", "--tmpfs", "/tmp:mode=1777",
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_c33_every_client_trusts_the_mounted_certificates(
    engine: Engine, image: str, server: Path, options: tuple[str, ...]
) -> None:
    assert ask(engine, image, server, *mounted(server), *options) == dict.fromkeys(CLIENTS, "")


def test_c33_every_client_trusts_the_secret(engine: Engine, image: str, server: Path) -> None:
    secret = ("-v", f"{server}/ca.pem:/run/secrets/ca_bundle:ro")
    assert ask(engine, image, server, *secret) == dict.fromkeys(CLIENTS, "")


def test_c33_the_builds_certificates_serve_the_container_too(project: Project, server: Path) -> None:  # noqa: F811
    """TORCHTAP_CA_BUNDLE, through compose.ca.yaml: one setting for both."""
    files = ("compose.yaml", "compose.cpu.yaml", "compose.ca.yaml")
    bundle = str(server / "ca.pem")
    project(
        "up", "-d", "--no-build", "--wait", files=files, TORCHTAP_CA_BUNDLE=bundle, TORCHTAP_SELFTEST="off"
    )
    assert project.container.ssh("grep -c BEGIN $NODE_EXTRA_CA_CERTS").stdout == "1\n"
    assert "INFO    certificates: 1 from /run/secrets/ca_bundle" in project.container.logs


def test_without_them_every_client_refuses(engine: Engine, image: str, server: Path) -> None:
    """Else the tests above would show nothing."""
    answers = ask(engine, image, server)
    assert not [name for name, said in answers.items() if not said], answers


def test_c33_a_bare_docker_exec_has_them_in_the_systems_file(run: Run, server: Path) -> None:
    """It starts from the image's variables, not from start's: what reads the system's file works, the others are the
    documented rest. A restart without the certificates takes them out again."""
    folder = server / "emptied"
    folder.mkdir()
    certificate = folder / "company.crt"
    certificate.write_text((server / "ca.pem").read_text())
    options = ("-v", f"{server}:/server:ro", "-v", f"{folder}:/usr/local/share/ca-certificates:ro")
    container = run("jupyter", env={"TORCHTAP_SELFTEST": "off"}, options=options).wait_healthy()
    answers = json.loads(container.exec("python", "/server/probe.py").stdout)
    assert {name for name, said in answers.items() if said} <= WITH_A_LIST_OF_THEIR_OWN, answers
    told = container.kernel(
        "import os; print(os.environ['REQUESTS_CA_BUNDLE'], os.environ['NODE_EXTRA_CA_CERTS'])"
    )
    assert told == "/run/torchtap/ca-certificates.pem /run/torchtap/ca-certificates-extra.pem"
    certificate.unlink()
    container.engine.docker("restart", container.id)
    container.wait_healthy()
    curl = container.exec("grep", "-c", "torchtap", "/etc/ssl/certs/ca-certificates.crt", check=False)
    assert curl.stdout.strip() == "0"


def test_broken_files_are_named_and_a_private_key_goes_nowhere(
    run: Run, server: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    (folder / "good.crt").write_text((server / "ca.pem").read_text() + (server / "ca.key").read_text())
    (folder / "empty.pem").touch()
    openssl("x509", "-in", f"{server}/ca.pem", "-outform", "der", "-out", f"{folder}/windows.crt")
    place = "/usr/local/share/ca-certificates"
    container = run(
        "sh", "-c", "grep -rl 'PRIVATE KEY' /run/torchtap /etc/ssl /home /var/lib/torchtap; "
        "grep -c BEGIN /run/torchtap/ca-certificates-extra.pem",
        options=("-v", f"{folder}:{place}:ro"),
        allow=(
            rf"WARNING certificates: {place}/empty.pem is empty",
            rf"WARNING certificates: {place}/good.crt holds a private key, which is not used here",
            rf"WARNING certificates: {place}/windows.crt is in binary form \(DER\)",
        ),
    )  # fmt: skip
    assert container.wait_end() != 125
    assert container.logs.splitlines()[-1] == "1", container.logs


# ---- proxies ----
# Notes whom it is asked for, and refuses.
PROXY = """
import http.server
class Proxy(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self):
        with open("/tmp/asked", "a") as file:
            print(self.path, file=file)
        self.send_error(502)
    do_GET = do_CONNECT
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3128), Proxy).serve_forever()
"""
ASK = {
    "curl": "curl -s https://curl.invalid",
    "git": "git ls-remote https://git.invalid/x",
    "pip": "pip download --retries=0 -d /tmp/x --index-url https://pip.invalid/simple x",
    "uv": "UV_HTTP_RETRIES=0 uv pip install --target /tmp/x --index-url https://uv.invalid/simple x",
    "requests": "python -c 'import requests; requests.get(\"https://requests.invalid\")'",
    "httpx": "python -c 'import httpx; httpx.get(\"https://httpx.invalid\")'",
    "urllib": "python -c 'import urllib.request; urllib.request.urlopen(\"https://urllib.invalid\")'",
}


def test_c29_proxies_are_used_by_every_client_and_not_by_the_health_check(run: Run) -> None:
    """Given in one spelling. The container itself is left out, so healthy means that JupyterLab answers."""
    proxy = "http://127.0.0.1:3128"
    environment = {"HTTP_PROXY": proxy, "https_proxy": proxy, "TORCHTAP_SELFTEST": "off"}
    container = run(env=environment, key=True).wait_healthy()
    names = "HTTP_PROXY http_proxy HTTPS_PROXY https_proxy NO_PROXY no_proxy"
    said = container.ssh(f"for name in {names}; do printenv $name; done").stdout.split()
    assert said == [proxy] * 4 + ["localhost,127.0.0.1,::1"] * 2
    container.engine.docker("exec", "-d", "-u", "dev", container.id, "python", "-c", PROXY)
    container.ssh("; ".join(f"{words} >/dev/null 2>&1" for words in ASK.values()) + "; true")
    asked = container.exec("cat", "/tmp/asked").stdout.split()
    assert {f"{name}.invalid:443" for name in ASK} <= set(asked)
    assert not [name for name in asked if ".invalid" not in name], (
        "only what is not this container goes to the proxy"
    )
    local = container.ssh("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8888/api").stdout
    assert local == "200"


def test_a_proxy_of_the_build_leaves_no_trace(engine: Engine, image: str, build: Callable[..., Any]) -> None:
    """Docker's predefined arguments are no part of a layer or its history: the cache of the build without them fits."""
    name = f"{image.partition(':')[0]}-proxied"
    build("-t", name, HTTP_PROXY="http://person:word@192.0.2.1:3128", HTTPS_PROXY="http://192.0.2.1:3128")
    try:
        history = engine.docker("history", "--no-trunc", name).stdout
        config = engine.docker("inspect", name).stdout
    finally:
        engine.docker("rmi", name)
    assert "192.0.2.1" not in history + config
