"""A report as JUnit XML, for Jenkins, GitLab and every other CI that shows test results.

One suite, one test case a check. fail is a failure, unknown an error, skip is skipped; pass and warn pass, because the
exit code says so too. A warning's text stands in the case's output. The order of elements is that of Jenkins's schema.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from torchtap.selftest.result import Report, Result
from torchtap.selftest.status import Status

SUITE = "torchtap.selftest"
# XML 1.0 has no way at all to write other characters, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped"}


def to_junit(report: Report) -> str:
    """The whole document, in ASCII, with a line end."""
    counts = {name: sum(_ELEMENTS.get(result.status) == name for result in report.results) for name in _NAMES}
    totals = {
        "tests": str(len(report.results)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "time": f"{report.seconds:.3f}",
    }
    suites = ET.Element("testsuites", {"name": SUITE, **totals})
    suite = ET.SubElement(suites, "testsuite", {"name": SUITE, **totals, "skipped": str(counts["skipped"])})
    if report.identity.started:
        # xs:dateTime without a zone, as Jenkins's schema and Ant write it.
        suite.set("timestamp", report.identity.started.removesuffix("Z"))
        suite.set("hostname", _clean(report.identity.name))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ET.SubElement(properties, "property", {"name": name, "value": _clean(value)})
    for result in report.results:
        _case(suite, result)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="us-ascii").decode()}\n'


_NAMES = tuple(_ELEMENTS.values())


def _properties(report: Report) -> dict[str, str]:
    """What the verdict is of."""
    known = {name: value for name, value in report.identity.versions.items() if value}
    return {
        "verdict": report.verdict.value,
        "level": report.level,
        "device": report.device,
        "torchtap": report.torchtap,
        **known,
        **{
            f"gpu.{gpu.index if gpu.index is not None else '?'}": f"{gpu.name or '?'} {gpu.uuid or ''}".strip()
            for gpu in report.identity.gpus
        },
    }


def _case(suite: ET.Element, result: Result) -> None:
    subject = result.id.partition(".")[0]
    case = ET.SubElement(
        suite,
        "testcase",
        {"classname": f"{SUITE}.{subject}", "name": result.id, "time": f"{result.seconds:.3f}"},
    )
    if (name := _ELEMENTS.get(result.status)) is not None:
        end = ET.SubElement(case, name, {"message": _clean(result.cause or result.seen)})
        if result.status is not Status.SKIP:
            end.set("type", _clean(result.cause_id or result.status.value))
            end.text = _clean("\n".join(_story(result)))
    # What was seen, also of a pass; a warning is told whole here, because it has no element of its own.
    told = _story(result) if result.status is Status.WARN else [f"{result.status.value}: {result.seen}"]
    ET.SubElement(case, "system-out").text = _clean("\n".join([*told, result.evidence]).strip())


def _story(result: Result) -> list[str]:
    return [
        f"{result.status.value}: {result.seen}",
        f"cause: {result.cause_id}: {result.cause}",
        f"do: {result.remedy}",
    ]


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
