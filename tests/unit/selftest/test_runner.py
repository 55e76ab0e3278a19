"""Choosing, gathering and judging; whole runs against emulated hosts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.simulate import hosts, smi
from torchtap.selftest.check import Check, Judged, Scope, passed
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.child.steps import STEPS
from torchtap.selftest.examples import good
from torchtap.selftest.facts import Facts
from torchtap.selftest.gather import SettingError, gather
from torchtap.selftest.host import Host
from torchtap.selftest.process import Answer
from torchtap.selftest.result import Report
from torchtap.selftest.runner import UnknownCheckError, choose, choose_device, judge_all, run
from torchtap.selftest.status import Device, Level, Status


def ids(checks: tuple[Check, ...]) -> list[str]:
    return [check.id for check in checks]


def test_only_brings_what_a_check_needs_in_order():
    """Otherwise its own skip would be all there is."""
    assert ids(choose(CHECKS, ["gpu.ecc"])) == ["device.nodes", "driver.smi", "gpu.state", "gpu.ecc"]
    assert choose(CHECKS, []) == CHECKS


@pytest.mark.parametrize(
    ("name", "near"), [("driver.smy", "driver.smi"), ("ecc", "gpu.ecc"), ("cudnn", "gpu.cudnn")]
)
def test_an_unknown_check_is_answered_with_the_nearest(name: str, near: str):
    """And with the list of all."""
    with pytest.raises(
        UnknownCheckError, match=f"there is no check '{name}': the nearest is {near}. All: torch.build,"
    ):
        choose(CHECKS, [name])
    with pytest.raises(UnknownCheckError, match="none is like it"):
        choose(CHECKS, ["?!"])


@pytest.mark.parametrize(
    ("asked", "env", "device"),
    [
        (None, {}, "gpu"),
        ("auto", {}, "gpu"),
        ("auto", {"TORCHTAP_DEVICE": ""}, "gpu"),
        ("auto", {"TORCHTAP_DEVICE": "auto"}, "gpu"),
        ("auto", {"TORCHTAP_DEVICE": "cpu"}, "cpu"),
        ("gpu", {"TORCHTAP_DEVICE": "cpu"}, "gpu"),
        (Device.CPU, {}, "cpu"),
    ],
)
def test_the_device_is_the_options_else_the_variables(asked: str | None, env: dict[str, str], device: str):
    """A machine without a GPU is never assumed to be meant so."""
    assert choose_device(asked, env).value == device


def test_an_unknown_device_names_where_it_came_from():
    """The option or the variable."""
    with pytest.raises(SettingError, match="device must be auto, gpu or cpu; it is 'tpu'"):
        choose_device("tpu", {})
    with pytest.raises(SettingError, match="TORCHTAP_DEVICE must be auto, gpu or cpu; it is 'yes'"):
        choose_device("auto", {"TORCHTAP_DEVICE": "yes"})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_unusable_time_out_is_refused_before_anything_runs(seconds: float):
    """A number of seconds above 0."""
    with pytest.raises(SettingError, match="the time-out must be seconds"):
        run("cpu", timeout_s=seconds)


@pytest.mark.parametrize("text", ["x", "0", "-3", "nan", "1e9"])
def test_an_unusable_smi_time_out_is_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    """By its name, with what it is."""
    monkeypatch.setenv("TORCHTAP_SMI_TIMEOUT", text)
    with pytest.raises(SettingError, match=f"TORCHTAP_SMI_TIMEOUT must be seconds, .* it is '{text}'"):
        run(only=["driver.smi"])


def a_check(check_id: str, judged: Judged | Exception, **options: object) -> Check:
    def judge(_: Facts) -> Judged:
        if isinstance(judged, Exception):
            raise judged
        return judged

    values = {"title": "?", "reads": (), "causes": (), "scope": Scope.ANY, **options}
    return Check(id=check_id, judge=judge, **values)  # type: ignore[arg-type]


def test_a_check_that_breaks_is_unknown_and_the_rest_goes_on():
    """Our own fault is shown as such, with its traceback in the evidence."""
    checks = (a_check("a.a", ZeroDivisionError("oops")), a_check("a.b", passed("fine")))
    broken, fine = judge_all(checks, good())
    assert (broken.status, broken.cause_id) == (Status.UNKNOWN, "check_broke")
    assert "ZeroDivisionError" in broken.evidence
    assert "Traceback" in broken.evidence
    assert fine.status is Status.PASS


def test_what_was_left_out_blocks_nothing_and_what_failed_does():
    """The user takes the responsibility for a check that is skipped by name."""
    checks = (a_check("a.a", ZeroDivisionError()), a_check("a.b", passed("fine"), needs=("a.a",)))
    assert [each.status.value for each in judge_all(checks, good())] == ["unknown", "skip"]
    assert [each.status.value for each in judge_all(checks, good(), {"a.a"})] == ["skip", "pass"]


def test_reading_is_charged_once():
    """So that the seconds of the checks add up."""
    facts = replace(good(), seconds={"smi": 3.0, "host": 0.5, "child:torch.import": 2.0})
    assert sum(result.seconds for result in judge_all(CHECKS, facts)) == pytest.approx(5.5)


def test_evidence_is_kept_short_and_whole_where_it_matters():
    """nvidia-smi's words once, the picture of the host where it decides."""
    by_id = {result.id: result for result in judge_all(CHECKS, good())}
    assert "--query-gpu=" in by_id["driver.smi"].evidence
    assert "device nodes: /dev/nvidia-uvm" in by_id["device.nodes"].evidence
    assert "--query-gpu=" not in by_id["gpu.ecc"].evidence
    assert all(len(result.evidence) < 5000 for result in by_id.values())


