"""Judging a load: each limit on both sides, an early end, and garbage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.selftest.scenarios import loaded, rows
from tests.unit.selftest.test_garbage import JSON, TEXTS
from torchtap.selftest.burn.examples import NUMBERS, good_burn, readings, watched
from torchtap.selftest.burn.sampler import BRAKE, CLOCKS, ECC, HEAT, POWER, TEMPERATURE, Sampler
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import GOOD_STEPS, good
from torchtap.selftest.facts import Facts, StepState
from torchtap.selftest.process import Answer
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Device, Status

BURN = [check.id for check in CHECKS if check.id.startswith("burn.")]
FROM_SMI = {"burn.lost", "burn.ecc", "burn.thermal", "burn.power", "burn.pcie"}


def judged(facts: Facts) -> dict[str, Result]:
    return {result.id: result for result in judge_all(CHECKS, facts) if result.id in BURN}


def states(facts: Facts) -> dict[str, str]:
    return {name: result.status.value for name, result in judged(facts).items()}


def changed(name: str, low: float, high: float, count: int = 592) -> dict[str, object]:
    return {"readings": {**watched().readings, name: readings(low, high, count)}}


def test_a_good_load_passes_everywhere():
    """Each of them, and measures what a fleet compares."""
    found = judged(good())
    assert {result.status for result in found.values()} == {Status.PASS}
    assert found["burn.power"].seen == "1 GPU, no power brake, 670 W on average (DCGM's load: 700 W)"
    measured = {
        (each["what"], each["unit"]): each["value"]
        for result in found.values()
        for each in result.values.get("measured", [])  # type: ignore[attr-defined]
    }
    assert measured == {("bfloat16", "TFLOP/s"): 696.4, ("hottest", "C"): 68, ("mean", "W"): 670.0}


@pytest.mark.parametrize(
    ("check", "fine", "over", "status"),
    [
        ("burn.ecc", changed(ECC, 3, 3), changed(ECC, 3, 4), "fail"),
        ("burn.thermal", {"slowed": {HEAT: 29}}, {"slowed": {HEAT: 30}}, "fail"),  # of 590: 29.5 is 5 %
        ("burn.power", {"slowed": {BRAKE: 0}}, {"slowed": {BRAKE: 1}}, "fail"),
        ("burn.pcie", {"replays": (10, 90)}, {"replays": (10, 91)}, "fail"),
    ],
)
def test_a_limit_holds_on_both_sides(
    check: str, fine: dict[str, object], over: dict[str, object], status: str
):
    """Of one GPU of two."""
    for changes, expected in ((fine, "pass"), (over, status)):
        found = judged(loaded({}, {}, gpus=(watched(0), watched(1, **changes))))[check]
        assert found.status.value == expected
        assert expected == "pass" or "GPU 1" in (found.cause or "")


@pytest.mark.parametrize(
    ("numbers", "status", "cause"),
    [
        ({"tflops": 90.0}, "pass", None),
        ({"tflops": 89.9}, "warn", "load_slower"),
        ({"tflops": 75.0}, "warn", "load_slower"),
        ({"tflops": 74.9}, "fail", "load_slower"),
        ({"course": [100.0] * 18 + [90.0] * 2}, "pass", None),
        ({"course": [100.0] * 18 + [89.0] * 2}, "warn", "load_fading"),
        ({"course": [100.0] * 18 + [74.0] * 2}, "fail", "load_fading"),
        ({"course": [100.0, 100.0, 10.0]}, "pass", None),  # too short to tell
        ({"course": [50.0] * 2 + [100.0] * 18}, "pass", None),  # it may become faster
    ],
)
def test_speed_is_compared_with_equals_and_with_the_beginning(
    numbers: dict[str, object], status: str, cause: str | None
):
    """100 TFLOP/s each but one."""
    same: Mapping[str, object] = {"tflops": 100.0}
    found = judged(loaded(same, same, {**same, **numbers}))["burn.steady"]
    assert (found.status.value, found.cause_id) == (status, cause)
    assert cause is None or "GPU 2: " in (found.cause or "")


def test_of_two_gpus_the_slower_one_is_named():
    """And different GPUs are not compared."""
    assert judged(loaded({"tflops": 100.0}, {"tflops": 80.0}))["burn.steady"].cause == (
        "GPU 1: 20% slower under load than the median of this host's NVIDIA H200 (10% is allowed)"
    )
    assert judged(loaded({}, {"tflops": 65.0, "name": "Tesla T4"}))["burn.steady"].status is Status.PASS


def reordered(facts: Facts) -> Facts:
    """The same, on a host whose torch counts its two GPUs the other way round."""
    both = rows({}, {})
    assert facts.child is not None
    assert both.child is not None
    step = both.child.step("torch.cuda")
    gpus = [dict(gpu.value) for gpu in step.records("gpus")]
    turned = {"gpus": [{**gpu, "index": 1 - n} for n, gpu in enumerate(gpus)]}
    steps = {**facts.child.steps, "torch.cuda": replace(step, value=turned)}
    return replace(facts, smi=both.smi, child=replace(facts.child, steps=steps))


def test_gpus_are_called_as_nvidia_smi_counts_them():
    """What torch calls GPU 1 is nvidia-smi's GPU 0 there, as in the checks of speed."""
    slow = judged(reordered(loaded({"tflops": 100.0}, {"tflops": 80.0})))
    assert slow["burn.steady"].cause == (
        "GPU 0: 20% slower under load than the median of this host's NVIDIA H200 (10% is allowed)"
    )
    assert (slow["burn.steady"].seen, slow["burn.steady"].values["index"]) == ("GPU 0: 20% slower", 0)
    measured = slow["burn.numbers"].values["measured"]
    assert isinstance(measured, list)
    assert {each["gpu"]: each["value"] for each in measured} == {0: 80.0, 1: 100.0}
    wrong = judged(reordered(loaded({}, {"wrong": 3})))["burn.numbers"]
    assert (wrong.cause or "").startswith("GPU 0")
    assert wrong.values["index"] == 0
    stalled = judged(
        reordered(loaded({}, {}, state=StepState.ERROR, error="StalledError: no", where="GPU 1"))
    )
    assert (stalled["burn.numbers"].cause or "").startswith("GPU 0: took work")
    chosen = loaded({}, {"wrong": 3})
    chosen = replace(
        chosen, host=replace(chosen.host, env={"CUDA_VISIBLE_DEVICES": "0"}), smi=rows({}, {}).smi
    )
    assert chosen.child is not None
    silent = {"gpus": [{**dict(GOOD_STEPS["torch.cuda"]["gpus"][0]), "uuid": None, "bus_id": None}]}  # type: ignore[index]
    steps = {
        **chosen.child.steps,
        "torch.cuda": replace(chosen.child.steps["torch.cuda"], value=silent),
    }
    told = judged(replace(chosen, child=replace(chosen.child, steps=steps)))["burn.numbers"]
    assert "GPU 1 (as PyTorch counts)" in (told.cause or "")


