"""Fields that a GPU does not tell: where that is normal, and where it hides something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.unit.selftest.scenarios import rows, silent
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.untold import untold
from torchtap.selftest.examples import H200, good, smi_answers
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all

OF_SMI = [
    check.id for check in CHECKS if check.reads and check.reads[0].startswith("smi:") and "gpu." in check.id
]
ERRORS = [name for name in H200 if name.startswith("ecc.errors")]
ROWS = [name for name in H200 if name.startswith("remapped_rows")]
DISPLAY = {
    **silent(),
    "name": "NVIDIA T400 4GB",
    "memory.total": "4096",
    "memory.used": "300",
    "compute_mode": "Default",
    "temperature.gpu": "40",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
}
MIG = {"mig.mode.current": "Enabled", **dict.fromkeys(ROWS, "[N/A]")}


def said(*changes: Mapping[str, str]) -> dict[str, Result]:
    gpus = [
        {**H200, "index": str(n), "uuid": f"{H200['uuid'][:-1]}{n}", **change}
        for n, change in enumerate(changes)
    ]
    return {each.id: each for each in judge_all(CHECKS, replace(good(), smi=smi_answers(gpus)))}


@pytest.mark.parametrize(
    "field",
    [
        *("memory.total", "compute_mode", "mig.mode.current", "gpu_recovery_action", "fabric.state"),
        *("fabric.status", "ecc.mode.current", *ERRORS, *ROWS, "clocks_throttle_reasons.active"),
        *("temperature.gpu", "pcie.link.width.current", "pcie.link.width.max", "memory.used"),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_what_an_equal_gpu_tells_must_be_told(field: str, which: int):
    """By whichever of the two: the check that reads it is unknown, and says of which GPU."""
    changes: list[Mapping[str, str]] = [{}, {}]
    changes[which] = {field: "[N/A]"}
    results = said(*changes)
    reading = [check.id for check in CHECKS if f"smi:{field}" in check.reads and check.id in results]
    odd = [results[name] for name in reading if results[name].cause_id == "not_told"]
    assert odd, {name: results[name].seen for name in reading}
    assert all(each.status.value == "unknown" for each in odd)
    assert (odd[0].cause or "").startswith(f"GPU {which}: nvidia-smi does not report {field}, though ")


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param([{}, {}], id="two equal ones"),
        pytest.param([{}, DISPLAY], id="a display GPU beside it"),
        pytest.param([DISPLAY, {}], id="the display GPU first"),
        pytest.param([{}, {"persistence_mode": "[N/A]"}], id="persistence mode says nothing about health"),
        pytest.param(
            [{}, {"ecc.mode.current": "Disabled", **dict.fromkeys([*ERRORS, *ROWS], "[N/A]")}],
            id="ECC off on one",
        ),
        pytest.param([DISPLAY, {**DISPLAY}], id="two that tell little"),
        pytest.param(
            [{"ecc.errors.uncorrected.aggregate.total": "[N/A]"}], id="a board that keeps no history"
        ),
        pytest.param(
            [{**dict.fromkeys(ERRORS, "[N/A]"), "name": "NVIDIA H200-141C"}],
            id="a virtual GPU, whose ECC is the host's",
        ),
        pytest.param(
            [
                {
                    "memory.total": "[N/A]",
                    "memory.used": "[N/A]",
                    "pcie.link.width.current": "1",
                    "name": "NVIDIA GB10",
                }
            ],
            id="GB10, with a link that is made up",
        ),
    ],
)
def test_what_a_product_or_a_mode_does_not_have_is_no_fault(gpus: list[Mapping[str, str]]):
    """No check of nvidia-smi's fields finds anything."""
    answer = "GPU 00000000:41:00.0\n    vGPU Software Licensed Product\n        License Status : Licensed\n"
    listed = [
        {**H200, "index": str(n), "uuid": f"{H200['uuid'][:-1]}{n}", **gpu} for n, gpu in enumerate(gpus)
    ]
    facts = replace(good(), smi=smi_answers(listed, licence=answer))
    bad = {
        each.id: each.seen
        for each in judge_all(CHECKS, facts)
        if each.id in OF_SMI and each.status.value in ("fail", "unknown", "warn") and each.id != "gpu.nvlink"
    }
    assert bad == {}


def test_mig_hides_fields_on_the_gpu_that_has_it():
    """Remapped rows, and by some drivers the counters; the equal GPU without MIG tells them."""
    facts = rows({}, {**MIG, **dict.fromkeys(ERRORS, "[N/A]")})
    assert untold(facts.need_smi.rows, [*ERRORS, *ROWS]) == {}
    assert untold(rows({}, dict.fromkeys(ROWS, "[N/A]")).need_smi.rows, ROWS)


def test_a_pass_says_which_gpus_it_is_about():
    """A GPU of another kind that tells nothing is named, not counted."""
    results = said({}, DISPLAY)
    assert results["gpu.ecc"].seen == "1 GPU, nothing to report; not reported by GPU 1"
    assert results["gpu.state"].seen == "2 GPUs, nothing to report"


def test_one_width_alone_is_no_statement_about_a_link():
    """Not reported, instead of a pass."""
    results = said({"pcie.link.width.current": "[N/A]"})
    assert (results["gpu.pcie"].status.value, results["gpu.pcie"].cause_id) == ("skip", "not_reported")


def test_memory_in_use_is_said_of_the_gpus_that_tell_it():
    """The others by their processes."""
    results = said({}, {**DISPLAY, "memory.used": "[N/A]"})
    assert results["gpu.free"].seen == "0 MiB in use at most; no process on GPU 1"
