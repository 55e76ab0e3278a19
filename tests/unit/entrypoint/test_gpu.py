"""The GPU's part of health, against nvidia-smi programs of every kind."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoint import diagnosis, gpu
from entrypoint.diagnosis import Said
from tests.engine.simulate.hosts import load
from tests.engine.simulate.smi import render
from torchtap.selftest.causes import CAUSES

from .box import wait_until

ROOT = Path(__file__).parents[3]
SMI = ROOT / "tests/fixtures/smi"
DEV: dict[str, Any] = {"device": "auto", "uid": os.getuid(), "gid": os.getgid(), "groups": []}
GPU = {**DEV, "device": "gpu"}


class Host:
    """A GPU host whose nvidia-smi can become another one."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        self.program = folder / "nvidia-smi"
        self.asked = folder / "asked"

    def becomes(self, name: str) -> None:
        self.says(render(load(name)).partition("\n")[2])

    def says(self, script: str) -> None:
        draft = self.program.with_name("draft")
        draft.write_text(f'#!/bin/sh\necho "$$ $*" >>{self.asked}\n{script}')
        draft.chmod(0o755)
        draft.replace(self.program)

    def check(self, started: dict[str, Any] = DEV, *, ready: bool = True) -> tuple[bool, str]:
        return gpu.check(started, self.run, ready=ready)

    def later(self, started: dict[str, Any] = DEV) -> tuple[bool, str]:
        """What health says once the last answer is old and nvidia-smi was asked again."""
        state = self.run / gpu.STATE
        before = state.stat().st_mtime_ns if state.exists() else 0
        if before:
            os.utime(state, (time.time() - 61,) * 2)
            before = state.stat().st_mtime_ns
        self.check(started)
        wait_until(lambda: state.exists() and state.stat().st_mtime_ns != before, "nvidia-smi was not asked")
        wait_until(lambda: gpu._waiting(self.run) is None, "nvidia-smi still runs")
        return self.check(started)

    @property
    def processes(self) -> list[int]:
        return [int(line.split()[0]) for line in self.asked.read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    found = Host(tmp_path)
    monkeypatch.setattr(gpu, "PLACES", (tmp_path / "missing", found.program))
    monkeypatch.setattr(gpu, "NODES", ())
    monkeypatch.setattr(gpu, "LIMIT_S", 1.0)
    monkeypatch.setattr(os, "setsid", lambda: None)
    before = _children()  # of other tests, such as their Docker engine
    yield found
    for pid in found.processes if found.asked.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _left(before), "a process is left")


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def _left(before: set[int]) -> set[int]:
    """Our children less those that were there before; what has ended is taken away."""
    for pid in _children() - before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return _children() - before


# ---- none ----
@pytest.mark.parametrize(
    ("started", "variables", "expected"),
    [
        ({**DEV, "device": "cpu"}, {}, (True, "gpu: none, by design (TORCHTAP_DEVICE=cpu)")),
        (
            DEV,
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            (True, "gpu: none, by design (NVIDIA_VISIBLE_DEVICES=void)"),
        ),
        (
            DEV,
            {"NVIDIA_VISIBLE_DEVICES": "all"},
            (True, "gpu: none, by design (this container was given none)"),
        ),
        (
            GPU,
            {},
            (
                False,
                "gpu: TORCHTAP_DEVICE=gpu, and there is none in this container; recreate it with one: "
                "make up MODE=gpu, or docker run --gpus all",
            ),
        ),
    ],
    ids=["cpu by name", "void", "no --gpus", "asked for"],
)
def test_without_a_gpu(
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    started: dict[str, Any],
    variables: dict[str, str],
    expected: tuple[bool, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert host.check(started) == expected
    assert not list(host.run.iterdir()), "nothing is asked"


def test_cpu_by_name_asks_no_gpu_that_is_there(host: Host) -> None:
    host.becomes("h200-good")
    assert host.check({**DEV, "device": "cpu"})[0]
    assert not host.asked.exists()


# ---- there from the start ----
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h200-good", "gpu: 1 answers"),
        ("h100x8", "gpu: 8 answer"),
        ("h100-mig", "gpu: 1 answers"),
        ("rtx2080s-610", "gpu: 1 answers"),
        ("v100-580", "gpu: 2 answer"),
    ],
)
def test_a_gpu_that_answers_is_well(host: Host, name: str, text: str) -> None:
    host.becomes(name)
    assert host.check() == (True, "gpu: not asked yet"), "health does not wait for nvidia-smi"
    assert host.later() == (True, text)


def test_before_the_services_answer_nothing_is_asked(host: Host) -> None:
    host.becomes("h200-good")
    assert host.check(ready=False) == (True, "gpu: not asked yet")
    assert not host.asked.exists()


