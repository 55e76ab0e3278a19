"""Reports as values and as JSON."""

from __future__ import annotations

import json

import pytest

from torchtap.selftest.result import Report, Result, Selection
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
        *("schema", "torchtap", "host", "started", "device", "level", "selection", "verdict"),
        *("first_cause", "seconds", "versions", "gpus", "results"),
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


def test_a_masked_report_does_not_tell_the_machine_and_is_judged_the_same():
    """No uuid, no host name, in no form; equal things stay equal."""
    from torchtap.selftest.examples import examples
    from torchtap.selftest.junit import to_junit
    from torchtap.selftest.oneline import to_one_line
    from torchtap.selftest.prometheus import to_prometheus

    plain = dict(examples())["a lost GPU"]
    masked = plain.masked()
    assert (masked.verdict, masked.first and masked.first.cause_id) == (
        plain.verdict,
        plain.first and plain.first.cause_id,
    )
    for render in (Report.to_json, to_junit, to_one_line, to_prometheus):
        assert "node017" not in render(masked)
        assert "11111111-2222" not in render(masked)
        assert "node017" in render(plain) or render is to_prometheus
    (first, second), results = masked.identity.gpus, masked.to_json()
    assert first.uuid != second.uuid
    assert str(first.uuid) in results.replace(str(first.uuid), "", 1)  # the same in the evidence


def test_a_report_says_what_was_chosen_and_left_out():
    """So that nobody takes a part of a self-test for the whole."""
    from torchtap.selftest.runner import run

    assert run("cpu", only=["torch.build"]).to_dict()["selection"] == {"only": ["torch.build"], "skip": []}
    assert report(Status.PASS).to_dict()["selection"] == {"only": [], "skip": []}
    assert str(Selection(only=("a.b", "c.d"), skip=("e.f",))) == "--only a.b,c.d --skip e.f"
