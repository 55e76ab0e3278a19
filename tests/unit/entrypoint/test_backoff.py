"""A service that ends: how long until the next start, and what is said and noted of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from entrypoint import backoff


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of the service jupyter in a run directory."""
    folder = tmp_path / "services/jupyter"
    folder.mkdir(parents=True)
    return folder


def end(folder: Path, ran_s: float, code: int = 256, number: int = 9) -> None:
    began = folder / backoff.BEGAN
    began.touch()
    os.utime(began, (time.time() - ran_s,) * 2)
    backoff.ended(folder.name, code, number, folder)


def test_waits_grow_to_a_minute_and_begin_anew_after_a_minute_of_running(folder: Path) -> None:
    seen = []
    for ran_s in (0, 2, 0, 0, 0, 0, 0, 0, 59, 61, 0):
        end(folder, ran_s)
        seen.append(int((folder / backoff.WAIT).read_text()))
    assert seen == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1, 2]


def test_the_line_says_how_it_ended_and_when_it_starts_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(folder, 12)
    end(folder, 3, code=1, number=0)
    end(folder, 3, code=0, number=0)
    assert capsys.readouterr().err.splitlines() == [
        "WARNING jupyter: ended (signal 9, SIGKILL) after 12 s; starts again in 1 s",
        "WARNING jupyter: ended (exit code 1) after 3 s; starts again in 2 s",
        "INFO    jupyter: ended (exit code 0) after 3 s; starts again in 4 s",
    ]


def test_health_can_read_it(folder: Path) -> None:
    for _ in range(3):
        end(folder, 1, code=78, number=0)
    last = backoff.last_end(folder.parents[1], "jupyter")
    assert last is not None
    assert (last["times"], last["how"]) == (
        3,
        "exit code 78: JupyterLab would be open to anyone; the error above says what to do",
    )
    assert 3 < last["starts_again"] - time.time() <= 4
    end(folder, 100)
    assert (backoff.last_end(folder.parents[1], "jupyter") or {})["times"] == 1


def test_one_that_was_ended_while_it_waited_has_run_no_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backoff.ended("jupyter", 256, 15, folder)
    assert capsys.readouterr().err == (
        "WARNING jupyter: ended (signal 15, SIGTERM) after 0 s; starts again in 1 s\n"
    )


@pytest.mark.parametrize("text", ["", "x", "-"])
def test_a_spoiled_wait_counts_as_none(folder: Path, text: str) -> None:
    (folder / backoff.WAIT).write_text(text)
    end(folder, 1)
    assert (folder / backoff.WAIT).read_text() == "1\n"


@pytest.mark.parametrize("said", [None, "", "[]", "{"])
def test_no_note_or_a_spoiled_one_is_none(folder: Path, said: str | None) -> None:
    if said is not None:
        (folder / backoff.ENDED).write_text(said)
    assert backoff.last_end(folder.parents[1], "jupyter") is None


def test_where_nothing_has_started_nothing_has_ended() -> None:
    assert backoff.last_end(None, "jupyter") is None
