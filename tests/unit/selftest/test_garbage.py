"""Garbage into every reader never yields a pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.selftest.scenarios import good_records
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import GOOD_STEPS, H200, HOST, child_answer, good, smi_answers
from torchtap.selftest.facts import Facts
from torchtap.selftest.host import read_version_text
from torchtap.selftest.kernel_log import read_text
from torchtap.selftest.manifest import read_manifest
from torchtap.selftest.probe import read_lines
from torchtap.selftest.process import Answer, visible
from torchtap.selftest.query import ALSO, ask_smi
from torchtap.selftest.runner import judge_all
from torchtap.selftest.smi import Kind, judge
from torchtap.selftest.smi.fields import FIELDS, NotThisFormError
from torchtap.selftest.status import Status, worst

COMMANDS = (
    "",
    "nvidia-smi",
    "nvidia-smi -L",
    "nvidia-smi -q",
    "nvidia-smi --version",
    "nvidia-smi --query-gpu=index,name,uuid,temperature.gpu --format=csv,noheader,nounits",
    "nvidia-smi --query-gpu=uuid --format=csv,noheader",
    "dmesg",
)
# Text that looks like what is read: its letters, its words, its separators.
WORDS = st.sampled_from(
    [
        "GPU",
        "0",
        "1",
        "NVIDIA",
        ",",
        "|",
        ":",
        " : ",
        "+---+",
        "MiB",
        "Driver Version:",
        "(UUID: ",
        "N/A",
        "Xid",
        "\n",
        "\t",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300).map(visible),
    st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=40).map(" ".join),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=12,
)
# Only nvidia-smi and the kernel log stand behind these; everything else reads the test process.
FROM_SMI_ALONE = {"driver.smi", "gpu.state", "gpu.ecc", "gpu.clocks", "gpu.pcie", "kernel.log"}
FROM_SMI_ALONE |= {"gpu.free", "gpu.licence", "gpu.nvlink", "gpu.firmware"}
FROM_THE_HOST = {"host.shm", "host.limits"}


def passes(facts: Facts) -> set[str]:
    return {result.id for result in judge_all(CHECKS, facts) if result.status is Status.PASS}


def verdict(facts: Facts) -> Status:
    return worst(result.status for result in judge_all(CHECKS, facts))


@settings(max_examples=400, deadline=None)
@given(
    text=TEXTS,
    rc=st.sampled_from([None, 0, 0, 0, 1, 15, 255, -11]),
    command=st.sampled_from(COMMANDS),
    data=st.data(),
)
def test_text_that_is_no_answer_is_never_a_pass(text: str, rc: int | None, command: str, data: st.DataObject):
    """Whatever it is taken for."""
    kind = data.draw(st.sampled_from([None, *Kind]))
    assert judge(text, rc=rc, command=command, kind=kind).verdict.value != "pass"


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(FIELDS)), text=st.text(max_size=20).filter(lambda text: "," not in text))
def test_a_good_row_with_one_unreadable_cell_is_never_a_pass(name: str, text: str):
    """Every field that is known, with any text that it cannot have."""
    cell = visible(text.encode()).replace("\n", " ").strip()
    try:
        FIELDS[name].read(cell)
        return
    except NotThisFormError:
        pass
    names = ["index", "uuid", "memory.total", name]
    command = f"nvidia-smi --query-gpu={','.join(names)} --format=csv,noheader,nounits"
    said = judge(f"0, {H200['uuid']}, 143771, {cell}\n", rc=0, command=command)
    not_reported = {"", "n/a", "not supported", "not available", "function not found", "no data"}
    not_reported |= {"requested functionality has been deprecated"}
    assert said.verdict.value != "pass" or cell.strip("[]").strip().casefold() in not_reported


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=400), rc=st.sampled_from([0, 0, 1, 255]))
def test_an_nvidia_smi_that_prints_garbage_never_makes_a_good_host(raw: bytes, rc: int):
    """Everything else is well, and that does not help."""
    answer = Answer(command=("nvidia-smi",), text=visible(raw), rc=rc)
    facts = replace(good(), smi=ask_smi(["index"], find=lambda: "nvidia-smi", run=lambda *_, **__: answer))
    assert not FROM_SMI_ALONE & passes(facts)
    assert verdict(facts) in (Status.FAIL, Status.UNKNOWN)


@settings(max_examples=200, deadline=None)
@given(values=st.fixed_dictionaries(dict.fromkeys(GOOD_STEPS, JSON)))
def test_a_test_process_that_reports_garbage_never_makes_a_good_host(values: dict[str, object]):
    """JSON of any shape where each step's values should be."""
    wrapped = {name: value if isinstance(value, dict) else {"gpus": value} for name, value in values.items()}
    facts = replace(good(), child=read_lines(child_answer(wrapped)))
    assert passes(facts) <= FROM_SMI_ALONE | FROM_THE_HOST
    assert verdict(facts) in (Status.FAIL, Status.UNKNOWN)


@settings(max_examples=200, deadline=None)
@given(step=st.sampled_from(sorted(GOOD_STEPS)), data=st.data())
def test_one_garbled_value_of_one_step_is_noticed(step: str, data: st.DataObject):
    """Of values that a check decides by; the others are only shown."""
    deciding = {
        key
        for key in GOOD_STEPS[step]
        if key not in ("file", "files", "name", "error", "nvml_path", "memory_mib", "shm_mib", "shm_free_mib")
    }
    key = data.draw(st.sampled_from(sorted(deciding)))
    good_value = GOOD_STEPS[step][key]
    garbage = data.draw(JSON.filter(lambda value: type(value) is not type(good_value) and value is not None))
    changed = {**GOOD_STEPS, step: {**GOOD_STEPS[step], key: garbage}}
    facts = replace(good(), child=read_lines(child_answer(changed)))
    assert verdict(facts) in (Status.FAIL, Status.UNKNOWN)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, name=st.sampled_from(sorted(ALSO)))
