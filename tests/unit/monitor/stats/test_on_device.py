"""The device path reads nothing on the host, can be compiled, and falls back where Triton fails."""

# mypy: disallow-untyped-calls=False
# (torch leaves much without types)

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.monitor.stats.reference import agree, float_cases, layout_cases, measured_there
from torchtap.monitor import stats
from torchtap.monitor.stats import by_triton, on_device

# What makes the host wait for the device: reading a scalar, shapes that depend on values, copies to the CPU.
READS = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
    "_to_copy",
)


class NoHostReads(TorchDispatchMode):
    """Fails on an operator that the host would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.seen.append(name)
        if name in READS and not (name == "_to_copy" and "device" not in kwargs):
            raise AssertionError(f"{func} makes the host wait")
        if name == "index" or (name == "copy_" and args[0].device != args[1].device):
            raise AssertionError(f"{func} makes the host wait")
        return func(*args, **kwargs)


@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "no zeros"])
@pytest.mark.parametrize("case", [*float_cases(), *layout_cases()])
def test_nothing_is_read_by_the_host(case: str, zeros: bool) -> None:
    tensor = {**float_cases(), **layout_cases()}[case]
    row = torch.zeros(8, dtype=torch.float64)
    with NoHostReads() as mode:
        stats.device_row(tensor, row, zeros)
    assert mode.seen


def test_the_mode_of_this_test_sees_reads() -> None:
    x = torch.rand(3)
    for read in (lambda: x.sum().item(), lambda: bool(x.sum() > 0), lambda: x[x > 0]):
        with pytest.raises(AssertionError, match="makes the host wait"), NoHostReads():
            read()


def test_one_row_of_many_is_written_and_no_other() -> None:
    rows = torch.full((3, 8), -7.0, dtype=torch.float64)
    stats.device_row(torch.rand(5), rows[1], True)
    assert (rows[[0, 2]] == -7).all()
    assert (rows[1] != -7).all()


def test_a_row_elsewhere_is_refused() -> None:
    row = torch.zeros(8, dtype=torch.float64, device="meta")
    with pytest.raises(ValueError, match=r"the row is on meta, the tensor on cpu: one device is needed"):
        stats.device_row(torch.rand(3), row, True)


@pytest.mark.slow
def test_it_is_compiled_as_one_graph() -> None:
    row = torch.zeros(8, dtype=torch.float64)

    def step(x: Tensor) -> Tensor:
        y = x.relu()
        stats.device_row(y, row, True)
        return y * 2

    x = torch.randn(40, 3)
    torch.compile(step, fullgraph=True, backend="aot_eager")(x)
    agree(row.numpy(), x.relu())


def test_a_triton_that_fails_is_said_once_and_operators_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    monkeypatch.setattr(by_triton, "AVAILABLE", True)
    monkeypatch.setattr(by_triton, "measure", fails)
    monkeypatch.setattr(on_device, "_trouble", "")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # where a CPU tensor lies
    row = torch.zeros(8, dtype=torch.float64)
    assert on_device.uses_triton()
    with pytest.warns(
        on_device.TritonWarning, match="Triton cannot be used: RuntimeError: Failed to find C compiler"
    ):
        assert not on_device._by_triton(torch.rand(3), 1, row, True)
    assert not on_device.uses_triton()
    assert on_device.why() == "Triton cannot be used: RuntimeError: Failed to find C compiler."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(measured_there(stats.device_row, torch.ones(3)), torch.ones(3))
