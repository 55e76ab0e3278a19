"""The kernel log: ways of reading it, forms of its lines, and what its age makes of an error."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.selftest.scenarios import HMM, asked, child, code, logged, xid
from torchtap.selftest import kernel_log
from torchtap.selftest.checks import CHECKS
from torchtap.selftest.examples import HOST, good
from torchtap.selftest.facts import Facts
from torchtap.selftest.kernel_log import (
    KernelLog,
    XidEvent,
    new_events,
    read_bytes,
    read_kernel_log,
    read_text,
)
from torchtap.selftest.limits import MAX_KERNEL_LOG_LINES
from torchtap.selftest.process import Answer, visible
from torchtap.selftest.result import Result
from torchtap.selftest.runner import judge_all
from torchtap.selftest.status import Status

OFF_BUS = "NVRM: Xid (PCI:0000:C1:00): 79, pid=1, GPU has fallen off the bus."


def refused() -> bytes:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_what_stops_cuda_is_named_once_and_never_lost():
    """By cuda.init where it is judged; by kernel.log where libcuda is the first cause, or CUDA starts."""
    logs = xid(79).kernel
    stub = {"path": "/usr/local/cuda/lib64/stubs/libcuda.so"}
    for facts, expected in (
        (code(999), {"cuda.init": "gpu_fell_off_bus", "kernel.log": "needs"}),
        (
            child(cuda__library=stub, cuda__init={"code": 999, "count": 0}, torch__cuda=None),
            {"lib.libcuda": "libcuda_stub", "kernel.log": "gpu_fell_off_bus"},
        ),
        (good(), {"cuda.init": None, "kernel.log": "gpu_fell_off_bus"}),
        (code(34), {"cuda.init": "libcuda_stub", "kernel.log": "gpu_fell_off_bus"}),
    ):
        found = {each.id: each.cause_id for each in judge_all(CHECKS, replace(facts, kernel=logs))}
        assert {name: found[name] for name in expected} == expected


def test_an_error_of_another_containers_gpu_does_not_stop_cuda_here():
    """The log is the host's. On a bare host a broken GPU stops CUDA for all of them."""
    elsewhere = logged("NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.").kernel
    old = xid(79, ago=86_000).kernel
    for host, log, cause in (
        (HOST, elsewhere, "cuda_unknown_error"),
        (replace(HOST, container=None), elsewhere, "gpu_fell_off_bus"),
        (HOST, old, "cuda_unknown_error"),
    ):
        results = judge_all(CHECKS, replace(code(999, host), kernel=log))
        assert next(each for each in results if each.id == "cuda.init").cause_id == cause


def said(facts: Facts) -> Result:
    return next(each for each in judge_all(CHECKS, facts) if each.id == "kernel.log")


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (f"<3>[ 3606.832215] {OFF_BUS}", 3606.832215),
        (f"[ 3606.832215] {OFF_BUS}", 3606.832215),
        (f"<3>[ 3606.832215][ T4242] {OFF_BUS}", 3606.832215),  # CONFIG_PRINTK_CALLER
        (f"<3>{OFF_BUS}", None),  # printk.time=0
    ],
)
def test_an_xid_is_a_record_with_time_address_and_number(line: str, at: float | None):
    """In every form in which the kernel hands out its lines."""
    log = read_text(f"{line}\n", now=4000.0)
    assert log.events == (XidEvent(at, "0000:c1:00", 79, OFF_BUS),)
    assert log.age(at) == (None if at is None else pytest.approx(393.167785))


@pytest.mark.parametrize("device", [" GPU-I:05", " GPU-I:05 GPU-CI:00"])
def test_an_xid_of_a_mig_device_is_its_gpus(device: str):
    """The instances stand behind the address."""
    (event,) = read_text(f"[ 1.0] NVRM: Xid (PCI:0000:01:00{device}): 48, pid=1\n", now=2.0).events
    assert (event.bus, event.xid) == ("0000:01:00", 48)


def test_the_log_of_other_drivers_is_left_out():
    """Only its age is kept: how far back the log reaches."""
    log = read_text(f"[    1.5] usb 1-1: new device\n[  9.5] {OFF_BUS}\n", now=20.0)
    assert [line.text for line in log.lines] == [OFF_BUS]
    assert log.since == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "lorem ipsum\n",
        "[    0.000000] Starting gVisor...\n[    0.5] Checking naughty processes...\n",
    ],
)
def test_what_is_no_kernel_log_of_this_host_is_not_read_as_an_empty_one(text: str):
    """Nothing, other text, a sandbox's own log."""
    log = read_text(text, now=20.0)
    assert log.problem
    assert said(replace(good(), kernel=log)).cause_id == "log_closed"


