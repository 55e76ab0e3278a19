"""JUnit XML as Jenkins and GitLab read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest

from tests.unit.selftest.reports import ALL, EXAMPLES, IDS, REPORTS, nasty
from torchtap.selftest.junit import to_junit
from torchtap.selftest.result import Report
from torchtap.selftest.status import Status

# What Jenkins's xunit schema (junit-10.xsd) lets stand where: attributes, and children in this order.
SHAPE: dict[str, tuple[set[str], list[str]]] = {
    "testsuites": ({"name", "time", "tests", "failures", "errors", "disabled"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id"},
        ["properties", "testcase", "system-out", "system-err"],
    ),
    "properties": (set(), ["property"]),
    "property": ({"name", "value"}, []),
    "testcase": (
        {"name", "time", "classname", "assertions", "status"},
        ["skipped", "error", "failure", "system-out"],
    ),
    "skipped": ({"message"}, []),
    "error": ({"type", "message"}, []),
    "failure": ({"type", "message"}, []),
    "system-out": (set(), []),
}


def misshapen(element: ET.Element) -> Iterator[str]:
    attributes, children = SHAPE[element.tag]
    if odd := set(element.attrib) - attributes:
        yield f"{element.tag} has {odd}"
    places = [children.index(child.tag) if child.tag in children else -1 for child in element]
    if -1 in places or places != sorted(places):
        yield f"{element.tag} holds {[child.tag for child in element]}"
    for child in element:
        yield from misshapen(child)


@pytest.mark.parametrize("report", REPORTS, ids=IDS)
def test_every_report_is_a_document_of_the_schema(report: Report):
    """One case a check, in their order; the counts are those of the cases."""
    suites = ET.fromstring(to_junit(report))
    assert list(misshapen(suites)) == []
    (suite,) = suites
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [result.id for result in report.results]
    assert int(suite.get("tests", "")) == len(cases)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{tag}"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    assert suite.get("hostname") == "node017"


def test_each_status_has_its_element():
    """fail is a failure, unknown an error, skip skipped; pass and warn pass, as the exit code says."""
    cases = {case.get("name"): case for case in ET.fromstring(to_junit(nasty())).iter("testcase")}
    elements = {name: [child.tag for child in case] for name, case in cases.items()}
    assert elements == {
        "gpu.pass": ["system-out"],
        "gpu.warn": ["system-out"],
        "gpu.fail": ["failure", "system-out"],
        "gpu.unknown": ["error", "system-out"],
        "gpu.skip": ["skipped", "system-out"],
    }
    assert {Status(str(name).partition(".")[2]) for name in elements} == set(Status)


def test_a_failure_tells_cause_and_remedy_and_keeps_the_evidence():
    """Cause as the message, its id as the type; the remedy in the text; the raw output beside it."""
    suite = ET.fromstring(to_junit(EXAMPLES["a lost GPU"]))
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "gpu_lost"
    assert "GPU 1" in str(failure.get("message"))
    assert "\ndo: " in str(failure.text)
    assert "[GPU is lost]" in to_junit(EXAMPLES["a lost GPU"])


def test_what_xml_forbids_is_replaced_and_the_rest_is_kept():
    """Also where a machine printed half a character."""
    written = to_junit(nasty())
    assert written.isascii()
    (case, *_) = ET.fromstring(written).iter("testcase")
    shown = str(case.findtext("system-out"))
    assert "\N{REPLACEMENT CHARACTER}[31m" in shown
    assert '<a>&amp;]]> "quoted"' in shown
    assert "\u65e5" in shown


def test_the_whole_document_of_a_good_host():
    """Short enough to read: the suite, its properties, one line a check."""
    written = to_junit(dict(ALL)["all is well"])
    assert written.startswith(
        '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="torchtap.selftest" tests='
    )
    assert '<property name="gpu.0" value="NVIDIA H200 GPU-11111111-2222-3333-4444-555555555500" />' in written
    assert '<testcase classname="torchtap.selftest.gpu" name="gpu.ecc" time="' in written
