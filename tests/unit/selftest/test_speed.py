"""Rates: judged where there is something to judge by, told where there is not; and which GPU is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.unit.selftest.scenarios import child, each, env, rows, speeds, two
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.together import judge_nccl
from torchtap.selftest.checks.which import numbering
from torchtap.selftest.examples import H200, good, smi_answers
from torchtap.selftest.facts import Facts
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Status, worst


def results(facts: Facts) -> dict[str, Result]:
    return {result.id: result for result in judge_all(CHECKS, facts)}


def named(name: str, memory_mib: int = 16000, **changes: Mapping[str, object]) -> Facts:
    """One GPU of this name."""
    gpu = {
        "index": 0,
        "name": name,
        "capability": "8.9",
        "memory_mib": memory_mib,
        "uuid": None,
        "bus_id": None,
    }
    return child(torch__cuda={"gpus": [gpu]}, **changes)  # type: ignore[arg-type]


def test_a_gpu_that_is_not_in_the_table_is_measured_and_not_judged():
    """Neither good nor bad: skipped with that reason, its numbers in the report, and the verdict is the others'."""
    said = results(named("NVIDIA GeForce RTX 4070"))
    for check in ("gpu.bandwidth", "gpu.speed"):
        assert (said[check].status, said[check].cause_id) == (Status.SKIP, "no_reference")
        assert said[check].cause == "measured, but not judged: no reference for NVIDIA GeForce RTX 4070"
        assert said[check].values["measured"]
    assert said["gpu.transfer"].status is Status.PASS  # the link is its own reference
    assert worst(each.status for each in said.values()) is Status.PASS


def test_a_slice_of_a_gpu_is_not_judged_by_the_whole():
    """MIG: an eighth of an H100 is no broken H100."""
    said = results(
        named(
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9856, gpu__bandwidth=each("gpu.bandwidth", {"gb_s": 380.0})
        )
    )
    assert said["gpu.bandwidth"].cause_id == "no_reference"


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "4312", None, True])
def test_a_rate_that_is_none_is_unknown(value: object):
    """Also of a GPU without a reference, whose numbers are only told."""
    slow = each("gpu.bandwidth", {"gb_s": value})
    for facts in (child(gpu__bandwidth=slow), named("NVIDIA GeForce RTX 4070", gpu__bandwidth=slow)):
        assert results(facts)["gpu.bandwidth"].status is Status.UNKNOWN


def test_a_link_that_is_not_told_is_not_judged():
    """No NVML, or a virtual machine that hides it."""
    unknown = each("gpu.transfer", {"pcie_gen": None, "pcie_width": None})
    assert results(child(gpu__transfer=unknown))["gpu.transfer"].cause_id == "no_reference"


@pytest.mark.parametrize(
    ("link", "status", "cause"),
    [
        ({"pcie_gen": 5, "max_pcie_gen": 5}, "pass", None),
        ({"pcie_gen": 5, "max_pcie_gen": None}, "pass", None),
        ({"pcie_gen": 4, "max_pcie_gen": 5, "to_gpu": 27.0, "from_gpu": 27.0}, "warn", "pcie_slow"),
        ({"pcie_gen": 3, "max_pcie_gen": 5, "to_gpu": 13.0, "from_gpu": 13.0}, "fail", "pcie_slow"),
        ({"pcie_gen": 1, "max_pcie_gen": 4, "to_gpu": 3.5, "from_gpu": 3.5}, "fail", "pcie_slow"),
        ({"pcie_gen": 1, "max_pcie_gen": 2, "to_gpu": 1.5, "from_gpu": 1.5}, "fail", "transfer_low"),
        ({"pcie_gen": 5, "max_pcie_gen": 0}, "unknown", "unreadable"),
    ],
)
def test_a_link_is_judged_by_the_best_it_can_be_too(link: dict[str, object], status: str, cause: str | None):
    """Copies that fill a slow link are slow all the same."""
    said = results(child(gpu__transfer=each("gpu.transfer", link)))["gpu.transfer"]
    assert (said.status.value, said.cause_id) == (status, cause)
    if cause == "pcie_slow":
        assert said.cause == (
            f"GPU 0: the PCIe link runs at generation {link['pcie_gen']} under load, not {link['max_pcie_gen']}, "
            "so copies are slow"
        )


