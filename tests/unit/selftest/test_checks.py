"""Checks over whole machines: one first cause each, every cause reached, every text filled."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.unit.selftest.scenarios import (
    LINKED,
    MANIFEST,
    SCENARIOS,
    SECOND,
    YOURS,
    Scenario,
    bare,
    child,
    code,
    denied,
    driver,
    env,
    other,
    rows,
    vgpu,
)
from torchtap.selftest.causes import CAUSES
from torchtap.selftest.check import SKIP_REASONS
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.checks.expect import EXPECTATIONS
from torchtap.selftest.checks.sharing import judge_free
from torchtap.selftest.child.steps import STEPS
from torchtap.selftest.codes import CODES
from torchtap.selftest.examples import H200, T4, good, smi_answers
from torchtap.selftest.facts import Facts, SmiFacts
from torchtap.selftest.process import Answer
from torchtap.selftest.query import ALSO
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.smi.fields import FIELDS
from torchtap.selftest.status import Device, Remedy, Status
from torchtap.selftest.status import worst as verdict_of

# Causes that a text, a table or the kernel log gives to a library user; quick checks do not ask for them.
ONLY_IN_SMI_JUDGE = {
    "libcuda_not_injected",
    "wrong_libcuda",
    "smi_exit_code",
}
# The self-test's own accident: no machine brings it about; test_runner and test_interpreter do.
ACCIDENTS = {"check_broke", "python_broken"}


def results(facts: Facts) -> dict[str, Result]:
    return {result.id: result for result in judge_all(CHECKS, facts)}


def findings(facts: Facts) -> list[Result]:
    return [each for each in results(facts).values() if each.status not in (Status.PASS, Status.SKIP)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_machine_has_the_one_cause_it_should(scenario: Scenario):
    """The verdict, and the first finding of that kind; a failing machine has exactly one failure."""
    found = findings(scenario.facts)
    verdict = verdict_of(each.status for each in results(scenario.facts).values())
    assert verdict.value == scenario.status
    if scenario.status == "pass":
        assert found == []
        return
    worst = [each for each in found if each.status is verdict]
    assert [(each.id, each.cause_id) for each in worst] == [(scenario.check, scenario.cause)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_text_of_a_finding_is_filled(scenario: Scenario):
    """No slot without its value, no cause without a remedy, nothing that would wrap badly."""
    for each in findings(scenario.facts):
        assert each.cause
        assert each.remedy
        texts = (each.cause, each.remedy, each.seen)
        assert not any(
            re.search(r"\?(?!['\"])|\{|\}|None|  $", text) for text in texts if "echo $?" not in text
        ), texts
        assert each.cause_id in next(
            check.causes for check in CHECKS if check.id == each.id
        ) or each.cause_id in (
            "child_crashed",
            "child_hung",
            "child_silent",
            "child_killed",
            "child_ended",
            "child_slow",
            "torch_crashed",
            "unreadable",
            "not_reached",
            "interrupted",
        )


def test_every_cause_is_reached_by_some_machine():
    """No text that no test has ever printed."""
    reached = {each.cause_id for scenario in SCENARIOS for each in findings(scenario.facts)}
    of_expectations = {
        cause for check in EXPECTATIONS for cause in check.causes
    }  # test_expect.py reaches them
    assert CAUSES.keys() - reached == ONLY_IN_SMI_JUDGE | ACCIDENTS | of_expectations


def test_checks_are_well_formed():
    """Unique ids, subject first; needs come before; causes, fields and steps exist; a source for every limit."""
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    for at, check in enumerate(CHECKS):
        assert re.fullmatch(r"(device|driver|lib|torch|cuda|gpu|cpu|host|kernel|env|burn)\.[a-z]+", check.id)
        assert set(check.needs) <= set(ids[:at]), check.id
        assert set(check.causes) <= CAUSES.keys(), check.id
        assert check.on_error in CAUSES
        assert check.on_error in (*check.causes, "check_broke", "libcuda_broken")
        assert check.title.endswith("?")
        assert check.source
        for read in check.reads:
            kind, colon, name = read.partition(":")
            known = {"smi": list(FIELDS), "child": list(STEPS), "ask": list(ALSO)}.get(kind, [])
            assert not colon or kind in ("env", "load") or name in known, read


def test_cuinit_codes_of_the_decision_tree_have_causes():
    """facts: 3, 34, 46, 100, 101, 304, 802, 803, 804, 999."""
    assert CODES.keys() == {3, 34, 46, 100, 101, 304, 802, 803, 804, 999}
    assert {cause for code in CODES.values() for _, cause in code.causes} <= CAUSES.keys()


def test_every_remedy_is_used_and_every_command_fits_a_line():
    """Commands to paste stay whole at 80 columns; sentences have no full stop, because the report is a list."""
    assert {cause.remedy for cause in CAUSES.values()} == set(Remedy)
    for name, cause in CAUSES.items():
        assert len(cause.paste) <= 72, name
        for text in (cause.says, cause.do):
            assert not text.endswith("."), name
            assert text == text.strip(), name
            assert "  " not in text, name
        assert cause.do[0].isupper() or cause.do.startswith("cuDNN"), name


def test_a_failure_stops_what_needs_it_and_names_the_root():
    """Skips name the check that failed, not one that was skipped for it."""
    said = results(bare())
    skipped = [each for each in said.values() if each.status is Status.SKIP]
    assert {each.values["need"] for each in skipped} == {"device.nodes"}
    assert {each.cause for each in skipped} == {"needs device.nodes, which did not pass"}
    assert said["cpu.matmul"].status is Status.PASS


def test_without_a_gpu_by_design_only_the_rest_counts():
    """GPU checks are skipped by design, CPU checks run."""
    said = results(replace(bare(), device=Device.CPU))
    by_status = {status: [each.id for each in said.values() if each.status is status] for status in Status}
    assert by_status[Status.PASS] == [
        *(
            "torch.build",
            "torch.cudnn",
            "cpu.matmul",
            "cpu.rnn",
            "host.shm",
            "host.limits",
            "host.workers",
            "torch.compile",
            "burn.numbers",
        )
    ]
    assert {said[name].cause_id for name in by_status[Status.SKIP]} == {"by_design"}
    assert len(by_status[Status.SKIP]) == len(CHECKS) - 9


def test_a_cpu_wheel_by_design_passes():
    """Nothing to compare cuDNN with, and that is no fault."""
    facts = child(
        torch__import={"version": "2.14.1+cpu", "cuda": None},
        torch__build={"arch_list": []},
        torch__cudnn={"version": None, "files": []},
    )
    said = results(replace(facts, device=Device.CPU))
    assert said["torch.build"].status is Status.PASS
    assert said["torch.cudnn"].cause_id == "not_applicable"


def test_a_cpu_wheel_without_a_gpu_is_the_second_thing_to_mend():
    """A warning there: the missing GPU is the failure."""
    wheel = child(
        torch__import={"version": "2.14.1+cpu", "cuda": None},
        torch__build={"arch_list": []},
        torch__cudnn={"version": None, "files": []},
        cuda__library={"found": False, "error": "libcuda.so.1: cannot open shared object file: No such file"},
        cuda__init=None,
        torch__cuda=None,
    )
    host = replace(bare(module_loaded=False, pci=(), container=None).host)
    said = results(replace(wheel, host=host, smi=bare().smi))
    assert (said["torch.build"].status, said["torch.build"].cause_id) == (Status.WARN, "cpu_only_build")
    assert [each.id for each in said.values() if each.status is Status.FAIL] == ["device.nodes"]


def test_nodes_made_by_nvidia_smi_are_well():
    """A bare host after its start has none until something asks."""
    said = results(replace(good(), host=replace(good().host, nodes=(), container=None)))
    assert said["device.nodes"].status is Status.PASS


def test_a_node_of_another_container_is_no_fault_where_cuda_starts():
    """Kubernetes may show every node and allow one."""
    said = results(
        child(nodes={"nodes": {"/dev/nvidia0": "ok", "/dev/nvidia1": "EPERM", "/dev/nvidiactl": "ok"}})
    )
    assert said["device.nodes"].status is Status.PASS


def test_a_geforce_reports_less_and_passes():
    """What a board does not have is skipped where nothing else is there, never failed."""
    card = {
        **T4,
        "name": "NVIDIA GeForce RTX 4080 SUPER",
        "driver_version": "595.71.05",
        "compute_cap": "8.9",
        "ecc.errors.uncorrected.volatile.total": "[N/A]",
    }
    facts = replace(
        child(
            cuda__library={"path": "/usr/lib/libcuda.so.595.71.05", "nvml_path": None},
            torch__cuda={"gpus": [{"index": 0, "name": "x", "capability": "8.9", "memory_mib": 16000}]},
        ),
        smi=smi_answers([card]),
        host=replace(good().host, driver_text="", module_version="595.71.05"),
    )
    said = results(facts)
    assert said["gpu.ecc"].cause_id == "not_reported"
    assert findings(facts) == []


def test_the_driver_is_judged_by_the_cuda_it_speaks_where_its_number_is_hidden():
    """As under gVisor, where neither nvidia-smi nor /proc may be there."""
    host = replace(good().host, driver_text="", module_version="")
    hidden = replace(child(), smi=smi_answers([{**H200, "driver_version": "[N/A]"}]), host=host)
    assert results(hidden)["driver.version"].seen == "speaks CUDA 13.1 (its own number is not readable)"
    old = replace(child(cuda__init={"cuda": "12.4"}), smi=hidden.smi, host=host)
    assert results(old)["driver.version"].cause_id == "driver_too_old"
    assert "VARIANT=cu128 make up" in str(results(old)["driver.version"].remedy)


def test_minor_version_compatibility_is_said_and_is_no_warning():
    """CUDA 13.2 came with 595; 580 runs it too, but for what is compiled at run time."""
    facts = driver("580.95.05")
    assert results(facts)["driver.version"].seen == "580.95.05 (needed: 580.65.06)"
    newer = child(torch__import={"version": "2.15.0+cu132", "cuda": "13.2"}, torch__cuda=None)
    said = results(replace(facts, child=newer.child))["driver.version"]
    assert (said.status, said.seen) == (
        Status.PASS,
        "580.95.05 (needed: 580.65.06; its CUDA came with 595.45.04, which PTX may need)",
    )


@pytest.mark.parametrize(("version", "status"), [("450.80.02", "pass"), ("450.51.06", "fail")])
def test_a_torch_of_cuda_11_has_its_floor(version: str, status: str):
    """CUDA 11 ran with 450.80.02 and newer."""
    older = child(torch__import={"version": "2.3.0+cu118", "cuda": "11.8"}, torch__cuda=None)
    said = results(replace(driver(version), child=older.child))["driver.version"]
    assert said.status.value == status, said


def test_capabilities_without_compute_count_in_a_container_only():
    """Nobody reads the variable on a bare host; and all of them includes compute."""
    for host in (
        replace(env(NVIDIA_DRIVER_CAPABILITIES="utility"), container=None),
        env(NVIDIA_DRIVER_CAPABILITIES="all"),
        env(NVIDIA_DRIVER_CAPABILITIES="utility,compute"),
    ):
        assert results(replace(good(), host=host))["lib.libcuda"].status is Status.PASS


def test_the_manifest_sets_the_floor():
    """cu128 runs with 525; the same driver is too old for cu130."""
    facts = driver("550.163.01")
    assert results(facts)["driver.version"].status is Status.FAIL
    older = replace(MANIFEST, variant="cu128", driver_floor=(525, 60, 13))
    assert results(replace(facts, manifest=older))["driver.version"].status is Status.PASS


def test_torch_may_see_fewer_gpus_where_somebody_chose():
    """CUDA_VISIBLE_DEVICES, or MIG."""
    two = replace(rows({}, {}), child=child().child)
    assert results(two)["torch.cuda"].status is Status.FAIL
    assert results(replace(two, host=env(CUDA_VISIBLE_DEVICES="1")))["torch.cuda"].status is Status.PASS


@pytest.mark.parametrize(
    ("visible", "cause"),
    [
        ("", "cuda_visible_devices"),
        ("-1", "cuda_visible_devices"),
        ("none", "cuda_visible_devices"),
        ("5", "cuda_visible_devices"),
        ("GPU-deadbeef", "cuda_visible_devices"),
        ("0", "no_cuda_device"),
        (H200["uuid"][:12], "no_cuda_device"),
    ],
)
def test_cuda_visible_devices_is_blamed_only_where_it_hides_everything(visible: str, cause: str):
    """A valid choice is not the reason for code 100."""
    assert results(code(100, env(CUDA_VISIBLE_DEVICES=visible)))["cuda.init"].cause_id == cause


def test_findings_of_several_gpus_are_summed_up():
    """One cause names all GPUs that have it, and what was seen at each."""
    said = results(rows({"temperature.gpu": "90"}, {}, {"temperature.gpu": "88"}))["gpu.clocks"]
    assert said.seen == "GPU 0: temperature.gpu 90; GPU 2: temperature.gpu 88"
    assert said.cause == "GPUs 0 and 2: hot, 90 C"


def test_skip_reasons_are_known():
    """Every reason that a scenario gives has its sentence."""
    given = {
        each.cause_id
        for scenario in SCENARIOS
        for each in results(scenario.facts).values()
        if each.status is Status.SKIP
    }
    assert given <= SKIP_REASONS.keys()
    assert given >= {"needs", "by_design", "simulated", "not_reported"}


def test_a_mig_container_may_not_read_some_fields():
    """Skipped with that reason where the state can be read; not where all of it is hidden."""
    said = results(rows(denied("gpu.ecc", "gpu.clocks", "gpu.pcie")))
    state = {name: (said[name].status.value, said[name].cause_id) for name in ("gpu.ecc", "gpu.pcie")}
    assert said["gpu.state"].status is Status.PASS
    assert set(state.values()) == {("skip", "not_permitted")}
    assert "not permitted" in str(said["gpu.ecc"].cause)
    hidden = results(rows(denied("gpu.state", "gpu.ecc", "gpu.clocks", "gpu.pcie")))
    assert (hidden["gpu.state"].status, hidden["gpu.state"].cause_id) == (Status.UNKNOWN, "cells_denied")


def test_a_missing_nvidia_smi_says_which_capability_is_missing():
    """NVIDIA_DRIVER_CAPABILITIES without utility; with it nothing is guessed."""
    gone = replace(good(), smi=SmiFacts(path=None))
    assert results(gone)["driver.smi"].seen == "nvidia-smi is not on PATH nor in its usual places"
    compute = replace(gone, host=env(NVIDIA_DRIVER_CAPABILITIES="compute"))
    assert results(compute)["driver.smi"].seen.endswith("; NVIDIA_DRIVER_CAPABILITIES=compute lacks utility")


def test_a_check_does_not_pass_where_what_decides_it_is_hidden():
    """Row by row of facts: [Insufficient Permissions] is a skip, and the rest of the GPU is still judged."""
    hidden = {"ecc.errors.uncorrected.volatile.total": "[Insufficient Permissions]"}
    said = results(rows(hidden))
    assert (said["gpu.ecc"].status, said["gpu.ecc"].cause_id) == (Status.SKIP, "not_permitted")
    assert said["gpu.ecc"].seen == "not permitted: ecc.errors.uncorrected.volatile.total"
    assert said["gpu.state"].status is said["gpu.clocks"].status is Status.PASS
    bad = results(rows({**hidden, "remapped_rows.pending": "Yes"}))
    assert bad["gpu.ecc"].cause_id == "remap_pending"
    one_of_two = results(rows({}, hidden))["gpu.ecc"]
    assert (one_of_two.status, one_of_two.cause_id) == (Status.UNKNOWN, "cells_denied")
    assert "GPU 1: nvidia-smi tells this user (uid 1000) too little" in str(one_of_two.cause)


def test_notes_are_said_and_change_no_verdict():
    """Persistence mode, and ECC on a board that has it."""
    said = results(rows({"persistence_mode": "Disabled", "ecc.mode.current": "Disabled"}))
    assert (
        said["gpu.state"].seen
        == "1 GPU, nothing to report; persistence mode is off, so every start takes longer"
    )
    assert said["gpu.ecc"].seen == "1 GPU, nothing to report; ECC is off, so memory errors are not noticed"
    assert said["gpu.state"].status is said["gpu.ecc"].status is Status.PASS
    counts = [name for name in H200 if name.startswith(("ecc.errors", "remapped", "retired"))]
    nothing = {**dict.fromkeys(counts, "[N/A]"), "ecc.mode.current": "Disabled"}
    none = results(rows(nothing))["gpu.ecc"]
    assert (none.status, none.cause_id) == (Status.SKIP, "not_reported")


def test_memory_in_use_and_processes_are_one_finding():
    """Which GPU, how much, by whom where nvidia-smi shows it; MIG's memory is that of all its instances."""
    said = results(other(processes=f"{SECOND['uuid']}, 4711, 400\n{SECOND['uuid']}, 4712, [N/A]\n"))[
        "gpu.free"
    ]
    assert said.seen == "GPU 1: 520 MiB in use, processes 4711, 4712"
    assert results(other(processes="No running processes found\n"))["gpu.free"].status is Status.PASS
    nameless = results(other(processes=f"{SECOND['uuid']}, [N/A], [N/A]\n"))["gpu.free"]
    assert nameless.seen == "GPU 1: 520 MiB in use, process N/A"
    assert results(other(processes="lorem ipsum\n"))["gpu.free"].status is Status.UNKNOWN
    gb10 = results(rows({"memory.used": "[N/A]", "memory.total": "[N/A]"}))["gpu.free"]
    assert (gb10.status, gb10.seen) == (Status.PASS, "no process on it")
    mig = judge_free(rows({"memory.used": "9000", "mig.mode.current": "Enabled"}))
    assert (mig.status, mig.cause_id) == (Status.SKIP, "not_applicable")