def test_garbage_as_the_answer_to_another_question_is_never_a_pass(text: str, name: str):
    """Processes, licence, links: what cannot be read is unknown; nothing at all is no process."""
    check = {"processes": "gpu.free", "licence": "gpu.licence", "nvlink": "gpu.nvlink"}[name]
    gpus = [{**H200, "name": "NVIDIA H200-141C"}, {**H200, "index": "1", "uuid": f"{H200['uuid'][:-1]}1"}]
    gpus = [{**gpu, "memory.used": "[N/A]"} for gpu in gpus]
    facts = replace(good(), smi=smi_answers(gpus, **{name: text}))
    assert check not in passes(facts) or (name == "processes" and not text.strip())


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=300))
def test_garbage_in_the_kernel_log_is_never_a_pass(raw: bytes):
    """Not even where the rest of the machine is well."""
    facts = replace(good(), kernel=read_text(visible(raw), now=10.0))
    assert "kernel.log" not in passes(facts) or (facts.kernel and (facts.kernel.since or facts.kernel.lines))


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, rc=st.sampled_from([0, 1, -6, None]))
def test_lines_of_garbage_from_the_test_process_prove_nothing(text: str, rc: int | None):
    """Not even its own start."""
    answer = Answer(command=(), text=text, rc=rc, timed_out=rc is None, seconds=1.0)
    facts = replace(good(), child=read_lines(answer))
    assert passes(facts) <= FROM_SMI_ALONE | FROM_THE_HOST | {
        "device.nodes"
    }  # the nodes are there, and were not opened
    assert verdict(facts) in (Status.FAIL, Status.UNKNOWN)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_garbage_in_the_kernels_files_gives_no_driver_version(text: str):
    """Neither /proc nor /sys: the version stays unknown."""
    host = replace(HOST, driver_text=text, module_version=text)
    if read_version_text(text) is not None or host.kernel_driver is not None:
        return
    steps = {**GOOD_STEPS, "cuda.init": {**GOOD_STEPS["cuda.init"], "cuda": None}}
    facts = Facts(
        device=good().device,
        host=host,
        smi=smi_answers([{**H200, "driver_version": "[N/A]"}]),
        child=read_lines(child_answer(steps)),
    )
    assert "driver.version" not in passes(facts)


@settings(max_examples=100, deadline=None)
@given(written=st.one_of(JSON.map(json.dumps), TEXTS))
def test_a_garbled_manifest_is_never_agreed_with(tmp_path_factory: pytest.TempPathFactory, written: str):
    """torch.build says that it could not compare."""
    file = Path(tmp_path_factory.getbasetemp()) / "garbled-manifest.json"
    file.write_text(written, encoding="utf-8", errors="surrogatepass")
    manifest = read_manifest({"TORCHTAP_MANIFEST": str(file)})
    assert manifest is not None
    assert manifest.error
    assert "torch.build" not in passes(replace(good(), manifest=manifest))


# Check -> the step it reads, and the values of one record that it decides by.
MEASURING = {
    "gpu.memory": ("gpu.memory", ("index", "total_mib", "tested_mib", "checked", "wrong")),
    "gpu.bandwidth": ("gpu.bandwidth", ("index", "gb_s")),
    "gpu.transfer": (
        "gpu.transfer",
        ("index", "to_gpu", "from_gpu", "pcie_gen", "max_pcie_gen", "pcie_width"),
    ),
    "gpu.throttle": ("gpu.speed", ("index", "sm_mhz", "max_sm_mhz", "reasons")),
    "gpu.speed": ("gpu.speed", ("index", "checked", "wrong", "tflops")),
    "gpu.recurrent": ("gpu.recurrent", ("index", "checked", "wrong")),
    "gpu.compile": ("gpu.compile", ("index", "checked", "wrong")),
    "torch.compile": ("cpu.compile", ("index", "checked", "wrong")),
}


@settings(max_examples=300, deadline=None)
@given(check=st.sampled_from(sorted(MEASURING)), data=st.data())
def test_one_garbled_value_of_one_gpu_is_no_pass(check: str, data: st.DataObject):
    """Of every measuring check: of another type, without a value, negative, zero or not finite."""
    step, keys = MEASURING[check]
    key = data.draw(st.sampled_from(keys))
    first, *others = good_records(step)
    of_another_type = JSON.filter(
        lambda value: type(value) is not type(first[key]) and type(value) is not float
    )
    bad = [float("nan"), float("inf"), *([] if key == "index" else [-1])]
    bad += [] if key in ("index", "wrong", "reasons") else [0]
    garbage = data.draw(st.one_of(of_another_type, st.sampled_from(bad)))
    if garbage is None and key in (
        "reasons",
        "max_pcie_gen",
    ):  # the driver does not tell it: the rest decides
        return
    if isinstance(first[key], float) and isinstance(garbage, int) and garbage > 0:
        return
    changed = {**GOOD_STEPS, step: {"gpus": [{**first, key: garbage}, *others]}}
    assert check not in passes(replace(good(), child=read_lines(child_answer(changed))))
