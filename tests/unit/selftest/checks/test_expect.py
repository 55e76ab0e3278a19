"""What is expected of a machine: read, refused, judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.unit.selftest.scenarios import bare, child, rows
from torchtap.selftest.causes import CAUSES
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.expect import (
    EXPECTATIONS,
    SETTINGS,
    ExpectationError,
    Expected,
    expectations,
    read_expected,
)
from torchtap.selftest.examples import HOST, good
from torchtap.selftest.facts import Facts, SmiFacts
from torchtap.selftest.gather import SettingError
from torchtap.selftest.host import PciGpu
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all, run
from torchtap.selftest.smi import Row, read_cell
from torchtap.selftest.status import Device, Status

ON_BUS = tuple(PciGpu(address=f"0000:{bus}:00.0", driver="nvidia") for bus in ("41", "5e", "9a"))
BUS_IDS = [{"pci.bus_id": "00000000:41:00.0"}, {"pci.bus_id": "00000000:5E:00.0"}]


def judged(facts: Facts, **expected: object) -> Result:
    """The result of the one expectation, after all other checks."""
    checks = expectations(Expected(**expected))  # type: ignore[arg-type]
    assert len(checks) == 1
    return judge_all([*CHECKS, *checks], facts)[-1]


def host(facts: Facts, **changes: object) -> Facts:
    return replace(facts, host=replace(HOST, **changes))  # type: ignore[arg-type]


MET = [
    (good(), {"gpus": 1}, "1 x NVIDIA H200 (expected: 1 GPU)"),
    (rows({}, {}), {"gpus": 2}, "2 x NVIDIA H200 (expected: 2 GPUs)"),
    (good(), {"name": "h200"}, "1 x NVIDIA H200 (expected: h200)"),
    (good(), {"name": "NVIDIA H200"}, "1 x NVIDIA H200 (expected: NVIDIA H200)"),
    (good(), {"driver": (590,)}, "590.48.01 (expected: 590 or newer)"),
    (good(), {"driver": (590, 48, 1)}, "590.48.01 (expected: 590.48.01 or newer)"),
    (replace(good(), smi=SmiFacts(path=None)), {"gpus": 1}, "1 x NVIDIA H200 (expected: 1 GPU)"),
]
NOT_MET = [
    (
        "the container was given two of eight",
        host(rows({}, {}), env={"NVIDIA_VISIBLE_DEVICES": "0,1"}),
        {"gpus": 8},
        "gpus_not_given",
        "2 of 8 expected GPUs are in this container: NVIDIA_VISIBLE_DEVICES is 0,1",
    ),
    (
        "one is on the bus and silent",
        host(rows(*BUS_IDS), pci=ON_BUS),
        {"gpus": 3},
        "gpus_dark",
        "2 of 3 expected GPUs answer; on the PCI bus, but silent: 0000:9a:00.0",
    ),
    (
        "one is not even on the bus",
        host(rows(*BUS_IDS), pci=ON_BUS[:2], container=None),
        {"gpus": 8},
        "gpus_missing",
        "2 of 8 expected GPUs are here; the PCI bus shows 2 NVIDIA GPUs",
    ),
    (
        "nothing tells what is on the bus",
        host(rows({}, {}), pci=None),
        {"gpus": 8},
        "gpus_missing",
        "2 of 8 expected GPUs are here; the PCI bus cannot be read",
    ),
    ("more than expected", rows({}, {}), {"gpus": 1}, "gpus_too_many", "2 GPUs are here, and 1 expected"),
    (
        "one of another kind",
        rows({}, {"name": "NVIDIA H100 NVL"}),
        {"name": "H200"},
        "gpu_name_unexpected",
        "GPU 1: NVIDIA H100 NVL, and H200 is expected",
    ),
    (
        "a name that only contains the words",
        rows({"name": "NVIDIA GH200 480GB"}),
        {"name": "H200"},
        "gpu_name_unexpected",
        "GPU 0: NVIDIA GH200 480GB, and H200 is expected",
    ),
    (
        "an older driver",
        good(),
        {"driver": (595, 45, 4)},
        "driver_older_than_expected",
        "driver 590.48.01 is older than the expected 595.45.04",
    ),
]


@pytest.mark.parametrize(("facts", "expected", "seen"), MET)
def test_what_is_as_expected_passes(facts: Facts, expected: Mapping[str, object], seen: str):
    """By nvidia-smi, else by PyTorch; what was expected stands beside what is there."""
    result = judged(facts, **expected)
    assert (result.status, result.seen) == (Status.PASS, seen)


@pytest.mark.parametrize(
    ("facts", "expected", "cause", "says"), [row[1:] for row in NOT_MET], ids=[r[0] for r in NOT_MET]
)
def test_what_is_not_as_expected_fails(facts: Facts, expected: Mapping[str, object], cause: str, says: str):
    """With what is there and what is known of the rest; a remedy without an empty slot."""
    result = judged(facts, **expected)
    assert (result.status, result.cause_id, result.cause) == (Status.FAIL, cause, says)
    assert result.remedy
    assert not re.search(r"\?|\{|\}|None", result.remedy + result.seen)


def test_every_cause_of_an_expectation_is_reached():
    """And each is one of its check's."""
    assert {row[3] for row in NOT_MET} == {cause for check in EXPECTATIONS for cause in check.causes}
    assert {check.id for check in EXPECTATIONS} == {"expect.gpus", "expect.name", "expect.driver"}
    assert {row[3] for row in NOT_MET} <= CAUSES.keys()


