"""From facts to a plan."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from host.engine import Engine, State
from host.gpu import Gpu, HostGpus
from host.plan import Plan, decide
from host.settings import settle
from host.show import Problem

READY = Engine(State.READY, version="28.2.2", compose="2.30.0", hints=("its runtime nvidia",))
BARE = Engine(State.READY, version="28.2.2", compose="2.30.0")
ABSENT = Engine(State.UNREACHABLE, "Cannot connect")
NO_CLIENT = Engine(State.NO_CLIENT)
H200 = Gpu("0", "GPU-aaaa", "NVIDIA H200", (9, 0))
V100 = Gpu("1", "GPU-bbbb", "Tesla V100", (7, 0))
GOOD = HostGpus(True, (590, 48, 1), (H200,))
NONE = HostGpus()
OLD = HostGpus(True, (470, 82, 1), (V100,))


def plan(environ: Mapping[str, str], engine: Engine, host: HostGpus) -> Plan:
    return decide(settle(environ, {}), engine, host)


@pytest.mark.parametrize(
    ("environ", "engine", "host", "expected"),
    [
        ({}, READY, GOOD, ("docker", "gpu", "cu130", True, False)),
        ({}, BARE, NONE, ("docker", "gpu", "cu130", True, False)),  # the proof decides, not the hints
        ({}, ABSENT, GOOD, ("local", "local", "cu130", False, False)),
        ({}, NO_CLIENT, NONE, ("local", "local", "cu130", False, False)),
        ({}, READY, OLD, ("docker", "cpu", "cu130", False, False)),
        ({"MODE": "gpu"}, READY, GOOD, ("docker", "gpu", "cu130", True, True)),
        ({"MODE": "cpu"}, READY, GOOD, ("docker", "cpu", "cu130", False, False)),
        ({"MODE": "local"}, READY, GOOD, ("local", "local", "cu130", False, False)),
        ({"VARIANT": "cpu"}, READY, GOOD, ("docker", "cpu", "cpu", False, False)),
        ({"VARIANT": "cu128"}, READY, GOOD, ("docker", "gpu", "cu128", True, False)),
        ({"VARIANT": "cu128", "MODE": "cpu"}, READY, NONE, ("docker", "cpu", "cu128", False, False)),
        ({"GPUS": "0"}, READY, GOOD, ("docker", "gpu", "cu130", True, True)),
        ({"GPUS": "all"}, READY, GOOD, ("docker", "gpu", "cu130", True, False)),
        ({}, READY, HostGpus(True, (560, 35), (V100,)), ("docker", "gpu", "cu128", True, False)),
    ],
)
def test_the_choice(
    environ: dict[str, str], engine: Engine, host: HostGpus, expected: tuple[str, str, str, bool, bool]
) -> None:
    found = plan(environ, engine, host)
    assert (found.place, found.mode, found.variant.name, found.prove, found.must) == expected
    assert found.mode_why
    assert found.variant_why


@pytest.mark.parametrize(
    ("driver", "variant"), [((580, 65, 6), "cu130"), ((579, 99, 99), "cu128"), ((525, 60, 13), "cu128")]
)
def test_c22_make_up_takes_the_variant_for_the_driver(driver: tuple[int, ...], variant: str) -> None:
    """images.md 22: "driver too old" after torch moved to CUDA 13; none is built that the driver cannot run."""
    assert plan({}, READY, HostGpus(True, driver, (H200,))).variant.name == variant


@pytest.mark.parametrize("mode", ["gpu", "cpu"])
def test_docker_asked_for_by_name_is_not_replaced_by_something_else(mode: str) -> None:
    with pytest.raises(Problem, match="no Docker engine answers: Cannot connect") as caught:
        plan({"MODE": mode}, ABSENT, GOOD)
    assert "make up MODE=local" in caught.value.do[-1]


@pytest.mark.parametrize("state", [State.NO_PERMISSION, State.NO_COMPOSE, State.OLD_COMPOSE])
def test_an_engine_that_the_user_can_mend_is_not_passed_over(state: State) -> None:
    with pytest.raises(Problem):
        plan({}, Engine(state), NONE)
    assert plan({"MODE": "local"}, Engine(state), NONE).place == "local"


def test_no_driver_is_too_old_in_silence() -> None:
    found = plan({}, READY, OLD)
    assert "driver 470.82.1" in found.mode_why
    with pytest.raises(Problem, match="no variant works with Tesla V100"):
        plan({"MODE": "gpu"}, READY, OLD)


def test_no_cuda_and_gpu_contradict() -> None:
    with pytest.raises(Problem, match="VARIANT=cpu has no CUDA"):
        plan({"VARIANT": "cpu", "MODE": "gpu"}, READY, GOOD)


def test_only_the_gpus_asked_for_decide_the_variant() -> None:
    both = HostGpus(True, (590, 48, 1), (H200, V100))
    assert plan({}, READY, both).variant.name == "cu128"
    assert plan({"GPUS": "0"}, READY, both).variant.name == "cu130"
    assert plan({"GPUS": "GPU-bb"}, READY, both).variant.name == "cu128"
    assert plan({"GPUS": "count=1"}, READY, both).variant.name == "cu130"
    assert plan({"GPUS": "MIG-1234"}, READY, both).variant.name == "cu128"


@pytest.mark.parametrize(
    ("gpus", "words"),
    [("2", "there is no GPU 2 here"), ("GPU-cc", "no GPU GPU-cc"), ("count=3", "has 2 GPUs")],
)
def test_a_gpu_that_is_not_there_is_answered_with_the_list(gpus: str, words: str) -> None:
    with pytest.raises(Problem, match=words) as caught:
        plan({"GPUS": gpus}, READY, HostGpus(True, (590, 48), (H200, V100)))
    assert caught.value.do == ("0  NVIDIA H200  GPU-aaaa", "1  Tesla V100  GPU-bbbb")


def test_gpus_of_another_machine_are_not_judged_by_this_one() -> None:
    remote = Engine(State.READY, version="28.2.2", compose="2.30.0", local=False)
    found = plan({"GPUS": "7"}, remote, OLD)
    assert (found.mode, found.variant.name) == ("gpu", "cu130")
    assert "another machine" in found.variant_why


def test_a_forced_variant_that_cannot_work_is_warned_of() -> None:
    (note,) = plan({"VARIANT": "cu130"}, READY, HostGpus(True, (550, 54), (H200,))).notes
    assert "cu130 needs driver 580 or newer, this host has 550.54" in note
    assert "cu128 would" in note
    (note,) = plan({"VARIANT": "cu130"}, READY, HostGpus(True, (590, 48), (V100,))).notes
    assert "no code for GPU 1, Tesla V100 (7.0)" in note


def test_gpus_without_a_gpu_mode_are_pointed_out() -> None:
    assert plan({"MODE": "cpu", "GPUS": "0"}, READY, GOOD).notes == (
        "GPUS=0 (the environment) means nothing without a GPU",
    )