@pytest.mark.parametrize("status", ["Licensed (Expiry: 2027-1-1 0:0:0 GMT)", "Licensed (Expiry: Permanent)"])
def test_a_vgpu_with_its_licence_passes(status: str):
    """And what says nothing of one is no pass."""
    assert results(vgpu(status))["gpu.licence"].status is Status.PASS
    for said in ("N/A", ""):
        assert results(vgpu(said))["gpu.licence"].status is Status.WARN
    for said in ("Unknown Error", "Xyzzy", "Licenses"):
        assert results(vgpu(said))["gpu.licence"].status is Status.UNKNOWN
    silent = replace(good(), smi=smi_answers([{**H200, "name": "GRID T4-16Q"}], licence="lorem\n"))
    assert results(silent)["gpu.licence"].status is Status.UNKNOWN


def test_every_virtual_gpu_must_tell_its_licence():
    """One of two that says nothing of it is not licensed by the other."""
    gpus = [{**gpu, "name": "NVIDIA H200-141C"} for gpu in (H200, SECOND)]
    one = "GPU 00000000:02:00.0\n    vGPU Software Licensed Product\n        License Status : Licensed (Expiry: N/A)\n"
    silent = results(replace(good(), smi=smi_answers(gpus, licence=one)))["gpu.licence"]
    assert (silent.status, silent.seen) == (Status.UNKNOWN, "nvidia-smi -q says no License Status of GPU 1")
    both = results(replace(good(), smi=smi_answers(gpus, licence=one + one.replace(":02:", ":03:"))))
    assert both["gpu.licence"].seen == "2 virtual GPUs with a licence"


