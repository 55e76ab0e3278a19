"""Which tensors are measured, and why others are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, distributed, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.unit.monitor.stats.conftest import Way
from tests.unit.monitor.stats.reference import agree, layout_cases, measured
from torchtap.monitor import stats
from torchtap.monitor.stats import host


class Named(Tensor):
    """A subclass that changes functions and nothing else; none of ours may reach it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} of the user's class was called")


@pytest.mark.parametrize("case", layout_cases())
def test_what_is_measured_is_not_refused(case: str) -> None:
    assert stats.refusal(layout_cases()[case]) is None


def _others() -> dict[str, tuple[Tensor, str]]:
    x = torch.rand(4)
    with FakeTensorMode():
        fake = torch.rand(3)
    return {
        "int": (torch.arange(3), "int64 values"),
        "bool": (torch.tensor([True]), "bool values"),
        "quantized": (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "qint8 values"),
        "sparse": (x.to_sparse(), "layout sparse_coo"),
        "sparse rows": (torch.eye(3).to_sparse_csr(), "layout sparse_csr"),
        "mkldnn": (x.to_mkldnn(), "layout _mkldnn"),
        "nested": (torch.nested.nested_tensor([x, x[:2]]), "a nested tensor"),
        "jagged": (
            torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
            "a NestedTensor: only its own code knows what lies in its memory",
        ),
        "meta": (torch.rand(3, device="meta"), "a meta tensor: it has no values"),
        "fake": (fake, "a FakeTensor: it has no values"),
        "complex half": (torch.zeros(2, dtype=torch.complex32), "complex32 values"),
    }


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "case", ["int", "bool", "quantized", "sparse", "sparse rows", "mkldnn", "nested", "jagged"]
)
def test_other_tensors_are_refused_with_the_reason(case: str) -> None:
    tensor, reason = _others()[case]
    assert stats.refusal(tensor) == reason


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("case", ["meta", "fake", "complex half"])
def test_tensors_without_values_are_refused_with_the_reason(case: str) -> None:
    tensor, reason = _others()[case]
    assert stats.refusal(tensor) == reason


def test_inside_a_transform_a_tensor_is_refused() -> None:
    said = []

    def look(x: Tensor) -> Tensor:
        said.append(stats.refusal(x))
        return x.sum()

    torch.vmap(look)(torch.rand(3, 2))
    torch.func.grad(look)(torch.rand(3))
    functional = torch._to_functional_tensor(torch.rand(3))
    said.append(stats.refusal(functional))
    assert said == ["a tensor inside a torch.func transform: it stands for many"] * 3


def test_a_subclass_is_measured_without_its_functions(way: Way) -> None:
    values = torch.tensor([1.0, 0.0, float("nan")])
    named = values.as_subclass(Named)
    assert stats.refusal(named) is None
    row = way(named)
    agree(row, values)


def test_a_buffer_is_measured(way: Way) -> None:
    buffer = nn.Buffer(torch.rand(5))
    assert stats.refusal(buffer) is None
    agree(way(buffer), buffer.detach())


def test_of_a_dtensor_the_local_part_is_measured(way: Way) -> None:
    """Two ranks, of which only this one exists: torch's stand-in for a process group."""
    store = FakeStore()
    distributed.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        local = torch.rand(3, 4)
        whole = DTensor.from_local(local, init_device_mesh("cpu", (2,)), [Shard(0)])
        assert stats.refusal(whole) is None
        assert whole.shape == (6, 4)
        agree(way(whole), local)
    finally:
        distributed.destroy_process_group()


def test_a_parameter_of_a_lazy_module_has_no_values_yet() -> None:
    assert stats.refusal(nn.LazyLinear(3).weight) == "a UninitializedParameter: it has no values"


def test_a_tensor_that_is_not_in_the_cpus_memory_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"reads the CPU.s memory, not that of meta: use device_row\(\)"):
        measured(stats.host_row, torch.rand(3, device="meta"))


def test_a_tensor_whose_memory_was_freed_is_measured_as_empty() -> None:
    for function in (stats.host_row, host.row_by_torch):
        tensor = torch.rand(9)
        tensor.untyped_storage().resize_(0)
        assert measured(function, tensor)[6] == 0
