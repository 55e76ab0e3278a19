"""torchtap-url: one link that works, or one line that says why there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from entrypoint import paths, server, url

from .conftest import GID, UID, needs_root

PID = 4711


@pytest.fixture
def started(image: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.delenv("JUPYTER_PORT", raising=False)
    monkeypatch.setattr(url, "PATIENCE_S", 0.2)
    monkeypatch.setattr(server, "kept_by_s6", lambda pid: pid == PID)
    says = {
        "role": "dev",
        "services": ["sshd", "jupyter"],
        "uid": os.getuid(),
        "gid": os.getgid(),
        "jupyter_port": 8888,
        "jupyter_runtime": str(image / "run/torchtap/jupyter"),
    }
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps(says))
    (image / "run/torchtap/jupyter").mkdir()
    return says


def says(started: dict[str, Any], **changes: Any) -> Path:
    usual = {"hostname": "", "port": 8888, "sock": "", "secure": False, "base_url": "/", "token": "0123abcd"}
    file = Path(started["jupyter_runtime"]) / f"jpserver-{PID}.json"
    file.write_text(json.dumps({**usual, **changes}))
    return file


@pytest.mark.parametrize(
    ("changes", "port", "link"),
    [
        ({}, None, "http://127.0.0.1:8888/lab?token=0123abcd"),
        ({}, "18888", "http://127.0.0.1:18888/lab?token=0123abcd"),
        ({"port": 9999}, None, "http://127.0.0.1:9999/lab?token=0123abcd"),
        ({"port": 9999}, "18888", "http://127.0.0.1:9999/lab?token=0123abcd"),
        ({"port": 9999}, "", "http://127.0.0.1:9999/lab?token=0123abcd"),
        ({"secure": True}, None, "https://127.0.0.1:8888/lab?token=0123abcd"),
        ({"base_url": "/my/lab"}, None, "http://127.0.0.1:8888/my/lab/lab?token=0123abcd"),
        ({"token": "a&b#c/%"}, None, "http://127.0.0.1:8888/lab?token=a%26b%23c%2F%25"),
        ({"token": ""}, None, "http://127.0.0.1:8888/lab"),
    ],
    ids=[
        "usual",
        "the host's port",
        "its own port",
        "its own port and the host's",
        "empty is unset",
        "TLS",
        "base_url",
        "quoted",
        "password",
    ],
)
def test_link(
    started: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    port: str | None,
    link: str,
) -> None:
    says(started, **changes)
    if port is not None:
        monkeypatch.setenv("JUPYTER_PORT", port)
    assert url.main([]) == 0
    assert capsys.readouterr() == (f"{link}\n", "")


def test_the_last_selftest_is_said_beside_the_link(
    started: dict[str, Any], image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And `$(torchtap-url)` stays the link alone."""
    says(started)
    report = image / "var/lib/torchtap/selftest.json"
    also = {"selftest": "warn", "report": str(report)}
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps({**started, **also}))
    report.write_text('{"verdict": "pass", "first_cause": null, "results": []}')
    assert url.main([]) == 0
    said = capsys.readouterr()
    assert said.out == "http://127.0.0.1:8888/lab?token=0123abcd\n"
    assert said.err == "self-test: pass, just now\n"


def test_a_server_on_loopback_alone_is_said_to_be_out_of_reach(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    says(started, hostname="localhost")
    assert url.main([]) == 0
    assert capsys.readouterr().err == (
        "torchtap-url: JupyterLab listens on localhost in the container: a published port does not lead there\n"
    )


def test_a_token_that_no_link_can_carry_is_said(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    says(started, token="two words")
    assert url.main([]) == 1
    assert "holds letters that no link can carry" in capsys.readouterr().err


def test_no_link_leads_to_a_unix_socket(started: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    says(started, sock="/tmp/lab.sock")
    assert url.main([]) == 1
    assert capsys.readouterr() == (
        "",
        "torchtap-url: JupyterLab listens on the UNIX socket /tmp/lab.sock alone: no link leads there\n",
    )


def test_a_server_that_does_not_run_has_no_link(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert url.main([]) == 1
    assert capsys.readouterr() == ("", "torchtap-url: jupyter: starting, it does not listen yet\n")


@pytest.mark.parametrize(
    ("says", "why"),
    [(None, ""), ({"role": "ssh", "services": ["sshd"], "state": "/"}, " (role ssh)")],
    ids=["start has not finished", "role ssh"],
)
def test_without_jupyter_there_is_no_link(
    image: Path, capsys: pytest.CaptureFixture[str], says: dict[str, object] | None, why: str
) -> None:
    if says:
        (image / "run/torchtap" / paths.STARTED).write_text(json.dumps(says))
    assert url.main([]) == 1
    assert capsys.readouterr() == ("", f"torchtap-url: JupyterLab does not run in this container{why}\n")


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["-h"], 0), (["open"], 2), (["--help", "x"], 2)], ids=str
)
def test_usage_goes_where_it_was_asked_for(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert url.main(words) == code
    out, err = capsys.readouterr()
    assert (out, err) == ((url.USAGE, "") if code == 0 else ("", url.USAGE))


@needs_root
def test_a_link_in_place_of_the_servers_file_is_not_followed_by_root(
    started: dict[str, Any], open_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = says(started, token="secret")
    secret = open_path / "secret"
    file.rename(secret)
    secret.chmod(0o600)
    file.symlink_to(secret)
    assert url.main([]) == 0, "the case is set up rightly"
    capsys.readouterr()
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps({**started, "uid": UID, "gid": GID}))
    Path(started["jupyter_runtime"]).chmod(0o755)
    assert url.main([]) == 1
    assert "secret" not in "".join(capsys.readouterr())