def test_the_second_way_is_tried_where_the_first_is_refused():
    """And where both are, both reasons are kept."""
    log = read_kernel_log(syslog=refused, kmsg=f"[  1.5] {OFF_BUS}\n".encode)
    assert [event.xid for event in log.events] == [79]
    closed = read_kernel_log(syslog=refused, kmsg=refused)
    assert closed.problem == "syslog(2): Operation not permitted; /dev/kmsg: Operation not permitted"
    shown = said(replace(good(), kernel=closed))
    assert (shown.status, shown.cause_id) == (Status.SKIP, "log_closed")
    assert "on the host: sudo dmesg" in str(shown.cause)


def test_records_of_kmsg_become_lines():
    """Priority, number and flags are dropped, a record's own fields too; a newline in it stays written out."""
    source, end = os.pipe()
    os.set_blocking(source, False)
    os.write(
        end, b"3,1234,3606832215,-;NVRM: Xid (PCI:0000:1a:00): 31, words\\x0aNVRM: more\n SUBSYSTEM=pci\n"
    )
    lines = list(kernel_log._records(source, deadline=1e12))
    os.close(end)
    os.close(source)
    assert lines == [b"[3606.832215] NVRM: Xid (PCI:0000:1a:00): 31, words\\x0aNVRM: more\n"]


def test_a_log_that_is_too_long_to_be_read_in_time_is_not_read():
    """Its end is missing, and the end is what is asked for."""
    source, end = os.pipe()
    with pytest.raises(TimeoutError, match="too long"):
        list(kernel_log._records(source, deadline=0.0))
    os.close(end)
    os.close(source)


def test_this_machines_own_log_is_read_or_refused_but_never_raises():
    """Whatever this machine allows."""
    log = read_kernel_log()
    assert log.problem or log.since is not None or log.lines


def test_new_errors_are_those_that_were_not_there_before():
    """As a burn asks: before and after."""
    before = read_text(f"[ 1.5] {OFF_BUS}\n", now=2.0)
    after = read_text(
        f"[ 1.5] {OFF_BUS}\n[ 2.5] {OFF_BUS}\n[ 2.6] NVRM: Xid (PCI:0000:01:00): 48, x\n", now=3.0
    )
    assert [(event.at, event.xid) for event in new_events(before, after)] == [(2.5, 79), (2.6, 48)]
    assert new_events(after, after) == ()


@pytest.mark.parametrize(
    ("ago", "status", "cause"),
    [
        (60.0, Status.FAIL, "gpu_fell_off_bus"),
        (2 * 3600.0, Status.FAIL, "gpu_fell_off_bus"),
        (2 * 3600.0 + 1, Status.WARN, "xid_earlier"),
        (7 * 86400.0, Status.WARN, "xid_earlier"),
        (7 * 86400.0 + 1, Status.PASS, None),
        (21 * 86400.0, Status.PASS, None),
    ],
)
def test_an_old_error_does_not_fail_a_good_gpu_for_ever(ago: float, status: Status, cause: str | None):
    """Two hours a failure, a week a warning."""
    now = 30 * 86400.0
    text = f"[    0.5] Linux\n[ {now - ago:.3f}] {OFF_BUS}\n"
    shown = said(replace(good(), kernel=read_text(text, now=now)))
    assert (shown.status, shown.cause_id) == (status, cause)
    if status is Status.PASS:
        assert shown.seen == "no GPU error, in the last 29 days; 1 older one"


def test_an_error_without_a_time_counts_as_recent():
    """Nobody can say that it is old."""
    shown = said(replace(good(), kernel=read_text(f"<3>{OFF_BUS}\n", now=9e6)))
    assert shown.status is Status.FAIL


def test_what_was_before_the_driver_was_loaded_again_is_over():
    """A reload starts every GPU anew."""
    again = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build"
    assert said(logged(OFF_BUS, again)).status is Status.PASS
    assert said(logged(again, OFF_BUS)).status is Status.FAIL