def test_the_picture_is_taken_before_anything_touches_the_driver(monkeypatch: pytest.MonkeyPatch):
    """nvidia-smi and cuInit create device nodes when they run as root."""
    order: list[str] = []
    facts = good()

    def read_host() -> Host:
        order.append("host")
        return facts.host

    def ask_smi(*_: object, **__: object) -> object:
        order.append("smi")
        return facts.smi

    def run_child(*_: object, **__: object) -> object:
        order.append("child")
        return facts.child

    monkeypatch.setattr("torchtap.selftest.gather.read_host", read_host)
    monkeypatch.setattr("torchtap.selftest.gather.ask_smi", ask_smi)
    monkeypatch.setattr("torchtap.selftest.gather.run_child", run_child)
    gather(CHECKS, Device.GPU)
    assert order == ["host", "smi", "child"]


# The load runs in a test process of its own.
ON_GPU = {"nodes", "cuda.library", "cuda.init", "torch.cuda"} | {
    name for name, plan in STEPS.items() if name.startswith("gpu.") and plan.level is not Level.BURN
}


@pytest.mark.parametrize(
    ("device", "hung", "left_out"),
    [
        (Device.GPU, False, set()),
        (
            Device.GPU,
            True,
            {"cpu.rnn", "cpu.compile", *ON_GPU} - {"cuda.library"},
        ),
        (
            Device.CPU,
            False,
            ON_GPU,
        ),
    ],
)
def test_the_gpu_is_left_alone_by_design_and_after_a_hang(
    monkeypatch: pytest.MonkeyPatch, device: Device, hung: bool, left_out: set[str]
):
    """The test process is asked for everything else."""
    asked: set[str] = set()
    facts = good()
    smi_facts = replace(facts.smi, answers=(Answer(command=("nvidia-smi",), timed_out=hung),))  # type: ignore[type-var]

    def run_child(steps: list[str], **_: object) -> object:
        asked.update(steps)
        return facts.child

    monkeypatch.setattr("torchtap.selftest.gather.ask_smi", lambda *_, **__: smi_facts)
    monkeypatch.setattr("torchtap.selftest.gather.run_child", run_child)
    gather(CHECKS, device)
    every = {
        read.removeprefix("child:") for check in CHECKS for read in check.reads if read.startswith("child:")
    }
    assert every - asked == left_out


def test_only_what_is_read_is_gathered():
    """A check of torch alone does not wait for nvidia-smi."""
    report = run("gpu", only=["cpu.matmul"])
    assert [result.id for result in report.results] == ["torch.build", "cpu.matmul"]
    assert report.verdict is Status.PASS or report.results[0].cause_id == "cpu_only_build"