def test_a_question_for_processes_that_failed_is_no_answer():
    """An empty text with an exit code; a driver that refuses the question says nothing about the GPU."""
    gpu = {**H200, "memory.used": "9"}
    smi = smi_answers([gpu])
    for text, rc, status in (
        ("", 255, Status.UNKNOWN),
        ("", None, Status.UNKNOWN),
        ('Field "gpu_uuid" is not a valid field to query.\n', 2, Status.PASS),
        ("", 0, Status.PASS),
    ):
        answer = Answer(command=("nvidia-smi",), text=text, rc=rc)
        facts = replace(good(), smi=replace(smi, also={**smi.also, "processes": answer}))
        assert results(facts)["gpu.free"].status is status, (text, rc)


def test_links_are_compared_within_a_kind():
    """All down is no bridge; a line of another form, or a GPU without a line, is unknown; one GPU has none to link."""
    nothing = LINKED.replace("26.562 GB/s", "<inactive>")
    newer = "".join(
        f"{line}\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
        for line in LINKED.splitlines()
        if line.startswith("GPU")
    )
    none = {"fabric.state": "[N/A]", "fabric.status": "[N/A]"}
    pcie = [{**gpu, **none, "name": "NVIDIA A100 80GB PCIe"} for gpu in (H200, SECOND)]
    older = [{**gpu, **none, "name": "NVIDIA A100-SXM4-80GB"} for gpu in (H200, SECOND)]
    for text in (nothing, newer):
        assert results(other(nvlink=text))["gpu.nvlink"].cause_id == "nvlink_all_down"
        boards = replace(other(), smi=smi_answers(pcie, nvlink=text))
        assert results(boards)["gpu.nvlink"].cause_id == "not_applicable"
        boards = replace(other(), smi=smi_answers(older, nvlink=text))  # it tells no fabric, and has one
        assert results(boards)["gpu.nvlink"].cause_id == "nvlink_all_down"
    assert results(other(nvlink=LINKED))["gpu.nvlink"].seen == "36 NVLinks up, none down"
    for odd in ("", "lorem\n", LINKED.partition("GPU 1")[0], LINKED + "\t Link 18: lorem\n"):
        assert results(other(nvlink=odd))["gpu.nvlink"].status is Status.UNKNOWN, odd
    assert results(good())["gpu.nvlink"].cause_id == "not_applicable"


