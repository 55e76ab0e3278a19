"""`make audit`: the locked packages against the published advisories, with pip-audit from .venv.

Three answers: nothing found, findings, not audited. What could not be looked up is never counted as good: pip-audit
itself ends with 0 when its service knows none of the packages, so a package with an advisory of many years is asked
along, and must be found.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from host import proc
from host.paths import Paths
from host.show import Problem, say, ticking

FOUND, NOT_AUDITED = 1, 3
# Its advisories date from 2019. A service that knows none of them knows nothing.
CANARY = "jinja2==2.10"
KNOWN = "docker/known-findings.json"
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One advisory for one locked package."""

    package: str
    version: str
    id: str
    aliases: tuple[str, ...]
    fixed: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        return name in {self.id, *self.aliases}


@dataclass(frozen=True, slots=True)
class Known:
    """An advisory that was looked at: why it does not matter here, and until when that may be believed."""

    id: str
    package: str
    reason: str
    until: date


@dataclass(frozen=True, slots=True)
class Answer:
    """What one lock gave. `unknown`: what could not be looked up, and why."""

    audited: int = 0
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()


def read(text: str, words: str) -> Answer:
    """pip-audit's JSON; anything else means that nothing was looked up. `words`: its last ones, then the reason.

    >>> read("", "ConnectionError: no such host").unknown
    ('ConnectionError: no such host',)
    """
    try:
        found: list[dict[str, Any]] = [*json.loads(text)["dependencies"]]
    except (ValueError, KeyError, TypeError):
        return Answer(unknown=(words,))
    skipped = tuple(str(each["skip_reason"]) for each in found if "skip_reason" in each)
    findings = tuple(
        Finding(
            each["name"],
            each["version"],
            vulnerability["id"],
            tuple(vulnerability.get("aliases", [])),
            tuple(vulnerability.get("fix_versions", [])),
        )
        for each in found
        for vulnerability in each.get("vulns", [])
    )
    return Answer(len(found) - len(skipped), findings, skipped)


