"""The GPU's part of health, against nvidia-smi programs of every kind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoint import gpu
from tests.engine.simulate.hosts import load
from tests.engine.simulate.smi import render
from torchtap.selftest.causes import CAUSES
from torchtap.selftest.smi import judge

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
        "gpu: lost while running: NVML Unknown Error, as after systemctl daemon-reload on the host; recreate the "
        "container, a restart is not enough: make down && make up",
    ),
    "c18 nvidia-container-toolkit 394, driver updated": (
        "version-mismatch",
        "gpu: lost while running: the host's driver was updated while the old one was loaded; reboot the host, then ",
    ),
    "driver unloaded": ("driver-not-loaded", "gpu: lost while running: the driver was unloaded; on the host: "),
    "no devices": ("no-devices", "gpu: lost while running: the driver finds no GPU; on the host: sudo dmesg"),
    "a lost GPU in a query that ends with 0": (
        "one-of-two-lost",
        'gpu: lost while running: "GPU is lost"; reboot the host',
    ),
    "garbage": ("garbage", "gpu: lost while running: nvidia-smi ended with exit code "),
    "other GPUs than at the start": ("h200-good", "gpu: lost while running: 2 of 2 are gone: GPU-"),
    "hangs": ("hang", "gpu: lost while running: nvidia-smi gave no answer in 1 s: the driver waits for a GPU that "),
}  # fmt: skip
TWO = "echo 'GPU-1, Disabled, 30\nGPU-2, Disabled, 31'\n"


@pytest.mark.parametrize("fault", AFTER)
def test_a_gpu_that_is_lost_while_running(host: Host, fault: str) -> None:
    name, text = AFTER[fault]
    host.says(TWO)
    assert host.later() == (True, "gpu: 2 answer")
    host.becomes(name)
    well, line = host.later()
    assert not well
    assert line.startswith(text), line
    assert "\n" not in line
    host.says(TWO)
    assert host.later() == (True, "gpu: 2 answer"), "one that comes back is well"


def test_one_that_fell_off_the_bus_is_named(host: Host) -> None:
    """Xid 79: nvidia-smi answers for the rest, with exit code 0."""
    host.says(TWO)
    host.later()
    host.says("echo 'GPU-1, Disabled, 30'\n")
    assert host.later() == (
        False,
        "gpu: lost while running: 1 of 2 is gone: GPU-2; it fell off the PCIe bus (Xid 79)? "
        "See nvidia-smi -L on the host, then recreate the container",
    )


def test_a_reconfigured_mig_is_named(host: Host) -> None:
    host.becomes("h100-mig")
    host.later()
    host.becomes("h100-mig-no-instances")
    well, line = host.later()
    assert not well
    assert re.search(r"\d of \d are gone: (MIG|GPU)-", line), line


def test_nvidia_smi_that_is_gone_is_a_loss(host: Host) -> None:
    host.says(TWO)
    host.later()
    host.program.unlink()
    assert host.later()[1].startswith(
        "gpu: lost while running: nvidia-smi is not here; recreate the container"
    )


# ---- never answered ----
@pytest.mark.parametrize(
    ("started", "well"), [(DEV, True), (GPU, False)], ids=["the services decide", "asked for"]
)
def test_a_gpu_that_never_answered(host: Host, started: dict[str, Any], well: bool) -> None:
    host.becomes("version-mismatch")
    found = host.later(started)
    assert found[0] is well
    assert found[1].startswith("gpu: no answer since the start: the host's driver was updated")
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
            "gpu: lost while running: nvidia-smi has not answered for 300 s: the driver waits"
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


RECORDED = sorted(SMI.glob("3[0-9]_*.txt")) + sorted(SMI.glob("4[0-3]_*.txt"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_its_words_for_a_recorded_fault_are_the_selftests(file: Path) -> None:
    said = file.read_text(errors="replace")
    mine = next((cause for pattern, cause, _ in gpu.CAUSES if re.search(pattern, said, re.IGNORECASE)), None)
    theirs = {cause for _, cause in judge(said, rc=None).causes}
    assert mine is None or mine in theirs, (mine, theirs)
    assert mine or theirs <= {"wsl_blocked", "foreign_nvml"}, "rare, and answered with nvidia-smi's own line"


def test_every_cause_is_one_of_the_selftests() -> None:
    assert {cause for _, cause, _ in gpu.CAUSES} <= set(CAUSES)


def test_the_limit_is_longer_than_a_slow_host_takes() -> None:
    assert load("slow").latency_s < gpu.LIMIT_S / 2