def test_a_variable_that_picks_gpus_must_name_ones_that_are_here():
    """CUDA drops the first name that is not, and all that follow, without a word."""
    uuid = H200["uuid"]
    for visible, status in (
        ("0", Status.PASS),
        (uuid, Status.PASS),
        (uuid[:12], Status.PASS),
        ("0,7", Status.FAIL),
        ("GPU-deadbeef", Status.FAIL),
        ("0,", Status.FAIL),
    ):
        assert (
            results(replace(good(), host=env(CUDA_VISIBLE_DEVICES=visible)))["env.visible"].status is status
        ), visible


def test_shared_memory_without_a_gpu_by_design_is_told_and_not_judged():
    """A container for the CPU starts with Docker's default."""
    small = replace(bare(shared_memory=64 << 20), device=Device.CPU)
    said = results(small)["host.shm"]
    assert (said.status, said.seen) == (
        Status.PASS,
        "/dev/shm holds 64 MiB, little for workers of a DataLoader: --shm-size 8g",
    )


def test_locked_memory_counts_where_gpus_talk():
    """Two GPUs, or InfiniBand; with one GPU it is only told."""
    limits = {"memlock": 8 << 20, "nofile": 1 << 20}
    one = replace(good(), host=replace(good().host, limits=limits))
    assert results(one)["host.limits"].seen == "memlock 8 MiB, nofile 1048576"
    assert results(one)["host.limits"].status is Status.PASS
    two = replace(rows({}, {}), host=one.host)
    assert results(two)["host.limits"].cause_id == "memlock_limited"


