"""`watch` before torch.compile: one graph, the same results, outputs measured."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from torchtap.monitor import watch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.again = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        h = self.relu(self.norm(self.first(x)))
        return self.again(self.again(self.drop(h)))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(net: Any, forward: Any, optimizer: Any) -> Any:
    torch.manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        forward(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
    return [each.detach().clone() for each in net.state_dict().values()]


# With inductor too it is the same bit by bit; that took half a minute.
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph_that_measures_and_gives_the_same(backend):
    torch.manual_seed(1)
    net = Net()
    other, eager = copy.deepcopy(net), copy.deepcopy(net)
    bare = trained(
        net, torch.compile(net, backend=backend, fullgraph=True), torch.optim.SGD(net.parameters(), lr=0.1)
    )
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with watch(other, optimizer) as w:
        forward = torch.compile(other, backend=backend, fullgraph=True)
        watched = trained(other, forward, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    with watch(eager, optimizer) as reference:
        trained(eager, eager, optimizer)
    assert [w.layer_hooks[place].calls for place in range(5)] == [3, 3, 3, 3, 6]
    for layer, call in (("first", 0), ("norm", 0), ("again", 0), ("again", 1)):
        series, wanted = w.series(layer, call=call), reference.series(layer, call=call)
        assert series["count"].tolist() == wanted["count"].tolist() == [48, 48, 48]
    assert w.series("first")["rms"][0] == pytest.approx(reference.series("first")["rms"][0], rel=1e-5)
    assert w.series("relu")["zeros"][0] == pytest.approx(reference.series("relu")["zeros"][0])


def test_after_compiling_hooks_are_refused_with_the_reason():
    net = Net()
    compiled: Any = torch.compile(net, backend="eager")
    compiled(torch.randn(6, 4))
    with watch(compiled) as w:
        assert [name for name, _ in w.refused] == ["first", "norm", "relu", "drop", "again"]
        assert "torch.compile has compiled" in w.refused[0][1]