def test_heat_explains_the_slowness_that_comes_of_it():
    """One fault, one cause."""
    found = states(loaded({}, {"tflops": 500.0}, gpus=(watched(0), watched(1, slowed={HEAT: 300}))))
    assert (found["burn.thermal"], found["burn.steady"]) == ("fail", "skip")


def test_what_is_not_reported_is_skipped_and_what_cannot_be_read_is_unknown():
    """A GeForce reports no ECC; a field of errors is none that is well."""
    geforce = watched(0, readings={TEMPERATURE: readings(40, 70)}, replays=(None, None))
    found = judged(loaded({}, gpus=(geforce,)))
    skipped = {name for name, each in found.items() if each.cause_id == "not_reported"}
    assert skipped == {"burn.ecc", "burn.thermal", "burn.power", "burn.pcie"}
    for name, check in (
        (ECC, "burn.ecc"),
        (CLOCKS, "burn.power"),
        (TEMPERATURE, "burn.thermal"),
        (POWER, "burn.power"),
    ):
        broken = judged(loaded({}, gpus=(watched(0, unread={name: 100}),)))[check]
        assert (broken.status, broken.cause_id) == (Status.UNKNOWN, "unreadable"), name
    rarely = judged(loaded({}, gpus=(watched(0, **changed(CLOCKS, 0, 0, count=300)),)))["burn.power"]
    assert (rarely.status, rarely.cause_id) == (Status.UNKNOWN, "unreadable")
    no_answer = judged(loaded({}, gpus=(watched(0, replays=(3, None)),)))["burn.pcie"]
    assert no_answer.status is Status.UNKNOWN


