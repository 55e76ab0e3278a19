"""torchtap-url: one link, or one line that says why there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from entrypoint import paths, url

from .conftest import GID, UID, needs_root


@pytest.fixture
def started(image: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("JUPYTER_PORT", raising=False)
    state = image / "var/lib/torchtap"
    (state / "jupyter-token").write_text("0123abcd\n")
    says = {
        "role": "dev",
        "services": ["sshd", "jupyter"],
        "state": str(state),
        "uid": os.getuid(),
        "gid": os.getgid(),
    }
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps(says))
    return state


def test_link_carries_the_token(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert url.main([]) == 0
    assert capsys.readouterr() == ("http://127.0.0.1:8888/lab?token=0123abcd\n", "")


def test_port_is_the_hosts(
    started: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PORT", "18888")
    assert url.main([]) == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:18888/lab?")


def test_a_token_of_the_users_own_is_quoted(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (started / "jupyter-token").write_text("a&b#c/%\n")
    assert url.main([]) == 0
    assert capsys.readouterr().out == "http://127.0.0.1:8888/lab?token=a%26b%23c%2F%25\n"


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


def test_a_token_that_cannot_be_read_is_said(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (started / "jupyter-token").unlink()
    assert url.main([]) == 1
    assert capsys.readouterr().err.startswith("torchtap-url: the token cannot be read: ")


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
def test_a_link_in_place_of_the_token_is_not_followed_by_root(
    started: Path, open_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = open_path / "secret"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    (started / "jupyter-token").unlink()
    (started / "jupyter-token").symlink_to(secret)
    file = started.parents[2] / "run/torchtap" / paths.STARTED
    file.write_text(json.dumps({**json.loads(file.read_text()), "uid": UID, "gid": GID}))
    assert url.main([]) == 1
    assert "secret\n" not in "".join(capsys.readouterr())
