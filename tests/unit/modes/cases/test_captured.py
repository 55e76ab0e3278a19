"""Section 4g: captured graphs, other backends, distributed runs."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812  as everybody writes it

from tests.unit.modes.cases.harness import COLLECTED, Run, finds, in_source_only, quiet, refuses
from tests.unit.modes.cases.nets import Classifier, rows, step


@refuses(
    NotImplementedError,
    r"Calling (train|eval)\(\) is not supported yet",
    says="raises PyTorch's own error",
    ways=(COLLECTED,),
)
def test_c97_exported_module_rejects_a_mode_switch(run: Run) -> None:
    """pytorch#151726."""
    exported = torch.export.export(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), (rows(),)).module()
    run.watch(exported).eval()


@finds("mode.no_effect")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_c97_traced_module_ignores_a_mode_switch(run: Run) -> None:
    """pytorch#29177: the flag changes, and dropout stays what it was when it was traced."""
    traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(), rows())
    net = run.watch(traced)
    net.train()
    batch = rows()
    assert torch.equal(net(batch), net(batch))


@quiet
def test_c98_graph_of_a_backend_says_train_mode_always(run: Run) -> None:
    """pytorch#98487: a GraphModule has a flag of its own, which is of no consequence."""
    net = run.watch(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
    net.eval()
    graph = fx.GraphModule(dict(net.named_modules()), fx.symbolic_trace(net).graph)
    assert graph.training
    with torch.no_grad():
        assert torch.equal(graph(rows()).isfinite(), torch.ones(6, 3, dtype=torch.bool))
    net.train()


@in_source_only(
    "no mode is wrong: eval mode says nothing about gradients, and losses are kept with their graphs"
)
def test_c101_eval_without_no_grad(run: Run) -> None:
    """semseg#60, skorch#218, OpenNMT-py#1141, FCGF#15, pytorch#4932: memory grows through the validation."""
    net, losses = run.watch(Classifier()), []
    for _ in range(2):
        net.train()
        step(run, net)
        net.eval()
        losses += [F.cross_entropy(net(rows()), torch.randint(0, 3, (6,))) for _ in range(3)]
    assert all(loss.grad_fn is not None for loss in losses)
    net.train()