@pytest.mark.parametrize("watch", [{"asked": 9}, {"unread": 60}, {"asked": 0}, {"gpus": ()}])
def test_too_few_readings_prove_nothing(watch: dict[str, Any]):
    """And what rests on them is skipped for that reason; the numbers are judged all the same."""
    burn = good_burn()
    assert burn.watch is not None
    found = states(replace(good(), burn=replace(burn, watch=replace(burn.watch, **watch))))
    assert found["burn.lost"] == "unknown"
    assert not FROM_SMI & {name for name, status in found.items() if status == "pass"}
    assert found["burn.numbers"] == "pass"


@pytest.mark.parametrize(
    ("state", "numbers"),
    [(StepState.STOPPED, "unknown"), (StepState.CRASHED, "fail"), (StepState.HUNG, "fail")],
)
def test_after_an_early_end_failures_stand_and_nothing_passes(state: StepState, numbers: str):
    """It was well until then, and that proves nothing; too hot stays too hot."""
    facts = replace(loaded({}, state=state, rc=-6), interrupted=state is StepState.STOPPED)
    assert states(facts) == {**dict.fromkeys(BURN, "skip"), "burn.numbers": numbers}
    hot = loaded({}, state=state, rc=-6, gpus=(watched(0, slowed={HEAT: 300}, replays=(0, 99)),))
    found = states(replace(hot, interrupted=state is StepState.STOPPED))
    assert (found["burn.thermal"], found["burn.pcie"]) == ("fail", "fail")


def test_a_load_that_was_not_begun_is_unknown():
    """With the reason, where there is one."""
    found = judged(replace(good(), burn=None))
    assert {result.status for result in found.values()} <= {Status.UNKNOWN, Status.SKIP}
    assert (
        found["burn.numbers"].cause
        == "the value cannot be read, so nothing is proved: the load was not begun"
    )
    stopped = judged(replace(good(), burn=None, interrupted=True))
    assert stopped["burn.numbers"].cause_id == "interrupted"


def test_a_closed_kernel_log_is_skipped():
    """As in most containers."""
    found = judged(replace(good(), burn=replace(good_burn(), log_problem="not permitted")))["burn.xid"]
    assert (found.status, found.cause_id) == (Status.SKIP, "log_closed")


@settings(max_examples=200, deadline=None)
@given(gpus=JSON, device=st.sampled_from(Device))
def test_garbage_in_place_of_the_numbers_never_passes(gpus: object, device: Device):
    """Of any shape."""
    burn = good_burn()
    step = replace(burn.step, value={"elapsed": gpus, "gpus": gpus})
    found = states(replace(good(), device=device, burn=replace(burn, step=step)))
    assert found["burn.numbers"] != "pass"
    assert found["burn.steady"] != "pass"


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from(["checked", "wrong", "tflops", "products", "name", "type", "index"]), value=JSON)
def test_one_garbled_number_is_noticed(key: str, value: object):
    """Of a record that is good otherwise."""
    kind = type(NUMBERS[key])
    if isinstance(value, kind if kind is not float else int | float) and not isinstance(value, bool):
        return
    assert states(loaded({key: value}))["burn.numbers"] != "pass"


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=5), rc=st.sampled_from([0, 0, 1, 15, -11]))
def test_an_nvidia_smi_that_prints_garbage_under_load_never_passes(texts: list[str], rc: int):
    """Whatever it is."""
    said = cycle(texts)

    def run(command: list[str], **_: object) -> Answer:
        return Answer(command=tuple(command), text=next(said), rc=rc)

    sampler = Sampler("nvidia-smi", every_s=0.0, run=run)
    sampler.start()
    sampler.loaded()
    while sampler._asked < 12:
        pass
    burn = replace(good_burn(), watch=sampler.stop())
    found = states(replace(good(), burn=burn))
    assert not FROM_SMI & {name for name, status in found.items() if status == "pass"}, burn.watch
