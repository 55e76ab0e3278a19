"""make audit: findings count, and so does everything that could not be looked up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import pytest

from host import audit
from host.audit import Answer, Finding, Known
from host.show import Problem
from tests.unit.host.checkout import REPOSITORY
from tests.unit.host.test_up import flat

TODAY = date(2026, 12, 1)
FINDING = Finding("jinja2", "2.10", "PYSEC-2019-217", ("CVE-2019-10906",), ("2.10.1",))
CLEAN = Answer(audited=3)
REASON = "no template of a stranger is ever rendered"


def said(*packages: Mapping[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


JINJA = {
    "name": "jinja2",
    "version": "2.10",
    "vulns": [{"id": "PYSEC-2019-217", "aliases": ["CVE-2019-10906"], "fix_versions": ["2.10.1"]}],
}


def test_what_pip_audit_says_is_read() -> None:
    found = audit.read(said(JINJA, {"name": "numpy", "version": "2", "vulns": []}), "")
    assert found == Answer(audited=2, findings=(FINDING,))


def test_a_package_that_the_service_does_not_know_is_unknown_not_good() -> None:
    """pip-audit ends with 0 and "No known vulnerabilities found" then."""
    found = audit.read(said({"name": "numpy", "skip_reason": "Dependency not found"}), "")
    assert found == Answer(audited=0, unknown=("Dependency not found",))


@pytest.mark.parametrize("text", ["", "Traceback …", "[]", '{"dependencies": 3}'])
def test_no_answer_is_unknown(text: str) -> None:
    assert audit.read(text, "ConnectionError").unknown == ("ConnectionError",)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(audited=1, findings=(FINDING,)), None),
        (Answer(unknown=("no such host",)), "no such host"),
        (Answer(audited=1), "it has no advisory for jinja2==2.10, which has several"),
    ],
    ids=["works", "out of reach", "a mirror without advisories"],
)
def test_a_service_has_to_find_what_is_known_to_be_bad(answer: Answer, why: str | None) -> None:
    assert audit.knows_anything("pypi", lambda file, service: answer) == why


@pytest.mark.parametrize(
    "lock", sorted(path.name for path in (REPOSITORY / "docker/requirements").glob("*.lock"))
)
def test_every_pin_of_every_lock_is_asked_for_whatever_its_python(lock: str) -> None:
    text = (REPOSITORY / "docker/requirements" / lock).read_text()
    asked: list[str] = []

    def ask(file: Path, service: str) -> Answer:
        lines = [line for line in file.read_text().splitlines() if line[:1].isalnum()]
        names = [line.partition("==")[0] for line in lines]
        assert len(names) == len(set(names)), "pip-audit refuses a package that is there twice"
        assert not [line for line in lines if ";" in line or "+" in line]
        asked.extend(lines)
        return Answer(audited=len(lines))

    pins = [line for line in text.splitlines() if line[:1].isalnum()]
    assert audit.audit_lock(REPOSITORY / "docker/requirements" / lock, "pypi", ask).audited == len(pins)
    assert len(asked) == len(pins)


def looked_at(until: str = "2027-01-01", id: str = "CVE-2019-10906") -> Known:
    return Known(id, "jinja2", REASON, date.fromisoformat(until))


Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def tell(answers: dict[str, Answer], *known: Known) -> tuple[int, str]:
        code = audit.tell(answers, known, TODAY)
        return code, flat(capsys.readouterr().out)

    return tell


def test_nothing_found_is_good(told: Told) -> None:
    assert told({"lab.lock": CLEAN}) == (0, "audit lab.lock: 3 looked up audit no open finding")


def test_a_finding_names_package_lock_and_remedy(told: Told) -> None:
    code, text = told({"lab.lock": Answer(3, (FINDING,))})
    assert code == audit.FOUND == 1
    assert "FOUND jinja2 2.10 (lab.lock): PYSEC-2019-217 CVE-2019-10906; fixed in 2.10.1" in text
    assert "make lock ARGS=--upgrade" in text


def test_a_finding_that_was_looked_at_is_said_with_its_reason(told: Told) -> None:
    code, text = told({"lab.lock": Answer(3, (FINDING,))}, looked_at())
    assert code == 0
    assert f"known jinja2 2.10 PYSEC-2019-217: {REASON} (until 2027-01-01)" in text


@pytest.mark.parametrize(
    "entry", [looked_at("2026-11-30"), looked_at(id="CVE-2000-1")], ids=["expired", "another"]
)
def test_an_entry_that_expired_or_is_for_another_advisory_excuses_nothing(told: Told, entry: Known) -> None:
    assert told({"lab.lock": Answer(3, (FINDING,))}, entry)[0] == 1


def test_an_entry_that_nothing_needs_is_stale_where_all_was_looked_up(told: Told) -> None:
    assert "stale CVE-2019-10906 (jinja2) is not found any more" in told({"lab.lock": CLEAN}, looked_at())[1]
    assert "stale" not in told({"lab.lock": Answer(1, (), ("x",))}, looked_at())[1]


def test_partly_unknown_is_not_good(told: Told) -> None:
    code, text = told({"lab.lock": Answer(2, (), ("Dependency not found: x (1)",))})
    assert code == audit.NOT_AUDITED == 3
    assert "lab.lock: 2 looked up, 1 not not audited: Dependency not found: x (1)" in text
    assert "the rest is unknown" in text


def test_findings_come_before_what_is_unknown(told: Told) -> None:
    assert told({"a.lock": Answer(1, (FINDING,), ("x",))})[0] == 1


def test_the_file_of_known_findings_is_whole() -> None:
    for entry in audit.known((REPOSITORY / audit.KNOWN).read_text()):
        assert len(entry.reason) > 20, entry


@pytest.mark.parametrize(
    "text",
    ["", '[{"id": "CVE-1"}]', '[{"id": "a", "package": "b", "reason": "c", "until": "x"}]'],
    ids=["empty", "no reason", "no date"],
)
def test_an_entry_that_is_not_whole_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(Problem, match=r"docker/known-findings\.json cannot be read") as caught:
        audit.known(text)
    assert '"reason"' in caught.value.do[0]
