"""`check_backward` on graphs of which a part was not watched, and of nodes that only look like an RNN's."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from torchtap import modes


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 3, "dropout": 0.2}]
)
def test_a_watched_call_is_named_once_however_many_layers_a_cpu_makes_of_it(options: dict[str, Any]) -> None:
    """oneDNN makes a node for each layer and direction, and each keeps the mode."""
    lstm = nn.LSTM(6, 6, **options)
    with modes.guard(lstm, on_violation="collect"):
        lstm.eval()
        out, _ = lstm(torch.randn(5, 2, 6))
        (finding,) = modes.check_backward(out.sum(), lstm).findings
    assert finding.call == 1


def test_a_watched_call_without_cudnn_is_no_finding() -> None:
    lstm = nn.LSTM(6, 6, 2, bidirectional=True).eval()
    with modes.guard(lstm, on_violation="collect"), modes.without_cudnn():
        out, _ = lstm(torch.randn(5, 2, 6))
    assert not modes.check_backward(out.sum(), lstm)


@pytest.mark.parametrize("cudnn", [True, False], ids=["train", "eval without cuDNN"])
def test_a_functional_call_is_one_call(cudnn: bool) -> None:
    """Its weights are not the module's own: MAML, stateless ensembles."""
    lstm = nn.LSTM(6, 6, 2)
    lstm.train(cudnn)
    weights = {name: each.detach().clone().requires_grad_() for name, each in lstm.named_parameters()}
    with modes.guard(lstm, on_violation="collect"):
        with nullcontext() if cudnn else modes.without_cudnn():
            out, _ = torch.func.functional_call(lstm, weights, (torch.randn(5, 2, 6),))
        report = modes.check_backward(out.sum(), lstm)
    assert not report
    assert report.calls == cudnn


def test_a_call_that_nobody_watched_below_a_watched_one_is_its_own() -> None:
    first, second = nn.LSTM(6, 6, 2).eval(), nn.LSTM(6, 6, 2)
    out, _ = first(torch.randn(5, 2, 6))
    both = nn.ModuleList([first, second])
    with modes.guard(both, on_violation="collect"):
        out, _ = second(out)
    assert {finding.where for finding in modes.check_backward(out.sum(), both).findings} == {"0"}


def test_the_graph_of_a_gradient_tells_of_no_call_of_its_own() -> None:
    """create_graph makes a CudnnRnnBackwardBackward0, which keeps no mode."""
    lstm, x = nn.LSTM(6, 6), torch.randn(5, 2, 6, requires_grad=True)
    with modes.emulate_cudnn():
        (gradient,) = torch.autograd.grad(lstm(x)[0].sum(), [x], create_graph=True)
    report = modes.check_backward(gradient.sum(), lstm)
    assert not report
    assert report.calls == 1