@pytest.mark.parametrize("expected", [{"gpus": 1}, {"name": "H200"}, {"driver": (580,)}])
def test_without_a_gpu_nothing_is_judged_by_it(expected: Mapping[str, object]):
    """The missing device is the first cause; what was expected is no second one."""
    result = judged(bare(), **expected)
    assert (result.status, result.cause_id, result.values["need"]) == (Status.SKIP, "needs", "device.nodes")


@pytest.mark.parametrize("cell", ["[Unknown Error]", "", "[N/A]", "Unknown Error", "\ufffd", "-1"])
@pytest.mark.parametrize("expected", [{"name": "H200"}, {"driver": (580,)}])
def test_garbage_never_passes(cell: str, expected: Mapping[str, object]):
    """A value that cannot be read proves nothing, whatever is expected."""
    field = {"name": "name", "driver": "driver_version"}[next(iter(expected))]
    row = Row(gpu=0, cells={field: read_cell(cell)})
    facts = replace(
        good(),
        smi=replace(good().need_smi, rows=(row,)),
        host=replace(HOST, driver_text="", module_version=""),
    )
    (check,) = expectations(Expected(**expected))  # type: ignore[arg-type]
    (result,) = judge_all([check], facts)
    assert result.status is Status.UNKNOWN


def test_a_count_that_nobody_tells_is_unknown():
    """No row of nvidia-smi, no answer of PyTorch."""
    (check,) = expectations(Expected(gpus=1))
    (result,) = judge_all([check], replace(child(torch__cuda=None), smi=SmiFacts(path=None)))
    assert result.status is Status.UNKNOWN


def test_options_win_over_variables():
    """Each by itself; what is empty expects nothing."""
    env = {
        "TORCHTAP_EXPECT_GPUS": "4",
        "TORCHTAP_EXPECT_NAME": "",
        "TORCHTAP_EXPECT_DRIVER_MIN": " 580.65.06 ",
    }
    assert read_expected({"gpus": "8"}, env, Device.GPU) == Expected(gpus=8, driver=(580, 65, 6))
    assert read_expected({}, {}, Device.CPU) == Expected()
    assert expectations(Expected()) == ()


@pytest.mark.parametrize(
    ("key", "text"),
    [("gpus", text) for text in ("0", "-1", "8.0", "eight", "", "1e3", "\u0668", "1" * 9)]
    + [("name", text) for text in ("", " ", "*")]
    + [("driver", text) for text in ("", "new", "58", "580.", "580.65.06.1", "cu130")],
)
def test_a_value_that_cannot_be_is_refused_by_its_source(key: str, text: str):
    """The option or the variable, what it must be, what it is."""
    option, variable, form = SETTINGS[key]
    with pytest.raises(ExpectationError, match=re.escape(f"{option} must be {form}; it is {text!r}")):
        read_expected({key: text}, {}, Device.GPU)
    if text:
        with pytest.raises(ExpectationError, match=re.escape(f"{variable} must be {form}; it is {text!r}")):
            read_expected({}, {variable: text}, Device.GPU)


@pytest.mark.parametrize("key", SETTINGS)
def test_expecting_a_gpu_where_none_is_meant_to_be_is_a_contradiction(
    key: str, monkeypatch: pytest.MonkeyPatch
):
    """Both cannot be meant; nothing runs."""
    option, variable, _ = SETTINGS[key]
    value = {"gpus": "8", "name": "H200", "driver": "580"}[key]
    with pytest.raises(SettingError, match=f"{option} expects a GPU, and this machine is meant to have none"):
        run("cpu", expect={key: value})
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=f"{variable} expects a GPU"):
        run("cpu")


def test_a_check_by_name_needs_something_to_expect():
    """It exists, so it is no unknown name; and what is expected is tested whatever else is left out."""
    with pytest.raises(
        SettingError, match=r"expect\.gpus has nothing to expect: give --expect-gpus or TORCH"
    ):
        run(only=["expect.gpus"])
    with pytest.raises(SettingError, match="nothing like 'colour' can be expected; only gpus, name, driver"):
        run(expect={"colour": "green"})
    report = run(only=["device.nodes"], expect={"gpus": 2})
    assert [result.id for result in report.results] == ["device.nodes", "driver.smi", "expect.gpus"]