def test_it_is_asked_once_a_minute_however_often_health_runs(host: Host) -> None:
    host.becomes("h200-good")
    host.later()
    for _ in range(20):
        host.check()
    assert len(host.processes) == 1


# What becomes of a host with two H100 after the start, named after the public fault.
AFTER = {
    "c17 nvidia-container-toolkit 48, daemon-reload": (
        "nvml-unknown-error",
        "the container lost its right to use the GPU devices (often after systemctl daemon-reload). "
        "Recreate the container: a restart is not enough. ",
    ),
    "c18 nvidia-container-toolkit 394, driver updated": (
        "version-mismatch",
        "the driver's libraries and its kernel module are of different versions. "
        "The host's driver was updated while the old one was loaded: reboot the host, then recreate ",
    ),
    "driver unloaded": ("driver-not-loaded", "the NVIDIA kernel driver is not loaded. On the host: "),
    "no devices": (
        "no-devices",
        "the driver is loaded, but it could bring up no GPU. Look for RmInitAdapter ",
    ),
    "no permission": (
        "no-permission",
        f"the NVIDIA device nodes may not be opened by this user (uid {os.getuid()}). ",
    ),
    "a lost GPU in a query that ends with 0": (
        "one-of-two-lost",
        'GPU 1: no answer any more ("GPU is lost"). Stop the work on this host and reboot it. ',
    ),
    "MIG without instances": (
        "h100-mig-no-instances",
        "the GPU: MIG is on, but no MIG instance is here, so ",
    ),
    "garbage": ("garbage", "nvidia-smi answered something that Torchtap cannot read, so it proves nothing. "),
    "other GPUs than at the start": ("h200-good", "2 of 2 are gone: GPU-"),
    "hangs": ("hang", "nvidia-smi gave no answer in 1 s: the driver waits for a GPU that does not respond. "),
}
FIRST, SECOND = (f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))
ONE = f"echo '0, {FIRST}, Disabled, 30'\n"
TWO = f"{ONE}echo '1, {SECOND}, Disabled, 31'\n"


@pytest.mark.parametrize("fault", AFTER)
def test_a_gpu_that_is_lost_while_running(host: Host, fault: str) -> None:
    name, text = AFTER[fault]
    host.says(TWO)
    assert host.later() == (True, "gpu: 2 answer")
    host.becomes(name)
    well, line = host.later()
    assert not well
    assert line.startswith(f"gpu: lost while running: {text}"), line
    assert "\n" not in line
    host.says(TWO)
    assert host.later() == (True, "gpu: 2 answer"), "one that comes back is well"


def test_one_that_fell_off_the_bus_is_named(host: Host) -> None:
    """Xid 79: nvidia-smi answers for the rest, with exit code 0."""
    host.says(TWO)
    host.later()
    host.says(ONE)
    assert host.later() == (
        False,
        f"gpu: lost while running: 1 of 2 is gone: {SECOND}. Fell off the PCIe bus (Xid 79)? "
        "See nvidia-smi -L on the host, then recreate the container",
    )


def test_a_reconfigured_mig_is_named(host: Host) -> None:
    host.becomes("h100-mig")
    host.later()
    host.says(render(load("h100-mig")).partition("\n")[2].replace("MIG-00000003", "MIG-00000009"))
    assert host.later() == (
        False,
        "gpu: lost while running: 1 of 5 is gone: MIG-00000003-0000-0000-0000-000000000003. MIG was reconfigured? "
        "See nvidia-smi -L on the host, then recreate the container",
    )


def test_nvidia_smi_that_is_gone_is_a_loss(host: Host) -> None:
    host.says(TWO)
    host.later()
    host.program.unlink()
    assert host.later()[1].startswith(
        "gpu: lost while running: nvidia-smi is not here: the driver's tools were not added to this container. "
    )


# ---- never answered ----
@pytest.mark.parametrize(
    ("started", "well"), [(DEV, True), (GPU, False)], ids=["the services decide", "asked for"]
)
def test_a_gpu_that_never_answered(host: Host, started: dict[str, Any], well: bool) -> None:
    host.becomes("version-mismatch")
    found = host.later(started)
    assert found[0] is well
    assert found[1].startswith(
        "gpu: no answer since the start: the driver's libraries and its kernel module are "
    )
    host.says(TWO)
    assert host.later(started) == (True, "gpu: 2 answer")


