"""Known pitfalls of hooks that no other file of this folder has a test for; the others are named after theirs, too."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.unit.hooks.nets import NETS, InPlaceModule, batch
from torchtap.hooks import capture, on_backward, on_forward

HOST_READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
)


class Operations(TorchDispatchMode):
    """What is run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", NETS)
def test_pitfall_01_no_module_gets_a_backward_hook(kind: str) -> None:
    net = NETS[kind]()
    net(batch())
    with capture(net, "all", gradients=True), on_backward(net, "all", lambda *_: None):
        net(batch()).sum().backward()
        assert not any(each._backward_hooks or each._backward_pre_hooks for each in net.modules())


def test_pitfall_04_what_a_layer_passes_on_stays_the_very_tensor() -> None:
    net, x = nn.Sequential(nn.Identity(), nn.Dropout(0.5).eval()), torch.ones(2, requires_grad=True)
    with capture(net, "all", gradients=True, inputs=True):
        assert net(x) is x


def test_pitfall_04_what_a_layer_passes_on_keeps_its_class() -> None:
    class Mine(Tensor): ...

    net, x = nn.Identity(), torch.ones(2).as_subclass(Mine)
    with capture(net) as taken:
        assert type(net(x)) is Mine
    assert type(taken[""]) is Mine


def test_pitfall_06_gradients_are_those_of_the_output_where_no_input_requires_one() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    with capture(net, "0", gradients=True) as taken:
        (net(batch()) * 3).sum().backward()
    assert (taken.gradients("0") == 3).all()


def test_pitfall_08_hooks_are_those_of_modules_never_of_the_process() -> None:
    from torch.nn.modules import module

    with capture(InPlaceModule(), "all", gradients=True, inputs=True):
        assert not module._global_forward_hooks
        assert not module._global_forward_pre_hooks
        assert not module._global_backward_hooks


@pytest.mark.parametrize(
    "kind", [kind for kind in NETS if kind not in ("PackedSequence", "sparse embedding")]
)
def test_pitfalls_12_and_26_nothing_is_read_on_the_host(kind: str) -> None:
    """Each read would make the host wait for a GPU."""
    net = NETS[kind]()
    net(batch())
    with Operations() as bare:
        net(batch()).sum().backward()
    with (
        Operations() as watched,
        capture(net, "all", gradients=True, inputs=True),
        on_forward(net, "all", lambda *_: None),
    ):
        net(batch()).sum().backward()
    assert [watched.seen.count(each) for each in HOST_READS] == [bare.seen.count(each) for each in HOST_READS]


@pytest.mark.usefixtures("_fresh_dynamo")
def test_pitfall_14_a_hook_is_not_compiled_away() -> None:
    net, total = InPlaceModule(), torch.zeros(())
    with on_forward(net, "a", lambda _, output: total.add_(output.detach().sum())):
        compiled: Any = torch.compile(net, backend="aot_eager", fullgraph=True)
        compiled(torch.ones(2, 4))
        once = total.clone()
        compiled(torch.ones(2, 4))
    assert once != 0
    assert torch.equal(total, once * 2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_pitfall_16_a_recomputation_that_stops_early_leaves_inputs_and_outputs_in_step(
    reentrant: bool,
) -> None:
    net, x = InPlaceModule(), batch().requires_grad_()
    with capture(net, "all", inputs=True, gradients=True) as taken:
        for _ in range(2):
            given = checkpoint(net, x, use_reentrant=reentrant)
            assert isinstance(given, Tensor)
            given.sum().backward()
            x = (x * 2).detach().requires_grad_()
    for call in range(2):
        (given_in,), _ = taken.inputs("a", call)
        assert torch.equal(taken.calls("a")[call], net.a(given_in))
        assert taken.gradients("b", call) is not None


SHARDED = """
import sys, torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtap.hooks import capture
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
mesh = torch.distributed.init_device_mesh("cpu", (1,))
def step(shard):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    if shard:
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    with capture(net, gradients=True) as taken:
        net(torch.ones(3, 4)).sum().backward()
    return [(layer.name, layer.kind) for layer in taken.layers], taken
layers, bare = step(False)
sharded_layers, sharded = step(True)
print(layers == sharded_layers, all(
    torch.equal(bare[name], sharded[name]) and torch.equal(bare.gradients(name), sharded.gradients(name))
    for name in bare
), len(bare) == len(sharded) == 3)
torch.distributed.destroy_process_group()
"""


def test_pitfalls_20_and_21_a_sharded_model_gives_the_same_under_the_same_names(tmp_path: Path) -> None:
    """One rank of gloo. Of parameters, which FSDP2 hides from hooks, capture takes nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", SHARDED, str(tmp_path / "store")], capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.split() == ["True", "True", "True"], ran.stderr[-2000:]
