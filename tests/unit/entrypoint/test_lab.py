"""Which python starts JupyterLab: the user's, until it has failed twice for a reason that may lie in it."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from entrypoint import lab, overlay, paths


class BecameError(Exception):
    """In place of becoming another program."""


@pytest.fixture
def failed_twice(image: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory whose JupyterLab has ended at its start two times."""
    run = image / "run/torchtap"
    (run / paths.STARTED).write_text(json.dumps({"jupyter_port": 1}))
    python = run / overlay.LINK / "bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (run / "jupyter").mkdir()
    (image / "var/lib/torchtap" / paths.TOKEN).write_text("0123abcd\n")
    now = time.time() + 1
    (run / "jupyter" / lab.RECORD).write_text(f"11 {now}\n12 {now}\n")
    ends(run, "exit code 1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(run / "jupyter"))
    monkeypatch.setenv("PATH", os.environ["PATH"])

    def execute(program: str, *_: object) -> None:
        raise BecameError(program)

    monkeypatch.setattr(lab, "execute", execute)
    return run


def ends(run: Path, how: str) -> None:
    folder = run / paths.SERVICES / "jupyter"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ended.json").write_text(json.dumps({"how": how, "times": 2, "starts_again": 0}))


def test_the_base_alone_starts_it_after_two_failures(
    failed_twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BecameError, match=f"^{paths.VENV}/bin/jupyter-lab$"):
        lab.main()
    assert "ended 2 times at its start with your packages" in capsys.readouterr().err


def test_a_refusal_for_lack_of_a_login_is_not_blamed_on_packages(failed_twice: Path) -> None:
    ends(failed_twice, "exit code 78: JupyterLab would be open to anyone")
    with pytest.raises(BecameError, match=f"/{overlay.LINK}/bin/python$"):
        lab.main()


def test_a_taken_port_is_not_blamed_on_packages(
    failed_twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (failed_twice / paths.STARTED).write_text(json.dumps({"jupyter_port": taken.getsockname()[1]}))
        with pytest.raises(BecameError, match=f"/{overlay.LINK}/bin/python$"):
            lab.main()
    assert capsys.readouterr().err == ""


def test_a_token_that_was_removed_is_made_again_before_jupyterlab_starts(
    failed_twice: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it Jupyter would go on with one of its own, which it writes into the log."""
    file = paths.STATE / paths.TOKEN
    file.unlink()
    monkeypatch.setenv("TORCHTAP_STATE", str(paths.STATE))
    with pytest.raises(BecameError):
        lab.main()
    assert len(file.read_text()) == 49
    assert file.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr().err
    assert "jupyter-token was gone: a new one is made" in said
    assert file.read_text().strip() not in said


@pytest.mark.parametrize("how", ["exit code 0", "exit code 1", "signal 15, SIGTERM"])
def test_an_end_before_the_server_answered_counts_whatever_its_exit_code(
    failed_twice: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package can end the process with 0 at its import."""
    ends(failed_twice, how)
    with pytest.raises(BecameError, match=f"^{paths.VENV}/bin/jupyter-lab$"):
        lab.main()
    assert "ended 2 times" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["exit code 0", "exit code 1"])
def test_an_end_after_the_server_answered_is_not_blamed_on_packages(failed_twice: Path, how: str) -> None:
    """Its own file is gone when it was shut down, so another says that it has answered."""
    ends(failed_twice, how)
    (failed_twice / "jupyter" / lab.ANSWERED).write_text("12\n")
    with pytest.raises(BecameError, match=f"/{overlay.LINK}/bin/python$"):
        lab.main()


def test_that_an_earlier_server_answered_says_nothing_of_this_one(failed_twice: Path) -> None:
    (failed_twice / "jupyter" / lab.ANSWERED).write_text("11\n")
    with pytest.raises(BecameError, match=f"^{paths.VENV}/bin/jupyter-lab$"):
        lab.main()
