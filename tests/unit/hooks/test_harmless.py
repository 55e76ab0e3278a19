"""A captured training is the bare one bit for bit: outputs, gradients, random state and what is saved."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import gc
import io
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.hooks.nets import NETS, batch
from torchtap.hooks import capture


def state_of(net: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    return file.getvalue()


def trained(kind: str, around: Any, *, train: bool = True, grad: bool = True) -> dict[str, Any]:
    """Three steps of a net: all that can be compared."""
    torch.manual_seed(7)
    net = NETS[kind]().train(train)
    net(batch())  # a lazy net is made by its first call
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs, gradients = [], []
    for _ in range(3):
        with torch.set_grad_enabled(grad), around(net):
            out = net(batch())
            outputs.append(out.detach().clone())
            if grad:
                optimizer.zero_grad()
                (out * out).sum().backward()
                gradients.append(
                    [None if p.grad is None else p.grad.to_dense().clone() for p in net.parameters()]
                )
                optimizer.step()
    return {
        "outputs": outputs,
        "gradients": gradients,
        "random": torch.get_rng_state(),
        "state": state_of(net),
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in net.modules()
        ],
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize(
    "options", [{}, {"gradients": True, "inputs": True}, {"gradients": True, "clone": False}], ids=str
)
@pytest.mark.parametrize("kind", NETS)
def test_training_is_the_same_bit_for_bit(kind: str, options: dict[str, Any]) -> None:
    bare = trained(kind, lambda net: nullcontext())
    captured = trained(kind, lambda net: capture(net, "all", **options))
    assert [key for key in bare if not same(bare[key], captured[key])] == []


@pytest.mark.parametrize("kind", NETS)
def test_evaluation_is_the_same_bit_for_bit(kind: str) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # pitfall 7: a hook switches it off
    try:
        bare = trained(kind, lambda net: nullcontext(), train=False, grad=False)
        captured = trained(kind, lambda net: capture(net, "all", inputs=True), train=False, grad=False)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert [key for key in bare if not same(bare[key], captured[key])] == []


@pytest.mark.parametrize("kind", NETS)
def test_every_net_gives_all_that_it_calls(kind: str) -> None:
    """Each output is what a plain hook sees at that moment."""
    net = NETS[kind]()
    net(batch())
    plain: dict[str, list[Tensor | None]] = {}
    for name, module in net.named_modules():
        if "parametrizations" in name:  # what makes a weight is no layer
            continue
        module.register_forward_hook(
            lambda module, args, output, name=name: plain.setdefault(name, []).append(
                output.detach().clone() if isinstance(output, Tensor) else None
            )
        )
    with capture(net, "all") as taken:
        net(batch())
    assert set(taken) == set(plain)
    for name, outputs in plain.items():
        for ours, theirs in zip(taken.calls(name), outputs, strict=True):
            assert theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [kind for kind in NETS if "checkpoint" not in kind])
def test_pitfall_25_a_captured_graph_goes_with_its_last_reference(kind: str) -> None:
    gc.collect()
    gc.disable()
    try:
        net = NETS[kind]()
        with capture(net, gradients=True, inputs=True) as taken:
            out = net(batch())
            (out * out).sum().backward()
            gone = weakref.ref(out)
            del out
            assert gone() is None
        assert len(taken)
    finally:
        gc.enable()
