"""Several devices together, with CPU processes where GPUs would be."""

from __future__ import annotations

import io

import pytest
import torch

from torchtap.selftest.child import together
from torchtap.selftest.child.running import LeaveOutError, Reporter

CPU = torch.device("cpu")


def test_a_sum_over_processes_is_right_and_measured():
    """Three processes, through gloo; every process compares every value."""
    said = together.all_reduce("gloo", ["cpu"] * 3, 1 << 16)
    assert (said["count"], said["checked"], said["wrong"]) == (3, 3 * (1 << 14), 0)
    assert said["bus_gb_s"] >= 0


def test_what_went_wrong_is_the_last_line_of_a_process():
    """Not its whole traceback."""
    with pytest.raises(RuntimeError, match="nosuchbackend") as error:
        together.all_reduce("nosuchbackend", ["cpu", "cpu"], 1 << 10)
    assert "\n" not in str(error.value)


def test_a_copy_that_arrives_changed_is_found(monkeypatch: pytest.MonkeyPatch):
    """One number of many."""
    assert together.pair_copy(CPU, CPU, 1 << 16)["wrong"] == 0
    real = torch.Tensor.copy_

    def broken(self: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        result = real(self, *args, **options)  # type: ignore[arg-type]
        result[5] ^= 1
        return result

    monkeypatch.setattr(torch.Tensor, "copy_", broken)
    assert together.pair_copy(CPU, CPU, 1 << 16)["wrong"] == 1


def test_one_gpu_is_left_out(monkeypatch: pytest.MonkeyPatch):
    """There is nobody to send to."""
    monkeypatch.setattr(together, "each_gpu", lambda _: iter([torch.device("cuda", 0)]))
    for step in (together.gpu_peers, together.gpu_nccl):
        with pytest.raises(LeaveOutError, match="there is one GPU"):
            step(Reporter(io.StringIO()))
