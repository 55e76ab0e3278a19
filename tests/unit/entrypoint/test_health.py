"""Health, against real sockets: a service is well only when it gives the answer that it should."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from entrypoint import health, paths, server

from .conftest import GID, UID, needs_root

TOKEN = "0123456789abcdef"
OURS, OTHER_PID, DEAD = 4711, 4712, 4713
Reply = Callable[[http.server.BaseHTTPRequestHandler], None]


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def server_bind(self) -> None:
        # The base class looks its own name up.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "lab", 0

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = self.socket.accept()
        return connection, ("client", 0)


@contextlib.contextmanager
def listening(
    reply: Reply, *, at: str = "127.0.0.1", sock: str = "", tls: Path | None = None
) -> Iterator[int]:
    """A server whose every GET is answered by `reply`; its port (0 for a UNIX socket)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply(self)

        def log_message(self, *_: object) -> None:
            pass

    class Here(_Listener):
        address_family = socket.AF_UNIX if sock else socket.AF_INET6 if ":" in at else socket.AF_INET

    listener = Here(sock or (at, 0), Handler)  # type: ignore[arg-type]
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield 0 if sock else listener.socket.getsockname()[1]
    finally:
        listener.shutdown()
        listener.server_close()


def answer(request: http.server.BaseHTTPRequestHandler, status: int, body: object) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(raw)))
    request.end_headers()
    request.wfile.write(raw)


def lab(base_url: str = "/", token: str = TOKEN) -> Reply:
    """Answers as JupyterLab does. No token: a password, so that only /api is open."""

    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        allowed = bool(token) and request.headers["Authorization"] == f"token {token}"
        if request.path == f"{base_url}api":
            answer(request, 200, {"version": "2.21.1"})
        elif request.path != f"{base_url}api/status":
            answer(request, 404, b"<html>")
        elif not allowed:
            answer(request, 403, {"message": "Forbidden"})
        else:
            answer(request, 200, {"kernels": 3, "connections": 1})

    return reply


def says(status: int, body: object) -> Reply:
    return lambda request: answer(request, status, body)


def open_to_anyone(request: http.server.BaseHTTPRequestHandler) -> None:
    answer(request, 400 if "Authorization" in request.headers else 200, {"kernels": 3, "version": "2.21.1"})


