"""What the last self-test said, in the few lines that a login and torchtap-url have room for.

Read from the report that the self-test has left; nothing is ever tested here. The report is dev's file, and dev could
write anything into it. So dev reads its sentences, less every control character; root, who may run torchtap-url,
reads nothing but ids and words of closed sets.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint import paths
from entrypoint.account import acting_as

GOOD, BAD = ("pass", "warn"), ("fail", "unknown")
PATIENCE_S = 300.0  # since the start; then a self-test that has left no report will not leave one any more
AGAIN = "torchtap selftest"


@dataclass(frozen=True, slots=True)
class Last:
    """The last report, as far as it is shown. `check` and `cause_id` are empty after a pass."""

    verdict: str
    at: float  # seconds since 1970
    check: str = ""
    cause_id: str = ""
    cause: str = ""
    do: str = ""

    @property
    def word(self) -> str:
        """As in the reports: what is not a pass is loud."""
        return self.verdict if self.verdict == "pass" else self.verdict.upper()


class UnreadableError(ValueError):
    """There is a report, and nobody can say what is in it."""


def read(report: Path, owners: tuple[int, ...]) -> Last | None:
    """The report in this file; None where there is none. Raises `UnreadableError`."""
    try:
        found = report.stat()
        if found.st_uid not in owners:
            raise UnreadableError("it is another user's")
        return parse(paths.read(report), found.st_mtime)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from None


def parse(text: bytes | str, at: float) -> Last:
    """What a report in JSON says. Raises `UnreadableError`.

    >>> parse('{"verdict": "pass", "first_cause": null, "results": []}', 0).word
    'pass'
    """
    try:
        report: Any = json.loads(text)
        verdict = report["verdict"]
        if verdict not in (*GOOD, *BAD):
            raise UnreadableError("its verdict is none")
        first = report["first_cause"]
        if first is None:
            return Last(verdict, at)
        result = next(each for each in report["results"] if each["id"] == first["id"])
        return Last(
            verdict,
            at,
            _id(first["id"]),
            _id(first["cause_id"]),
            _plain(result["cause"] or result["seen"]),
            _plain((result["remedy"] or "").partition("\n")[0]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
        known = isinstance(error, UnreadableError)
        raise error if known else UnreadableError("it is no report of a self-test") from None


def _id(text: object) -> str:
    """An id of the self-test; what is none is not shown."""
    return text if isinstance(text, str) and re.fullmatch(r"[a-z0-9_.]{1,40}", text) else ""


def _plain(text: object, limit: int = 400) -> str:
    """Letters that can do nothing to a terminal.

    >>> _plain("GPU 1\\x1b[2J is\\nlost")
    'GPU 1?[2J is?lost'
    """
    return re.sub("[^ -~]", "?", str(text)[:limit])


def ago(seconds: float) -> str:
    """
    >>> ago(20), ago(200), ago(7200), ago(200_000)
    ('just now', '3 min ago', '2 h ago', '2 days ago')
    """
    for least, size, unit in ((172_800, 86_400, "days"), (3600, 3600, "h"), (60, 60, "min")):
        if seconds >= least:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


def last_good(report: Path) -> Path:
    """Where the last good report is once a later one has taken its place.

    >>> last_good(Path("/var/lib/torchtap/selftest.json")).name
    'selftest-last-good.json'
    """
    return report.with_name(f"{report.stem}-last-good.json")


def make_room(report: Path) -> None:
    """Before a new self-test: keep the report that is there if it was good, so that one can compare after a fault."""
    with contextlib.suppress(OSError, UnreadableError):
        found = read(report, (os.geteuid(), 0))
        if found is not None and found.verdict in GOOD:
            os.replace(report, last_good(report))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Either what the self-test of this start said (`last`), or why there is nothing to show."""

    last: Last | None
    why: str = ""
    before: Last | None = None  # the report of an earlier start, while this start has none


def _look(started: Mapping[str, Any], now: float) -> _Seen:
    run = paths.run_directory()
    report = Path(str(started["report"]))
    began = (run / paths.STARTED).stat().st_mtime if run else 0.0
    try:
        with acting_as(started["uid"], started["gid"]):
            found = read(report, (started["uid"], 0))
    except UnreadableError as error:
        return _Seen(None, f"{report} cannot be read: {error}")
    if found is not None and found.at >= began:
        return _Seen(found)
    if now - began > PATIENCE_S:
        return _Seen(None, "this start has left no report; the container's log may say why", found)
    return _Seen(None, "has not ended yet", found)


def _is_off(started: Mapping[str, Any]) -> bool:
    return bool(started.get("selftest", "off") == "off")


def at_login(started: Mapping[str, Any], now: float | None = None) -> list[tuple[str, str]]:
    """Label and text of each line, at most three; none where no self-test is wanted (TORCHTAP_SELFTEST=off)."""
    if _is_off(started):
        return []
    now = time.time() if now is None else now
    seen = _look(started, now)
    last = seen.last
    if last is None:
        lines = [("self-test", seen.why)]
        if seen.before:
            lines.append(("before it", _short(seen.before, now)))
        return [*lines, ("run it", AGAIN)]
    when = ago(now - last.at)
    if not last.check:
        return [("self-test", f"{last.word}, {when}")]
    lines = [("self-test", f"{last.word}, {when}: {last.cause}"), *([("do", last.do)] if last.do else [])]
    good = last_good(Path(str(started["report"])))
    earlier = ""
    if last.verdict in BAD:
        with contextlib.suppress(OSError):
            earlier = f"     (the last good one, {ago(now - good.stat().st_mtime)}: {good})"
    return [*lines, ("all of it", f"{AGAIN}{earlier}")]


def beside_link(started: Mapping[str, Any], now: float | None = None) -> str:
    """One line for torchtap-url, of nothing but known words; empty where no self-test is wanted."""
    if _is_off(started):
        return ""
    now = time.time() if now is None else now
    seen = _look(started, now)
    if seen.last is None:
        before = f"; before it: {_short(seen.before, now)}" if seen.before else ""
        return f"self-test: {seen.why}{before}"
    more = "" if seen.last.verdict == "pass" else "     docker exec CONTAINER selftest says what to do"
    return f"self-test: {_short(seen.last, now)}{more}"


def _short(last: Last, now: float) -> str:
    what = f" ({last.check}: {last.cause_id})" if last.check and last.cause_id else ""
    return f"{last.word}{what}, {ago(now - last.at)}"