def test_c10_a_torch_over_the_images_is_named_with_its_file():
    """images.md 10: which file was really loaded, what differs, and the line that brings the image's back."""
    facts = child(
        torch__import={"version": "2.9.0+cu128", "cuda": "12.8", "file": f"{YOURS}/torch/__init__.py"},
        torch__build={
            "triton": "3.5.0",
            "triton_file": f"{YOURS}/triton/__init__.py",
        },
        torch__cudnn={"version": 91002, "files": [f"{YOURS}/nvidia/cudnn/lib/libcudnn.so.9"]},
    )
    drifted, *others = findings(replace(facts, manifest=MANIFEST))
    assert drifted.cause == (
        "PyTorch is not the one this image was built and tested with: "
        f"torch 2.9.0 instead of 2.14.1, from {YOURS}/torch/__init__.py; CUDA 12.8 instead of 13.0; "
        f"triton 3.5.0 instead of 3.8.0, from {YOURS}/triton/__init__.py"
    )
    assert (drifted.remedy or "").endswith("\npip uninstall torch triton")
    assert not others


def test_the_images_own_files_are_no_drift():
    """Files below the image's packages, with its versions: a pass."""
    assert not findings(replace(good(), manifest=MANIFEST))


def test_c13_another_nccl_on_the_loader_path_is_named_with_its_file():
    """images.md 13: what LD_LIBRARY_PATH brings in has a version and a file too."""
    facts = child(torch__build={"nccl": "2.27.5", "nccl_file": "/usr/lib/libnccl.so.2"})
    (found,) = findings(replace(facts, manifest=MANIFEST))
    assert "NCCL 2.27.5 instead of 2.30.7, from /usr/lib/libnccl.so.2" in (found.cause or "")