def test_torch_is_not_imported_by_the_parent():
    """A crash of torch must not take the report away."""
    code = (
        "import sys\nfrom torchtap import selftest\n"
        "report = selftest.run('cpu', only=['cpu.matmul'])\n"
        "assert report.exit_code == 0, report\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'typer')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- Whole runs: an emulated nvidia-smi and a compiled libcuda, as processes ----------------------------------------
LIBCUDA = """
const int torchtap_simulated_gpu = 1;
int cuInit(unsigned flags) {{ (void)flags; {init} }}
int cuDriverGetVersion(int *version) {{ *version = 13010; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = 0; return 0; }}
"""


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a host's nvidia-smi on PATH and a libcuda on the loader path; run the self-test."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def start(name: str, init: str = "return 0;", **options: object) -> Report:
        script = tmp_path / "nvidia-smi"
        script.write_text(smi.render(hosts.load(name)))
        script.chmod(0o755)
        (tmp_path / "libcuda.c").write_text(
            "#include <unistd.h>\n#include <stdlib.h>\n" + LIBCUDA.format(init=init)
        )
        library = tmp_path / "libcuda.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "libcuda.c"], check=True)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        return run("gpu", **options)  # type: ignore[arg-type]

    return start


def bad(report: Report) -> list[tuple[str, str, str | None]]:
    return [
        (result.id, result.status.value, result.cause_id)
        for result in report.results
        if result.status not in (Status.PASS, Status.SKIP)
    ]


def test_a_good_simulated_host_warns_that_it_is_simulated(simulate):
    """Everything up to cuInit is judged, everything beyond is skipped as simulated."""
    report = simulate("h200-good")
    assert bad(report) == [("gpu.simulated", "warn", "simulated")]
    assert report.exit_code == 0
    by_id = {result.id: result for result in report.results}
    assert by_id["driver.smi"].seen == "1 GPU: NVIDIA H200"
    assert {by_id[name].cause_id for name in ("torch.cuda", "torch.arch", "gpu.matmul", "gpu.rnn")} == {
        "simulated"
    }


@pytest.mark.slow
def test_level_full_runs_on_a_simulated_host(simulate):
    """What needs no GPU is tested, what only a real one can show is skipped as simulated; through real processes."""
    report = simulate("h200-good", level="full", skip=["kernel.log"])
    assert bad(report) == [("gpu.simulated", "warn", "simulated")] or {each[0] for each in bad(report)} <= {
        *("gpu.simulated", "host.shm", "host.workers", "torch.compile")  # a machine with little of this
    }
    by_id = {result.id: result for result in report.results}
    full = {"gpu.memory", "gpu.bandwidth", "gpu.transfer", "gpu.speed", "gpu.equals", "gpu.peers", "gpu.nccl"}
    assert {by_id[name].cause_id for name in full} == {"simulated"}
    assert by_id["host.workers"].values["workers"] == 4


@pytest.mark.parametrize(
    ("name", "init", "finding"),
    [
        ("t4-old-driver-550", "return 0;", ("driver.version", "fail", "driver_too_old")),
        ("one-of-two-lost", "return 999;", ("gpu.state", "fail", "gpu_lost")),
        ("h100-mig-no-instances", "return 100;", ("gpu.state", "fail", "mig_no_instance")),
        ("h200-good", "return 802;", ("cuda.init", "fail", "not_ready_without_fabric")),
        ("h200-good", "abort();", ("cuda.init", "fail", "child_crashed")),
        ("h200-good", "_exit(0);", ("cuda.init", "fail", "child_silent")),
    ],
)
def test_a_bad_simulated_host_has_one_failure(simulate, name: str, init: str, finding: tuple[str, str, str]):
    """Through real processes, to the exit code."""
    report = simulate(name, init)
    assert [each for each in bad(report) if each[1] == "fail"] == [finding]
    assert report.exit_code == 1


def test_a_hanging_nvidia_smi_costs_its_time_out_and_no_more(simulate, monkeypatch: pytest.MonkeyPatch):
    """The rest that needs no GPU is still judged."""
    monkeypatch.setenv("TORCHTAP_SMI_TIMEOUT", "1")
    # A machine with device nodes, or the missing nodes would be the first cause.
    monkeypatch.setattr("torchtap.selftest.gather.read_host", lambda: good().host)
    began = time.monotonic()
    report = simulate("hang")
    assert bad(report) == [("driver.smi", "fail", "smi_hung")]
    assert time.monotonic() - began < 20
    passing = {result.id for result in report.results if result.status is Status.PASS}
    assert passing == {"torch.build", "torch.cudnn", "cpu.matmul", "device.nodes"}
    left_alone = [result.id for result in report.results if result.cause_id == "left_alone"]
    assert left_alone == ["cpu.rnn"]


def test_garbage_from_nvidia_smi_is_unknown_and_exits_with_1(simulate, monkeypatch: pytest.MonkeyPatch):
    """Nothing is proved, so nothing passes that needs it."""
    monkeypatch.setattr("torchtap.selftest.gather.read_host", lambda: good().host)
    report = simulate("garbage", "return 3;")
    assert bad(report) == [("driver.smi", "unknown", "smi_unreadable")]
    assert report.exit_code == 1


def test_a_hanging_driver_costs_the_time_out(simulate):
    """cuInit never returns; torch and the CPU were judged before."""
    report = simulate("h200-good", "for (;;) pause();", timeout_s=12)
    assert [each for each in bad(report) if each[1] == "fail"] == [("cuda.init", "fail", "child_hung")]
    init = next(each for each in report.results if each.id == "cuda.init")
    assert init.values["waited_s"] == "12"
    assert report.seconds < 40  # with the import of torch on a busy machine
