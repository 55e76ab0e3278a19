"""Reports as values and as JSON."""

from __future__ import annotations

import json

import pytest

from torchtap.selftest.result import Report, Result
from torchtap.selftest.status import Status


def report(*statuses: Status) -> Report:
    results = tuple(
        Result(id=f"gpu.n{n}", status=status, seen="seen", cause_id=f"cause{n}")
        for n, status in enumerate(statuses)
    )
    return Report(results=results, device="gpu", seconds=1.23456, torchtap="0.1.0")


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.PASS, 0), (Status.WARN, 0), (Status.FAIL, 1), (Status.UNKNOWN, 1), (Status.SKIP, 1)],
)
def test_exit_codes(status: Status, code: int):
    """0 pass or warn, 1 fail or unknown; nothing tested is unknown."""
    assert report(status).exit_code == code


def test_the_first_cause_is_the_earliest_of_those_that_decide():
    """A warning before a failure does not hide it."""
    mixed = report(Status.WARN, Status.UNKNOWN, Status.FAIL, Status.FAIL)
    assert mixed.first is not None
    assert mixed.first.id == "gpu.n2"
    assert report(Status.PASS).first is None


def test_the_json_has_the_schemas_keys_in_its_order():
    """Stable order, for people who compare reports line by line."""
    written = json.loads(report(Status.FAIL).to_json())
    assert list(written) == [
        *("schema", "torchtap", "host", "started", "device", "level", "verdict", "first_cause", "seconds"),
        *("versions", "gpus", "results"),
    ]
    assert list(written["results"][0]) == [
        *("id", "status", "seen", "cause", "cause_id", "remedy", "remedy_id", "evidence", "seconds", "values")
    ]
    assert (written["schema"], written["verdict"], written["seconds"]) == (1, "fail", 1.235)
    assert written["first_cause"] == {"id": "gpu.n0", "cause_id": "cause0"}


def test_any_value_can_be_written():
    """Tuples, sets, enums and objects become JSON's own types."""
    values = {"tuple": (1, "a"), "set": {2}, "status": Status.FAIL, "mapping": {3: None}, "object": object}
    result = Result(id="x.y", status=Status.PASS, seen="", values=values)
    written = json.loads(json.dumps(result.to_dict()))["values"]
    assert written["tuple"] == [1, "a"]
    assert written["set"] == [2]
    assert written["status"] == "fail"
    assert written["mapping"] == {"3": None}
    assert isinstance(written["object"], str)
