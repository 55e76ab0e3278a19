"""Which machine a report is of."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.unit.selftest.reports import IDS, REPORTS
from torchtap.selftest.examples import good
from torchtap.selftest.facts import Facts
from torchtap.selftest.identity import host_name, identify
from torchtap.selftest.result import Report
from torchtap.selftest.status import Device, Level, Status, worst

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "selftest.schema.json").read_text())


@pytest.mark.parametrize("report", REPORTS, ids=IDS)
def test_every_report_is_of_the_schema(report: Report):
    """docs/selftest.schema.json; its keys stand in the order of the report's."""
    written = json.loads(report.to_json())
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    assert list(written) == list(SCHEMA["properties"])
    assert list(written["results"][0]) == list(SCHEMA["properties"]["results"]["items"]["properties"])
    for gpu in written["gpus"]:
        assert list(gpu) == list(SCHEMA["properties"]["gpus"]["items"]["properties"])


def test_the_schema_has_the_codes_words():
    """And is a schema itself; one that takes anything would prove nothing."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    words = {name: part.get("enum") for name, part in SCHEMA["properties"].items()}
    assert words["device"] == [each.value for each in Device]
    assert words["level"] == [each.value for each in Level]
    assert set(words["verdict"]) == {worst([status]).value for status in Status}
    statuses = SCHEMA["properties"]["results"]["items"]["properties"]["status"]["enum"]
    assert statuses == [status.value for status in Status]
    good_report = json.loads(REPORTS[0].to_json())
    for key, bad in (("verdict", "good"), ("host", {}), ("started", "today"), ("gpus", [{}]), ("schema", 2)):
        assert not jsonschema.Draft202012Validator(SCHEMA).is_valid({**good_report, key: bad}), key


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"TORCHTAP_HOST": "a", "NODE_NAME": "b"}, "a"),
        ({"TORCHTAP_HOST": "", "NODE_NAME": "b", "SLURMD_NODENAME": "c"}, "b"),
        ({"SLURMD_NODENAME": "c"}, "c"),
        ({"NODE_NAME": " rack 1\nnode\x1b[2J "}, "rack_1_node\\x1b[2J"),
        ({"NODE_NAME": "  "}, "unnamed"),
    ],
)
def test_a_host_is_called_as_a_variable_says(env: dict[str, str], name: str):
    """A container's own name says nothing about the node it is on; one word, nothing that moves a cursor."""
    assert host_name(env) == name


def test_else_a_host_is_called_by_itself():
    """The host name of the machine, or of the container."""
    assert host_name({}) == socket.gethostname()


def test_without_nvidia_smi_the_gpus_are_those_of_pytorch():
    """WSL, gVisor, a container without the utility capability."""
    (gpu,) = identify(replace(good(), smi=None), {}, 0).gpus
    assert (gpu.index, gpu.name, gpu.uuid) == (0, "NVIDIA H200", None)


def test_what_was_not_gathered_is_not_known():
    """And nothing raises."""
    known = identify(Facts(device=Device.CPU, host=good().host), {}, 0)
    assert (known.gpus, known.started) == ((), "1970-01-01T00:00:00Z")
    assert known.versions == {
        "variant": None,
        "torch": None,
        "cuda": None,
        "cudnn": None,
        "driver": "590.48.01",
    }
