"""Health, against real sockets: a service is well only when it gives the answer that it should."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoint import health, paths

from .conftest import GID, UID, needs_root

TOKEN = "0123456789abcdef"
Reply = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def jupyter_that(reply: Reply) -> Iterator[int]:
    """A server on a port of its own whose every GET is answered by `reply`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


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


def says(status: int, body: object) -> Reply:
    """An answer that, as JupyterLab's, depends on the token."""

    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        allowed = request.headers["Authorization"] == f"token {TOKEN}" and request.path == "/api/status"
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request.send_response(status if allowed else 403)
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)

    return reply


WELL = says(200, {"kernels": 3, "connections": 1})


@pytest.fixture
def started(image: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What start decided: role dev, with a token. Time limits are those of the image, in small."""
    monkeypatch.setattr(health, "TIMEOUT_S", 0.5)
    (image / "var/lib/torchtap/jupyter-token").write_text(f"{TOKEN}\n")
    return {
        "role": "dev",
        "services": ["sshd", "jupyter"],
        "uid": os.getuid(),
        "gid": os.getgid(),
        "state": str(image / "var/lib/torchtap"),
        "ssh_port": 0,
    }


def jupyter(started: dict[str, Any], port: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    monkeypatch.setattr(health, "JUPYTER_PORT", port)
    return health.jupyter(started)


def test_jupyter_that_knows_the_token_is_well(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with jupyter_that(WELL) as port:
        assert jupyter(started, port, monkeypatch) == (True, "jupyter: answers, kernels: 3")


def hang(request: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(2)


def cut_off(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"kern')
    request.close_connection = True


def not_http(request: http.server.BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"\x15\x03\x01\x00\x02\x02F")  # what TLS says to plain HTTP


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (says(401, {}), "jupyter: HTTP 401 on port {port}, not the answer to a valid token"),
        (says(403, {}), "jupyter: HTTP 403 on port {port}, not the answer to a valid token"),
        (says(404, b"<html>"), "jupyter: HTTP 404 on port {port}, not the answer to a valid token"),
        (says(302, b""), "jupyter: HTTP 302 on port {port}, not the answer to a valid token"),
        (says(500, b"oops"), "jupyter: HTTP 500 on port {port}, not the answer to a valid token"),
        (says(200, b"<html>welcome</html>"), "jupyter: no answer on port {port} (JSONDecodeError("),
        (says(200, b"\xff\xfe\xff"), "jupyter: no answer on port {port} (UnicodeDecodeError("),
        (says(200, {"started": "x"}), "jupyter: no answer on port {port} (KeyError("),
        (says(200, []), "jupyter: no answer on port {port} (TypeError("),
        (says(200, None), "jupyter: no answer on port {port} (TypeError("),
        (hang, "jupyter: no answer on port {port} (TimeoutError("),
        (cut_off, "jupyter: no answer on port {port} (IncompleteRead("),
        (not_http, "jupyter: no answer on port {port} (BadStatusLine("),
    ],
    ids=[
        "401",
        "403",
        "404",
        "redirected",
        "500",
        "200 of another server",
        "200 with bytes",
        "200 without kernels",
        "200 with a list",
        "200 with null",
        "hangs",
        "cut off",
        "TLS",
    ],
)
def test_any_other_answer_is_not_well(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, reply: Reply, text: str
) -> None:
    began = time.monotonic()
    with jupyter_that(reply) as port:
        well, line = jupyter(started, port, monkeypatch)
    assert not well
    assert line.startswith(text.format(port=port))
    assert "\n" not in line
    assert TOKEN not in line
    assert time.monotonic() - began < 1.9


def test_a_wrong_token_is_not_well(started: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(started["state"]) / "jupyter-token").write_text("another\n")
    with jupyter_that(WELL) as port:
        assert jupyter(started, port, monkeypatch) == (
            False,
            f"jupyter: HTTP 403 on port {port}, not the answer to a valid token",
        )


@pytest.mark.parametrize(
    "raw",
    [None, b"", b"two\nlines\n", b"\xff\xfe", b"tok\xc3\xa9n"],
    ids=["missing", "empty", "two lines", "bytes", "not ASCII"],
)
def test_a_spoiled_token_file_is_said_and_not_shown(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, raw: bytes | None
) -> None:
    file = Path(started["state"]) / "jupyter-token"
    file.unlink()
    if raw is not None:
        file.write_bytes(raw)
    with jupyter_that(WELL) as port:
        well, line = jupyter(started, port, monkeypatch)
    assert not well
    assert line.startswith("jupyter: no token to ask with (")
    assert not raw or os.fsdecode(raw).strip() not in line


def test_nobody_listening_is_not_well(started: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert jupyter(started, port, monkeypatch)[1].startswith(
        f"jupyter: no answer on port {port} (ConnectionRefused"
    )


def test_proxy_variables_have_no_say(started: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with jupyter_that(WELL) as port:
        assert jupyter(started, port, monkeypatch)[0]


@needs_root
def test_a_link_in_place_of_the_token_leads_root_nowhere(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, open_path: Path
) -> None:
    """The state folder is the user's to write in; what root alone may read must not be sent to port 8888."""
    secret = open_path / "secret"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    file = Path(started["state"]) / "jupyter-token"
    file.unlink()
    file.symlink_to(secret)
    with jupyter_that(WELL) as port:
        well, line = jupyter({**started, "uid": UID, "gid": GID}, port, monkeypatch)
    assert not well
    assert "Permission denied" in line


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


def test_all_services_have_to_be_well(started: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with jupyter_that(WELL) as port, sshd_that(b"SSH-2.0-x\r\n") as ssh_port:
        monkeypatch.setattr(health, "JUPYTER_PORT", port)
        says = {**started, "ssh_port": ssh_port}
        assert health.check(says) == (True, "sshd: answers; jupyter: answers, kernels: 3")
        well, line = health.check({**says, "ssh_port": 1})
    assert not well
    assert line.startswith("sshd: no answer on port 1 (")
    assert line.endswith("; jupyter: answers, kernels: 3")


def test_only_what_was_started_is_asked(started: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with jupyter_that(WELL) as port:
        monkeypatch.setattr(health, "JUPYTER_PORT", port)
        assert health.check({**started, "services": ["jupyter"]}) == (True, "jupyter: answers, kernels: 3")


def test_a_command_has_nothing_to_fail() -> None:
    says = {"role": "selftest", "services": []}
    assert health.check(says) == (True, "role selftest: a command, with no service to check")


def test_time_limits_add_up_to_less_than_the_healthchecks() -> None:
    """Docker ends a check at its limit, and then its line is lost."""
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text()
    limit_s = int(dockerfile.partition("HEALTHCHECK")[2].partition("--timeout=")[2].partition("s")[0])
    assert health.TIMEOUT_S * len(health.CHECKS) + 1 <= limit_s


def test_main_says_one_line_and_its_exit_code(
    image: Path, started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main() == 1
    assert capsys.readouterr().out == "starting: start has not finished yet\n"
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps({"role": "command", "services": []}))
    assert health.main() == 0
    assert capsys.readouterr().out == "role command: a command, with no service to check\n"
