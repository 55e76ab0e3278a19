"""What a graph hides is named: RNNs that it leads to, or may lead to, without telling their mode."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes import check_backward


class Tagger(nn.Module):
    """(steps, batch, 4) in, (steps, batch, 1) out."""

    def __init__(self, kind: Any = nn.GRU) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.rnn = kind(4, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(self.embed(x))[0])
        return result


def x() -> Tensor:
    return torch.randn(5, 2, 4)


def named(report: modes.BackwardReport) -> list[str]:
    """What is named, without why."""
    assert not report
    assert str(report).startswith("not known" if report.unseen else "well")
    return [each.partition(":")[0] for each in report.unseen]


def test_a_saliency_by_inputs_leads_past_the_weights() -> None:
    model, features = Tagger().eval(), x().requires_grad_()
    assert named(check_backward(model(features).sum(), model, inputs=features)) == ["rnn (GRU)"]
    assert named(check_backward(model(features).sum(), model, inputs=[*model.head.parameters()])) == []


def test_a_saliency_of_a_frozen_model_shows_no_weights() -> None:
    model = Tagger().eval().requires_grad_(False)
    assert named(check_backward(model(x().requires_grad_()).sum(), model)) == ["rnn (GRU)"]


def test_a_frozen_one_that_was_watched_has_told_of_itself() -> None:
    student, teacher = Tagger(), Tagger().requires_grad_(False).eval()
    both = nn.ModuleDict({"student": student, "teacher": teacher})
    with modes.guard(both, on_violation="collect"):
        with torch.no_grad():
            target = teacher(x())
        assert named(check_backward((student(x()) - target).square().sum(), both)) == []
    assert named(check_backward((student(x()) - target).square().sum(), both)) == [
        "student.rnn (GRU)",
        "teacher.rnn (GRU)",
    ]


def test_an_lstm_of_which_a_cpu_makes_no_node() -> None:
    """oneDNN takes neither float64 nor projections."""
    model = Tagger(nn.LSTM).eval().double()
    assert named(check_backward(model(x().double()).sum(), model)) == ["rnn (LSTM)"]
    model = Tagger(lambda *sizes: nn.LSTM(sizes[0], 6, proj_size=3)).eval().requires_grad_(False)
    assert named(check_backward(model(x().requires_grad_()).sum(), model)) == ["rnn (LSTM)"]


def test_a_frozen_lstm_that_is_not_in_the_graph_is_not_named() -> None:
    """A CPU would have made a node for it."""
    teacher = Tagger(nn.LSTM).eval().requires_grad_(False)
    model = nn.ModuleList([nn.Linear(4, 1), teacher])
    assert named(check_backward(model[0](x()).sum(), model)) == []


def test_a_functional_call_runs_with_other_weights() -> None:
    model = Tagger().eval()
    weights = {name: each.detach().clone().requires_grad_() for name, each in model.named_parameters()}
    out = torch.func.functional_call(model, weights, (x(),))
    assert named(check_backward(out.sum(), model)) == ["rnn (GRU)"]


def test_what_a_model_keeps_in_a_list_is_named_by_its_place() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = [Tagger(), Tagger()]

        def forward(self, x: Tensor) -> Any:
            return self.cells[1](x)

    model = Holds()
    assert named(check_backward(model(x()).sum(), model)) == ["cells[1].rnn (GRU)"]


def test_a_weight_behind_a_cast_and_a_transpose_is_found() -> None:
    model, features = Tagger().eval(), x().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(features).float().sum()
    assert named(check_backward(loss, model, inputs=features)) == ["rnn (GRU)"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_parts_that_are_not_in_the_graph_are_not_named(kind: Any) -> None:
    model = nn.ModuleList([nn.Linear(4, 1), Tagger(kind)])
    assert named(check_backward(model[0](x()).sum(), model)) == []


def test_a_backward_hook_of_a_module_hides_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    for each in model:
        each.register_full_backward_hook(lambda *_: None)
    assert named(check_backward(model(x().requires_grad_()).sum(), model)) == []