def test_unknown_gpus_are_compared_with_their_equals():
    """What no table knows, eight cards of one kind know together."""
    facts = two(gpu__speed=each("gpu.speed", {}, speeds(bf16=500.0)))
    assert facts.child is not None
    gpus = [{**dict(gpu.value), "name": "NVIDIA X"} for gpu in facts.child.done("torch.cuda").records("gpus")]
    said = results(two(torch__cuda={"gpus": gpus}, gpu__speed=each("gpu.speed", {}, speeds(bf16=500.0))))
    assert said["gpu.speed"].cause_id == "no_reference"
    assert (said["gpu.equals"].status, said["gpu.equals"].cause_id) == (Status.FAIL, "slower_than_equals")
    assert said["gpu.equals"].seen == "GPU 1: 36% less bf16 TFLOP/s than the median of its equals"


def test_one_gpu_has_no_equals_and_nobody_to_talk_to():
    """Skipped, and that takes nothing from the verdict."""
    said = results(good())
    assert {said[name].cause_id for name in ("gpu.equals", "gpu.peers", "gpu.nccl")} == {"not_applicable"}


def test_clocks_that_the_power_limit_holds_are_normal():
    """A product of matrices is what power limits are for."""
    held = each("gpu.speed", {"reasons": 0x4, "sm_mhz": 1300})
    said = results(child(gpu__speed=held))["gpu.throttle"]
    assert (said.status, said.seen) == (Status.PASS, "1300 of 1980 MHz under load, by the power limit")
    silent = each("gpu.speed", {"reasons": None, "sm_mhz": None, "max_sm_mhz": None})
    assert results(child(gpu__speed=silent))["gpu.throttle"].cause_id == "not_reported"


def test_a_power_limit_that_lowers_clocks_lowers_what_can_be_reached():
    """A T4 of 70 W multiplies at half its clock, and is well; at full clock the same rate is a failure."""
    rates = {"tflops": {"fp32": 4.3, "fp16": 24.0}, "max_sm_mhz": 1590}
    held = each("gpu.speed", {**rates, "sm_mhz": 855, "reasons": 0x4})
    said = results(named("Tesla T4", 15360, gpu__speed=held))["gpu.speed"]
    assert (said.status, said.seen) == (
        Status.PASS,
        "at least fp16 24 TFLOP/s, 69% of 34.95 (clocks at 54%, by the power limit)",
    )
    free = each("gpu.speed", {**rates, "sm_mhz": 1590, "reasons": 0})
    assert results(named("Tesla T4", 15360, gpu__speed=free))["gpu.speed"].status is Status.FAIL


def test_a_reference_that_is_not_verified_only_warns():
    """Nobody's GPU is broken because of a number from memory."""
    slow = each("gpu.bandwidth", {"gb_s": 300.0})
    said = results(named("NVIDIA GeForce RTX 4090", 24564, gpu__bandwidth=slow))["gpu.bandwidth"]
    assert (said.status, said.cause_id) == (Status.WARN, "bandwidth_low")


def test_measured_values_have_one_record_a_gpu_and_kind():
    """What --merge, Prometheus and the level burn read."""
    said = results(two(gpu__speed=each("gpu.speed", {}, {})))
    measured = said["gpu.speed"].values["measured"]
    assert isinstance(measured, list)
    assert measured[0] == {"gpu": 0, "name": "NVIDIA H200", "what": "fp32", "value": 51.2, "unit": "TFLOP/s"}
    assert len(measured) == 8
    assert said["gpu.bandwidth"].values["measured"] == [
        {"gpu": 0, "name": "NVIDIA H200", "value": 4312.0, "unit": "GB/s"}
    ]