def known(text: str) -> list[Known]:
    """The file of findings that were looked at. Raises `Problem` for an entry that is not whole."""
    try:
        rows = json.loads(text)
        return [
            Known(row["id"], row["package"], row["reason"], date.fromisoformat(row["until"])) for row in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        form = '[{"id": "CVE-…", "package": "…", "reason": "…", "until": "2027-01-31"}]'
        raise Problem(f"{KNOWN} cannot be read ({error})", f"Its form:  {form}") from None


def pip_audit(requirements: Path, service: str) -> Answer:
    """One run of pip-audit: nothing is installed or resolved, the pins are taken as they stand."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        requirements,
        "--disable-pip",
    ]
    command += ["--format", "json", "--progress-spinner", "off", "--vulnerability-service", service]
    command += ["--require-hashes"] if "--hash=" in requirements.read_text() else ["--no-deps"]
    with ticking("audit") as ticker:
        done = proc.ask(
            command, timeout_s=TIMEOUT_S, tick=lambda elapsed, _: ticker.tick(elapsed, requirements.name)
        )
    return read(done.out, done.said)


PIN = re.compile(r"(?m)^(?P<pin>[a-z0-9][^\s;+]*)(?:\+\w+)?(?: ;.*?)?(?P<more> \\)?$")


def without_markers(lock: str) -> str:
    r"""A lock with every pin for every Python: pip-audit would leave out those for another than this one.

    Builds (2.14.1+cpu) are looked up as the release that they are of.

    >>> without_markers("a==1 ; python_version < '3.11' \\\n    --hash=sha256:00\nb==2+cpu\n").splitlines()
    ['a==1 \\', '    --hash=sha256:00', 'b==2']
    """
    return PIN.sub(lambda found: found["pin"] + (found["more"] or ""), lock)


def once_each(lock: str) -> list[str]:
    """The lock in as many files as a package has versions in it: pip-audit refuses a name that is there twice.

    >>> [part.split() for part in once_each("a==1\\nb==1\\na==2\\n")]
    [['a==1', 'b==1'], ['a==2']]
    """
    parts: list[dict[str, str]] = []
    for entry in re.findall(r"(?m)^[a-z0-9](?:.*\\\n)*.*\n", without_markers(lock)):
        name = entry.partition("==")[0]
        part = next((each for each in parts if name not in each), None)
        if part is None:
            parts.append(part := {})
        part[name] = entry
    return ["".join(part.values()) for part in parts]


def audit_lock(lock: Path, service: str, ask: Callable[[Path, str], Answer] = pip_audit) -> Answer:
    """Every pin of a lock, for whatever Python it is."""
    answers = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, text in enumerate(once_each(lock.read_text())):
            part = Path(scratch) / f"{lock.stem}-{number}.txt"
            part.write_text(text)
            answers.append(ask(part, service))
    return Answer(
        sum(each.audited for each in answers),
        tuple(finding for each in answers for finding in each.findings),
        tuple(why for each in answers for why in each.unknown),
    )


def knows_anything(service: str, ask: Callable[[Path, str], Answer] = pip_audit) -> str | None:
    """None when the service finds what is known to be bad, else why it is not to be believed."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "known-to-be-bad.txt"
        file.write_text(CANARY + "\n")
        answer = ask(file, service)
    if answer.findings:
        return None
    return answer.unknown[0] if answer.unknown else f"it has no advisory for {CANARY}, which has several"


def weigh(
    answers: Mapping[str, Answer], looked_at: Sequence[Known], today: date
) -> tuple[list[tuple[str, Finding]], list[tuple[Finding, Known]], list[Known]]:
    """Findings that count, those that were looked at, and entries of the file that say nothing any more. Pure."""
    open_ones, accepted, used = [], [], set()
    for lock, answer in answers.items():
        for finding in answer.findings:
            entry = next(
                (k for k in looked_at if k.package == finding.package and finding.is_called(k.id)), None
            )
            if entry:
                used.add(entry)
            if entry and today <= entry.until:
                accepted.append((finding, entry))
            else:
                open_ones.append((lock, finding))
    whole = not any(answer.unknown for answer in answers.values())
    return open_ones, accepted, [entry for entry in looked_at if whole and entry not in used]


def audit(argv: Sequence[str]) -> int:
    """Exit code 0: all looked up, nothing open; 1: findings; 3: not, or not wholly, audited."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__.splitlines()[0])
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi", help="whose advisories")
    service = parser.parse_args(argv).service
    paths = Paths()
    looked_at = known((paths.root / KNOWN).read_text())
    why = knows_anything(service)
    if why:
        say("audit", f"not audited: {why}")
        say(
            "",
            "Nothing is known, good or bad. Try again where the advisories can be reached, or: ARGS='--service osv'",
        )
        return NOT_AUDITED
    answers = {lock.name: audit_lock(lock, service) for lock in sorted(paths.requirements.glob("*.lock"))}
    return tell(answers, looked_at, date.today())


def tell(answers: Mapping[str, Answer], looked_at: Sequence[Known], today: date) -> int:
    """Print what was found, and the exit code for it."""
    found, accepted, stale = weigh(answers, looked_at, today)
    for lock, answer in answers.items():
        say(
            "audit",
            f"{lock}: {answer.audited} looked up"
            + (f", {len(answer.unknown)} not" if answer.unknown else ""),
        )
        for reason in answer.unknown[:3]:
            say("", f"not audited: {reason}")
    for finding, entry in accepted:
        say(
            "known", f"{finding.package} {finding.version} {finding.id}: {entry.reason} (until {entry.until})"
        )
    for entry in stale:
        say("stale", f"{entry.id} ({entry.package}) is not found any more: take it out of {KNOWN}")
    for lock, finding in found:
        names = " ".join((finding.id, *finding.aliases))
        fixed = f"fixed in {', '.join(finding.fixed)}" if finding.fixed else "fixed in no version yet"
        say("FOUND", f"{finding.package} {finding.version} ({lock}): {names}; {fixed}")
    if found:
        say("", "Newer versions:  make lock ARGS=--upgrade")
        say("", f"One that does not matter here goes into {KNOWN}, with the reason and a date.")
        return FOUND
    if any(answer.unknown for answer in answers.values()):
        say("audit", "not wholly audited: what was looked up has no finding, the rest is unknown")
        return NOT_AUDITED
    say("audit", "no open finding")
    return 0