def test_an_error_names_its_gpu_by_index_where_nvidia_smi_knows_it():
    """Else by its PCI address; the newest line of many is shown."""
    here = said(xid(79))
    assert (here.cause or "").startswith("GPU 0: fell off the PCIe bus")
    assert here.seen == "60 s ago: NVRM: Xid (PCI:0000:41:00): 79, pid=4242, name=python, words"
    elsewhere = said(logged(OFF_BUS))
    assert (elsewhere.cause or "").startswith("the GPU at 0000:c1:00: fell off")
    many = said(logged(*[f"NVRM: Xid (PCI:0000:41:00): 48, pid={n}, words" for n in range(3)]))
    assert "3 uncorrected memory errors" in str(many.cause)
    assert many.seen.endswith("pid=2, words")


def test_an_error_that_fails_stands_before_a_newer_one_that_warns():
    """And an old one that would fail behind a new one that does."""
    both = said(logged(OFF_BUS, "NVRM: Xid (PCI:0000:41:00): 999, words"))
    assert (both.cause_id, both.values["also"]) == ("gpu_fell_off_bus", ["xid_other"])


def test_what_cuda_itself_shows_is_not_taken_from_the_log():
    """Another container's libraries may have been refused; ours start."""
    assert said(logged("NVRM: API mismatch: the client has the version 535.1, but")).status is Status.PASS
    assert said(logged(HMM)).status is Status.PASS


@pytest.mark.parametrize("number", [63, 94])
def test_memory_errors_that_were_repaired_or_contained_are_a_warning(number: int):
    """As DCGM says, though no action is asked for."""
    result = said(xid(number))
    assert (result.status, result.cause_id) == (Status.WARN, "xid_other")


def test_faults_of_programs_are_none_of_the_gpus():
    """Xid 13, 31, 43: an application's own."""
    for number in (13, 31, 43, 45, 92):
        assert said(xid(number)).status is Status.PASS


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=300))
def test_garbage_is_no_kernel_log(raw: bytes):
    """Never a pass: skipped, because it proves nothing, or judged where it happens to look like one."""
    log = read_kernel_log(syslog=lambda: raw, kmsg=refused)
    shown = said(replace(good(), kernel=log))
    assert shown.status is not Status.PASS or log.since is not None or log.lines
    assert visible(raw).strip() or log.problem


def test_not_read_is_unknown():
    """A check whose facts were not gathered."""
    shown = said(replace(good(), kernel=None))
    assert (shown.status, shown.cause_id) == (Status.UNKNOWN, "unreadable")


def test_an_empty_log_object_says_how_far_it_reaches():
    """Where the kernel writes no times nothing is said of it."""
    assert said(replace(good(), kernel=KernelLog(now=5.0))).seen == "no GPU error"


def test_the_lines_of_the_log_are_the_evidence():
    """Those of NVIDIA's drivers, so that a report can be judged from afar."""
    assert said(logged(OFF_BUS)).evidence == f"pci.bus_id: 00000000:41:00.0\n{OFF_BUS}"


def test_the_log_is_a_witness_where_nvidia_smi_hangs():
    """Xid 119 is what one looks for then; a check that passes needs no witness."""
    gsp = "NVRM: Xid (PCI:0000:41:00): 119, pid=4711, name=nvidia-smi, Timeout waiting for RPC from GSP!"
    hung = asked(Answer(command=("nvidia-smi",), timed_out=True, seconds=20.0))
    results = {each.id: each for each in judge_all(CHECKS, replace(logged(gsp), smi=hung))}
    assert results["driver.smi"].cause_id == "smi_hung"
    assert gsp in results["driver.smi"].evidence
    assert (
        gsp not in next(each for each in judge_all(CHECKS, logged(gsp)) if each.id == "driver.smi").evidence
    )


def test_megabytes_of_log_are_read_in_no_time():
    """At every start: only the newest lines of NVIDIA's drivers are taken apart."""
    other = b"".join(
        b"<6>[%12.6f] usb 1-1: a line of another driver, of which there are many\n" % n for n in range(40_000)
    )
    flood = b"".join(
        b"<3>[%12.6f] NVRM: Xid (PCI:0000:41:00): 31, pid=1, words\n" % (50_000 + n) for n in range(10_000)
    )
    began = time.monotonic()
    log = read_bytes(other + flood + f"<3>[60000.5] {OFF_BUS}\n".encode(), now=70_000.0)
    assert time.monotonic() - began < 3.0
    assert (log.since, len(log.lines), log.events[-1].xid) == (0.0, MAX_KERNEL_LOG_LINES, 79)
