"""DataLoader workers over /dev/shm: with room, and in a /dev/shm as small as Docker's default."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from torchtap.selftest.child.workers import host_workers
from torchtap.selftest.probe import ROOT, run_child

# Prints what the step says; a short patience, because it waits for workers that will never answer.
CODE = f"""
import json, sys
sys.path.insert(0, {ROOT!r})
from torchtap.selftest.child import workers
workers.WORKERS_SILENCE_S = 8
if __name__ == "__main__":
    print(json.dumps(workers.host_workers(None)))
"""


def test_batches_come_through_workers():
    """All values right, in the real process."""
    step = run_child(["host.workers"]).done("host.workers")
    if step.value["error"] is not None and os.statvfs("/dev/shm").f_bavail < 1 << 16:
        pytest.skip("this machine has a small /dev/shm")
    assert (step.value["error"], step.whole("wrong")) == (None, 0)
    assert step.whole("checked") == 12 * (24 << 20) // 4


def test_a_small_shm_is_found_out_in_bounded_time():
    """64 MiB: the worker's error goes to its own standard error, and the DataLoader would wait for ever."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    script = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" -c "$1"'
    said = subprocess.run(
        [unshare, "-m", "sh", "-c", script, sys.executable, CODE], capture_output=True, text=True, timeout=200
    )
    assert "No space left on device" in said.stderr
    assert '"shm_mib": 64' in said.stdout
    assert "DataLoader timed out after 8 seconds" in said.stdout


def test_an_error_is_a_value_and_not_an_exception(monkeypatch: pytest.MonkeyPatch):
    """So that the room of /dev/shm is told with it."""
    monkeypatch.setattr("torchtap.selftest.child.workers.DataLoader", lambda *_, **__: _Breaking())
    said = host_workers(None)  # type: ignore[arg-type]
    assert said["error"] == "DataLoader worker (pid 7) is killed by signal: Bus error."
    assert said["needed_mib"] == 192


class _Breaking:
    def __iter__(self):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.")