@pytest.fixture
def started(image: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What start decided: role dev. Time limits are those of the image, in small."""
    monkeypatch.setattr(health, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(server, "kept_by_s6", lambda pid: pid == OURS)
    runtime = image / "run/torchtap/jupyter"
    runtime.mkdir(parents=True)
    says = {
        "role": "dev",
        "services": ["sshd", "jupyter"],
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": [],
        "state": str(image / "var/lib/torchtap"),
        "ssh_port": 0,
        "jupyter_port": 1,
        "jupyter_runtime": str(runtime),
        "device": "cpu",
    }
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps(says))
    return says


def info(started: dict[str, Any], port: int, pid: int = OURS, **changes: Any) -> Path:
    """The file that JupyterLab writes (jupyter_server 2.21)."""
    usual = {
        "base_url": "/",
        "hostname": "0.0.0.0",
        "password": False,
        "pid": pid,
        "port": port,
        "root_dir": "/workspace",
        "secure": False,
        "sock": "",
        "token": TOKEN,
        "url": f"http://b9c1d2:{port}/",
        "version": "2.21.1",
    }
    file = Path(started["jupyter_runtime"]) / f"jpserver-{pid}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**usual, **changes}))
    return file


def ended(image: Path, name: str = "jupyter", in_s: float = 8.0, times: int = 3) -> None:
    folder = image / "run/torchtap/services" / name
    folder.mkdir(parents=True)
    record = {"how": "exit code 1", "times": times, "starts_again": time.time() + in_s}
    (folder / "ended.json").write_text(json.dumps(record))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed one, for a name that is not the address."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=lab.example -keyout key.pem -out cert.pem"
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return folder


def hang(request: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(2)


def cut_off(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"kern')
    request.close_connection = True


def drip(request: http.server.BaseHTTPRequestHandler) -> None:
    for _ in range(30):
        request.wfile.write(b"H")
        time.sleep(0.1)


def endless(request: http.server.BaseHTTPRequestHandler) -> None:
    with contextlib.suppress(OSError):
        for _ in range(1000):
            request.wfile.write(b"x" * 100_000)


def not_http(request: http.server.BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"\x15\x03\x01\x00\x02\x02F")  # what TLS says to plain HTTP


@dataclass
class Case:
    """A JupyterLab, what its file says of it, and what health makes of that. `{port}` is the server's."""

    name: str
    expected: str
    reply: Reply = field(default_factory=lab)
    says: dict[str, Any] = field(default_factory=dict)
    at: str = "127.0.0.1"
    unix: bool = False
    tls: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    well: bool = True


WELL, LOGIN = "jupyter: answers, kernels: 3", "jupyter: answers; it has no token to ask more with"
INVALID, NONE = (
    "jupyter: HTTP {status} on port {port}, not the answer to a valid token",
    "jupyter: no answer on ",
)
UNREADABLE = "jupyter: starting, it does not listen yet"
PROXIES = {f"{name}_proxy": "http://127.0.0.1:1" for name in ("http", "https", "all", "HTTP", "HTTPS", "ALL")}


def bad(name: str, expected: str, reply: Reply | None = None, **more: Any) -> Case:
    return Case(name, expected, reply or lab(), well=False, **more)


CASES = (
    Case("as the image starts it", WELL),
    Case("docker-stacks 1698, TLS of its own", WELL, tls=True, says={"secure": True}),
    Case("docker-stacks 1709, base_url", WELL, lab("/a/lab/"), says={"base_url": "/a/lab/"}),
    Case("docker-stacks 1709, base_url without a slash", WELL, lab("/a/lab/"), says={"base_url": "/a/lab"}),
    # Its port is never 8888 here: every case is also docker-stacks 1817.
    Case("docker-stacks 1962, proxy variables", WELL, variables={**PROXIES, "no_proxy": ""}),
    Case("docker-stacks 1962, proxy and TLS", WELL, tls=True, says={"secure": True}, variables=PROXIES),
    Case("all at once", WELL, lab("/x/"), tls=True, says={"secure": True, "base_url": "/x/"}, variables=PROXIES),
    Case("a token changed in ~/.jupyter", WELL, lab(token="mine"), says={"token": "mine"}),
    Case("a password alone", LOGIN, lab(token=""), says={"token": "", "password": True}),
    Case("a password alone, below a base_url", LOGIN, lab("/p/", token=""), says={"token": "", "base_url": "/p/"}),
    Case("open to anyone, by name", LOGIN, open_to_anyone, says={"token": ""}),
    Case("a UNIX socket", WELL, unix=True),
    Case("IPv6 alone", WELL, at="::1", says={"hostname": "::1"}),
    Case("IPv6, everywhere", WELL, at="::1", says={"hostname": "::"}),
    Case("everywhere, by a star", WELL, says={"hostname": "*"}),
    Case("localhost", WELL, says={"hostname": "localhost"}),
    bad("refuses its own token", INVALID.replace("{status}", "403"), says={"token": "another"}),
    bad("401", INVALID.replace("{status}", "401"), says(401, {})),
    bad("404", INVALID.replace("{status}", "404"), says(404, b"<html>")),
    bad("redirects", INVALID.replace("{status}", "302"), says(302, b"")),
    bad("500", INVALID.replace("{status}", "500"), says(500, b"oops")),
    bad("no token, refused", "jupyter: HTTP 403 on port {port}, not the answer of", says(403, {}), says={"token": ""}),
    bad("no token, and another server", NONE + "port {port} (KeyError(", says(200, {}), says={"token": ""}),
    bad("200 of another server", NONE + "port {port} (JSONDecodeError(", says(200, b"<html>welcome</html>")),
    bad("200 with bytes", NONE + "port {port} (UnicodeDecodeError(", says(200, b"\xff\xfe\xff")),
    bad("200 without kernels", NONE + "port {port} (KeyError(", says(200, {"started": "x"})),
    bad("200 with a list", NONE + "port {port} (TypeError(", says(200, [])),
    bad("200 with null", NONE + "port {port} (TypeError(", says(200, None)),
    bad("200 with a text for a number", NONE + "port {port} (ValueError(", says(200, {"kernels": "many"})),
    bad("hangs", NONE + "port {port} (TimeoutError(", hang),
    bad("drips", NONE + "port {port} (TimeoutError(", drip),
    bad("endless", NONE + "port {port} (ValueError(", endless),
    bad("cut off", NONE + "port {port} (JSONDecodeError(", cut_off),
    bad("TLS, and its file says plain", NONE + "port {port} (", tls=True),
    bad("plain, and its file says TLS", NONE + "port {port} (SSLError(", says={"secure": True}),
    bad("no HTTP", NONE + "port {port} (ValueError('the answer is no HTTP", not_http),
    bad("its file says another port", NONE + "port 1 (ConnectionRefused", says={"port": 1}),
    bad("a token that no header can carry", "jupyter: its token holds letters that", says={"token": "a\r\nHost: x"}),
    bad("a token that is not ASCII", "jupyter: its token holds letters that", says={"token": "tokén"}),
    bad("a socket that is not there", NONE + "/nowhere/lab.sock (FileNotFound", says={"sock": "/nowhere/lab.sock"}),
    bad("a name in place of an address", UNREADABLE, says={"hostname": "lab.example"}),
    bad("a base_url that is none", UNREADABLE, says={"base_url": "x y"}),
    bad("a port that is none", UNREADABLE, says={"port": "eight"}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_jupyter(
    case: Case,
    started: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    open_path: Path,
) -> None:
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)
    sock = str(open_path / "lab.sock") if case.unix else ""
    if case.at == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 here")
    tls = request.getfixturevalue("certificate") if case.tls else None
    with listening(case.reply, at=case.at, sock=sock, tls=tls) as port:
        info(started, **{"port": port, "sock": sock, **case.says})
        began = time.monotonic()
        well, line = health.jupyter(started)
    assert (well, line[: len(expected := case.expected.format(port=port))]) == (case.well, expected), line
    assert "\n" not in line
    assert TOKEN not in line
    assert time.monotonic() - began < 1.9


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# ---- which server is ours ----
def test_docker_stacks_2073_a_runtime_folder_of_the_users_own(
    started: dict[str, Any], open_path: Path
) -> None:
    with listening(lab()) as port:
        info(mine := {**started, "jupyter_runtime": str(open_path / "rt")}, port)
        assert health.jupyter(mine) == (True, WELL)


def test_files_of_servers_that_were_killed_are_passed_over(started: dict[str, Any]) -> None:
    for pid in (DEAD, DEAD + 1, DEAD + 2, 1):
        info(started, 1, pid=pid, token="old")
    with listening(lab()) as port:
        info(started, port)
        assert health.jupyter(started) == (True, WELL)


def test_a_server_that_the_user_runs_is_not_taken_for_ours(started: dict[str, Any]) -> None:
    with listening(lab()) as port:
        info(started, port, pid=OTHER_PID)
        assert health.jupyter(started) == (False, "jupyter: starting, it does not listen yet")


def test_a_name_that_is_no_servers_is_passed_over(started: dict[str, Any]) -> None:
    folder = Path(started["jupyter_runtime"])
    for name in ("jpserver-x.json", "jpserver-4711.json.bak", "nbserver-4711.json", "jpserver-04711.json"):
        (folder / name).write_text("{}")
    os.mkfifo(folder / f"jpserver-{OURS}.json")
    assert health.jupyter(started) == (False, "jupyter: starting, it does not listen yet")


def test_only_the_child_of_its_own_supervisor_is_ours(tmp_path: Path) -> None:
    for pid, parent, command in (
        (10, 1, b"s6-supervise\0jupyter\0"),
        (11, 10, b"jupyter-lab\0"),
        (12, 11, b"sh\0"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "status").write_text("PPid:\t12\n")
    assert [server.kept_by_s6(pid, tmp_path) for pid in (11, 12, 13, 99)] == [True, False, False, False]


@needs_root
def test_a_link_in_place_of_its_file_leads_root_nowhere(started: dict[str, Any], open_path: Path) -> None:
    """The folder is the user's; what root alone may read must not be sent anywhere."""
    with listening(lab()) as port:
        file = info(started, port)
        secret = open_path / "secret"
        file.rename(secret)
        secret.chmod(0o600)
        file.symlink_to(secret)
        Path(started["jupyter_runtime"]).chmod(0o755)
        assert not health.jupyter({**started, "uid": UID, "gid": GID})[0]
        assert health.jupyter(started)[0], "the case is set up rightly"


# ---- why there is none ----
def test_a_jupyter_that_ends_again_and_again_is_said_with_its_reason(
    started: dict[str, Any], image: Path
) -> None:
    ended(image)
    well, line = health.jupyter(started)
    assert not well
    assert line == "jupyter: does not run: ended (exit code 1), 3 times in a row; starts again in 8 s"


def test_an_end_in_the_past_is_no_wait(started: dict[str, Any], image: Path) -> None:
    ended(image, in_s=-5, times=1)
    assert health.jupyter(started)[1] == "jupyter: does not run: ended (exit code 1); starts again now"


def test_a_port_that_another_program_has_is_named_with_the_variable(
    started: dict[str, Any], image: Path
) -> None:
    ended(image)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = health.jupyter({**started, "jupyter_port": port})[1]
    assert line.startswith(
        f"jupyter: port {port} is taken by another program; start with -e JUPYTER_PORT_IN_CONTAINER="
    )


@pytest.mark.parametrize("text", ["", "[]", '{"how": 1}', '{"how": "x", "times": 1, "starts_again": "soon"}'])
def test_a_spoiled_note_of_the_end_is_passed_over(started: dict[str, Any], image: Path, text: str) -> None:
    ended(image)
    (image / "run/torchtap/services/jupyter/ended.json").write_text(text)
    assert health.jupyter(started)[1] == "jupyter: starting, it does not listen yet"


@pytest.mark.parametrize("ended_before", [False, True])
def test_a_start_that_hangs_is_said_with_the_way_out(
    started: dict[str, Any], image: Path, ended_before: bool
) -> None:
    """A package can wait for ever at its import; the service does not end by that, so nothing falls back."""
    folder = image / "run/torchtap/services/jupyter"
    if ended_before:
        ended(image, in_s=-100)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "began").touch()
    assert "has not answered" not in health.jupyter(started)[1]
    os.utime(folder / "began", (time.time() - 90, time.time() - 90))
    assert health.jupyter(started) == (
        False,
        "jupyter: has not answered for 90 s; TORCHTAP_SAFE=1 starts without your packages",
    )


# ---- sshd ----
@contextlib.contextmanager
def sshd_that(greets: bytes | None, close: bool = False) -> Iterator[int]:
    """A server on a port of its own that says `greets`; None: accepts, and stays silent."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    if greets is not None:
                        connection.sendall(greets)
                    if not close:
                        while more := connection.recv(100):
                            received.append(more)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def test_sshd_that_greets_is_well(started: dict[str, Any]) -> None:
    with sshd_that(b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13\r\n") as port:
        assert health.sshd({**started, "ssh_port": port}) == (True, "sshd: answers")


@pytest.mark.parametrize(
    ("greets", "close", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", False, "sshd: no SSH banner on port {port}"),
        (b"\x00\xff\x00", False, "sshd: no SSH banner on port {port}"),
        (b"SSH-1.5-old\r\n", False, "sshd: no SSH banner on port {port}"),
        (b"", True, "sshd: no SSH banner on port {port}"),
        (None, False, "sshd: no answer on port {port} (timed out)"),
    ],
    ids=["HTTP", "bytes", "SSH 1", "closes at once", "hangs"],
)
def test_anything_else_on_its_port_is_not_well(
    started: dict[str, Any], greets: bytes | None, close: bool, text: str
) -> None:
    with sshd_that(greets, close) as port:
        well, line = health.sshd({**started, "ssh_port": port})
    assert not well
    # A peer that has closed may refuse what is sent after it: then the system's own words follow.
    assert line.startswith((text.format(port=port), "sshd: no answer on port" if close else "x"))


def test_an_sshd_that_ended_is_said_to_start_again(started: dict[str, Any], image: Path) -> None:
    ended(image, "sshd")
    line = health.sshd({**started, "ssh_port": 1})[1]
    assert line.endswith("; ended (exit code 1), 3 times in a row; starts again in 8 s)")


# ---- together ----
def test_all_services_have_to_be_well(started: dict[str, Any]) -> None:
    with listening(lab()) as port, sshd_that(b"SSH-2.0-x\r\n") as ssh_port:
        info(started, port)
        says = {**started, "ssh_port": ssh_port}
        assert health.services(says) == (True, f"sshd: answers; {WELL}")
        well, line = health.services({**says, "ssh_port": 1})
    assert not well
    assert line.startswith("sshd: no answer on port 1 (")
    assert line.endswith("; jupyter: answers, kernels: 3")


def test_only_what_was_started_is_asked(started: dict[str, Any]) -> None:
    with listening(lab()) as port:
        info(started, port)
        assert health.services({**started, "services": ["jupyter"]}) == (True, WELL)


def test_a_command_has_nothing_to_fail() -> None:
    says = {"role": "selftest", "services": []}
    assert health.check(says) == (True, "role selftest: a command, with no service to check")


def test_time_limits_add_up_to_less_than_the_healthchecks() -> None:
    """Docker ends a check at its limit, and then its line is lost."""
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text()
    limit_s = int(dockerfile.partition("HEALTHCHECK")[2].partition("--timeout=")[2].partition("s")[0])
    assert health.TIMEOUT_S * len(health.CHECKS) + 1 <= limit_s


def test_main_says_one_line_and_its_exit_code(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main() == 1
    assert capsys.readouterr().out == "starting: start has not finished yet\n"
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps({"role": "command", "services": []}))
    assert health.main() == 0
    assert capsys.readouterr().out == "role command: a command, with no service to check\n"