@pytest.mark.parametrize(
    ("count", "name", "gb_s", "status"),
    [
        (8, "NVIDIA H100 80GB HBM3", 399.9, "warn"),
        (8, "NVIDIA H100 80GB HBM3", 400.0, "pass"),
        (8, "NVIDIA H200", 62.0, "warn"),
        (2, "NVIDIA H200", 6.0, "warn"),
        (2, "NVIDIA H200", 63.0, "warn"),
        (2, "NVIDIA H200", 63.1, "pass"),
        (8, "NVIDIA A100-SXM4-80GB", 179.0, "warn"),
        (8, "NVIDIA A100-SXM4-80GB", 180.0, "pass"),
        (4, "NVIDIA A100-SXM4-80GB", 31.0, "warn"),
        (8, "NVIDIA H100 NVL", 6.0, "pass"),  # bridged in pairs: the way between them is PCIe
        (8, "NVIDIA L40S", 6.0, "pass"),
        (8, "NVIDIA L40S", 4.9, "warn"),
    ],
)
def test_nccl_is_compared_with_what_these_boards_are_linked_by(
    count: int, name: str, gb_s: float, status: str
):
    """Unverified, so never a failure."""
    gpus = [
        {"index": n, "name": name, "capability": "9.0", "memory_mib": 81000, "uuid": None, "bus_id": None}
        for n in range(count)
    ]
    done = {"count": count, "checked": 8, "wrong": 0, "bus_gb_s": gb_s}
    said = judge_nccl(two(torch__cuda={"gpus": gpus}, gpu__nccl=done))
    assert (said.status.value, said.cause_id) == (status, "nccl_slow" if status == "warn" else None)


# -- Which GPU ------------------------------------------------------------------------------------------------------
def test_a_gpu_is_named_by_nvidia_smis_index():
    """torch's GPU 0 is nvidia-smi's GPU 1: CUDA_VISIBLE_DEVICES=1, or another CUDA_DEVICE_ORDER."""
    facts = rows({}, {})
    assert facts.child is not None
    second = {**dict(facts.child.done("torch.cuda").records("gpus")[1].value), "index": 0}
    wrong = {"gpus": [{"index": 0, "checked": 8320, "wrong": 1}]}
    changed = child(torch__cuda={"gpus": [second]}, gpu__matmul=wrong).child
    said = results(replace(facts, child=changed, host=env(CUDA_VISIBLE_DEVICES="1")))["gpu.matmul"]
    assert said.cause is not None
    assert said.cause.startswith("GPU 1: wrong numbers")
    assert said.values["index"] == 1


def test_a_gpu_is_found_by_its_bus_id_too():
    """Where this torch tells no UUID."""
    gpus = [
        {**H200, "index": str(n), "uuid": f"GPU-{n}", "pci.bus_id": f"00000000:{bus}:00.0"}
        for n, bus in enumerate(("1B", "43"))
    ]
    seen = [
        {
            "index": n,
            "name": "NVIDIA H200",
            "capability": "9.0",
            "memory_mib": 143156,
            "uuid": None,
            "bus_id": bus,
        }
        for n, bus in enumerate(("00000000:43:00.0", "00000000:1B:00.0"))
    ]
    facts = replace(child(torch__cuda={"gpus": seen}), smi=smi_answers(gpus))
    assert (numbering(facts).by, numbering(facts).name([0])) == ("nvidia-smi", "GPU 1")


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"])
def test_where_torch_tells_neither_its_own_count_is_said(variable: str):
    """Never an index that may be another GPU's."""
    facts = named("NVIDIA H200", 143156)
    assert numbering(facts).name([0]) == "GPU 0"
    chosen = replace(facts, host=env(**{variable: "0"}))
    assert numbering(chosen).name([0]) == "GPU 0 (as PyTorch counts)"