# ---- hanging ----
def test_one_that_hangs_is_not_given_company(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi heeds SIGKILL only here; a minute's checks start one, and it is ended at its limit."""
    host.says(TWO)
    host.later()
    host.becomes("hang")
    monkeypatch.setattr(gpu, "LIMIT_S", 1.5)
    os.utime(host.run / gpu.STATE, (time.time() - 61,) * 2)
    host.check()
    wait_until(lambda: len(host.processes) == 2, "not asked")
    began = time.monotonic()
    for _ in range(20):
        host.check()
    assert time.monotonic() - began < 1, "health waits for nothing"
    assert len(host.processes) == 2
    wait_until(lambda: gpu._waiting(host.run) is None, "not ended at its limit")
    assert not Path(f"/proc/{host.processes[-1]}").exists()


def test_one_that_cannot_even_be_killed_is_said_with_its_time(host: Host) -> None:
    """A process stuck in the kernel keeps the lock, whatever became of the one that asked."""
    host.says(TWO)
    host.later()
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, time; f = open({str(host.run / gpu.LOCK)!r}); "
         "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        os.utime(host.run / gpu.LOCK, (time.time() - 300,) * 2)
        os.utime(host.run / gpu.STATE, (time.time() - 300,) * 2)
        well, line = host.check()
        assert not well
        assert line.startswith(
            "gpu: lost while running: nvidia-smi gave no answer in 300 s: the driver waits"
        )
        assert len(host.processes) == 1
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_stop_ends_the_one_that_hangs(host: Host) -> None:
    """docker stop waits for every process: SIGTERM to the one that asks ends nvidia-smi, which heeds none."""
    host.becomes("hang")
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, gpu._end)
        try:
            gpu.probe(host.run, DEV)
        finally:
            os._exit(0)
    wait_until(lambda: host.asked.exists() and host.processes, "not asked")
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    wait_until(lambda: not Path(f"/proc/{host.processes[0]}").exists(), "still there", limit_s=0.5)


# ---- the rest ----
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at_start": 1}', '{"at_start": [], "x": 1}'])
def test_a_spoiled_state_counts_as_none(host: Host, text: str) -> None:
    host.says(TWO)
    (host.run / gpu.STATE).write_text(text)
    assert host.check() == (True, "gpu: not asked yet")


def test_who_may_not_write_only_reads(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.says(TWO)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert host.check() == (True, "gpu: not asked yet")
    assert not host.asked.exists()


def test_an_old_loss_is_said_with_its_age(host: Host) -> None:
    lost = {"at_start": ["GPU-1"], "here": 0, "problem": "x", "bad_since": time.time() - 720}
    host.says(TWO)
    (host.run / gpu.STATE).write_text(json.dumps(lost))
    assert host.check() == (False, "gpu: lost while running, 12 min ago: x")


with (SMI / "manifest.tsv").open(newline="") as manifest:
    RECORDED = list(csv.DictReader(manifest, delimiter="\t", quoting=csv.QUOTE_NONE))
FAULTS = [case for case in RECORDED if case["kind"] in ("error", "timeout")]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case["file"])
def test_a_recorded_fault_is_told_in_the_words_of_the_selftest(case: dict[str, str]) -> None:
    """One table for both; what says nothing about the GPU (a refused field) is a problem here too."""
    said = Said(
        ("nvidia-smi", *gpu.QUERY),
        None if case["kind"] == "timeout" else int(case["rc"] or 1),
        (SMI / case["file"]).read_text(),
    )
    found = diagnosis.of([said], uid=1000, waited_s=20)
    causes = {cause.rpartition(":")[2] for cause in case["causes"].split()}
    begins = {CAUSES[cause].says.partition("{")[0] for cause in causes}
    assert any(found.problem.startswith(beginning) for beginning in begins), (found.problem, begins)
    assert found.uuids == ()


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in RECORDED
        if case["kind"] == "csv" and case["verdict"] == "pass" and "uuid" in case["command"]
    ],
    ids=lambda case: case["file"],
)
def test_a_recorded_good_answer_is_no_problem(case: dict[str, str]) -> None:
    said = Said(tuple(case["command"].split()), 0, (SMI / case["file"]).read_text())
    assert diagnosis.of([said], uid=1000, waited_s=20).problem == ""


def test_a_problem_is_one_line_that_does_nothing_to_a_terminal() -> None:
    said = Said(("nvidia-smi", "-L"), 255, "Failed to initialize NVML: \x1b[2J\u202e" + "x" * 1000)
    problem = diagnosis.of([said], uid=1000, waited_s=20).problem
    assert problem.startswith("the driver's management library does not start: ")
    assert problem.isascii()
    assert problem.isprintable()
    assert len(problem) <= diagnosis.LONGEST


def test_a_torchtap_that_cannot_be_loaded_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody must take silence for health."""

    def broken(*_: object, **__: object) -> None:
        raise ImportError("no torchtap")

    monkeypatch.setattr(diagnosis, "of", broken)
    host.says(TWO)
    assert host.later(GPU) == (
        False,
        "gpu: no answer since the start: torchtap cannot be loaded to judge nvidia-smi's answer: no torchtap",
    )


def test_the_limit_is_longer_than_a_slow_host_takes() -> None:
    assert load("slow").latency_s < gpu.LIMIT_S / 2
