"""RNNs inside programs: what torch.export, torch.fx and torch.jit made of a model is never called well unseen."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes import check_backward
from torchtap.modes._captured import captured_rnns

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*deprecated")

KINDS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(4, 3),
    "GRU": lambda: nn.GRU(4, 3, 2),
    "RNN": lambda: nn.RNN(4, 3),
    "RNN of ReLU": lambda: nn.RNN(4, 3, nonlinearity="relu"),
}


class Tagger(nn.Module):
    """(steps, batch, 4) in, (steps, batch, 1) out."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.rnn = rnn
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(self.embed(x))[0])
        return result


class ByHand(nn.Module):
    """Calls libtorch's function with weights of its own, as torch.fx can follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(9, 4))
        self.weight_hh = nn.Parameter(torch.randn(9, 3))

    def forward(self, x: Tensor) -> Tensor:
        weights: list[Tensor] = [self.weight_ih, self.weight_hh]
        result: Tensor = torch.gru(
            x, torch.zeros(1, 2, 3), weights, False, 1, 0.0, self.training, False, False
        )[0]
        return result


def x() -> Tensor:
    return torch.randn(5, 2, 4)


def exported(net: nn.Module) -> Any:
    return torch.export.export(net, (x(),)).module()


def unflattened(net: nn.Module) -> Any:
    return torch.export.unflatten(torch.export.export(net, (x(),)))


def traced(net: nn.Module) -> Any:
    return torch.jit.trace(net, (x(),))


def scripted(net: nn.Module) -> Any:
    return torch.jit.script(net)


def frozen(net: nn.Module) -> Any:
    return torch.jit.freeze(torch.jit.script(net))


FIXED = [exported, unflattened, traced]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capture", FIXED)
@pytest.mark.parametrize("training", [True, False])
def test_a_program_tells_its_rnn_and_the_mode_it_keeps(
    kind: str, capture: Callable[[nn.Module], Any], training: bool
) -> None:
    program = capture(Tagger(KINDS[kind]()).train(training))
    (found,) = captured_rnns(program.modules())
    how = "traced" if capture is traced else "exported"
    assert (found.class_name, found.how, found.training) == (kind.partition(" ")[0], how, training)
    assert sum(1 for _ in found.module.parameters(recurse=False)) in (4, 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("capture", FIXED)
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_program_decides(
    kind: str, watched: bool, capture: Callable[[nn.Module], Any], training: bool
) -> None:
    program = capture(Tagger(KINDS[kind]()).train(training))
    if watched:
        with modes.guard(program, on_violation="collect"):
            report = check_backward(program(x()).sum(), program)
    else:
        report = check_backward(program(x()).sum(), program)
    assert (bool(report), report.calls, report.unseen) == (not training, 1, ())
    for finding in report.findings:
        assert (finding.where, finding.class_name, finding.raises) == ("rnn", kind.partition(" ")[0], False)
        assert finding.situation == ("traced" if capture is traced else "exported")


@pytest.mark.parametrize("kind", ["GRU", "RNN", "RNN of ReLU"])
@pytest.mark.parametrize("training", [True, False])
def test_of_a_scripted_one_the_mode_at_the_forward_is_not_known(kind: str, training: bool) -> None:
    program = scripted(Tagger(KINDS[kind]()).train(training))
    report = check_backward(program(x()).sum(), program)
    assert not report
    assert report.unseen[0].startswith(f"rnn ({kind.partition(' ')[0]}, scripted): nobody can watch")
    assert str(report).startswith(
        "not known: no RNN call seen that cuDNN would run, but not all can be seen\n"
    )


@pytest.mark.parametrize("training", [True, False])
def test_of_a_scripted_lstm_it_is(training: bool) -> None:
    program = scripted(Tagger(nn.LSTM(4, 3)).train(not training))
    program.train(training)
    report = check_backward(program(x()).sum(), program)
    assert (bool(report), report.unseen) == (not training, ())
    assert [each.situation for each in report.findings] == ["scripted"] * (not training)


def test_of_a_frozen_one_only_the_program_tells() -> None:
    program, features = frozen(Tagger(nn.GRU(4, 3)).eval()), x().requires_grad_()
    report = check_backward(program(features).sum(), program)
    assert not report
    (unseen,) = report.unseen
    assert unseen.startswith("the model itself (GRU, frozen in eval mode): its weights are frozen")


@pytest.mark.parametrize("capture", FIXED)
def test_a_program_whose_weights_do_not_train_is_named(capture: Callable[[nn.Module], Any]) -> None:
    program = capture(Tagger(nn.GRU(4, 3)).eval().requires_grad_(False))
    report = check_backward(program(x().requires_grad_()).sum(), program)
    assert not report
    assert "in eval mode): its weights are frozen" in report.unseen[0]


def test_what_torch_fx_captured() -> None:
    program = torch.fx.symbolic_trace(ByHand().eval())
    (finding,) = check_backward(program(x()).sum(), program).findings
    assert (finding.class_name, finding.situation) == ("GRU", "captured")
    assert not check_backward((again := torch.fx.symbolic_trace(ByHand()))(x()).sum(), again)


def test_a_mode_that_is_an_argument_is_not_known() -> None:
    graph = torch.fx.Graph()
    features, mode = graph.placeholder("x"), graph.placeholder("mode")
    weights = [graph.get_attr("weight_ih"), graph.get_attr("weight_hh")]
    state = graph.call_function(torch.zeros, (1, 2, 3))
    out = graph.call_function(torch.gru, (features, state, weights, False, 1, 0.0, mode, False, False))
    graph.output(out)
    program: Any = torch.fx.GraphModule(ByHand(), graph)
    report = check_backward(program(x(), False)[0].sum(), program)
    assert not report
    assert report.unseen[0].startswith("the model itself (GRU, captured): nobody can watch its forward")


@pytest.mark.parametrize("capture", [*FIXED, scripted])
def test_a_program_that_is_a_part_of_a_model(capture: Callable[[nn.Module], Any]) -> None:
    program = capture(Tagger(nn.GRU(4, 3)).eval())
    model = nn.Sequential(nn.Linear(4, 4), program)
    report = check_backward(model(x()).sum(), model)
    told = [f"{each.where} (" for each in report.findings] or report.unseen
    assert [each.startswith("1.rnn (") for each in told] == [True]
    # What the graph does not lead to is not named.
    assert not check_backward(model[0](x()).sum(), model).unseen


@pytest.mark.parametrize("capture", [exported, traced])
def test_a_program_beside_what_it_was_made_of_is_not_blamed(capture: Callable[[nn.Module], Any]) -> None:
    """Both have the same weights: a model that keeps a traced copy of its own for evaluation."""
    net = Tagger(nn.GRU(4, 3)).eval()
    both = nn.ModuleDict({"fast": capture(net), "net": net.train()})
    with modes.guard(both, on_violation="collect"):
        report = check_backward(net(x()).sum(), both)
    assert (bool(report), report.calls) == (False, 1)
    assert "another RNN has the same weights" in report.unseen[0]


def test_a_program_without_an_rnn_is_well() -> None:
    for capture in (exported, traced, scripted):
        program = capture(nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.BatchNorm1d(2)))
        report = check_backward(program(x()).sum(), program)
        assert str(report) == "well: no RNN call seen that cuDNN would run"


@pytest.mark.parametrize("capture", FIXED)
def test_the_remedy_for_a_program_that_keeps_its_mode(capture: Callable[[nn.Module], Any]) -> None:
    net = Tagger(nn.GRU(4, 3)).eval()
    program = capture(net)
    (finding,) = check_backward(program(x()).sum(), program).findings
    assert "model.train(), ...)" in finding.remedy
    program = capture(net.train())
    assert not check_backward(program(x()).sum(), program)


def test_the_remedy_for_a_scripted_one() -> None:
    net = Tagger(nn.LSTM(4, 3)).eval()
    program = scripted(net)
    net.train()
    (finding,) = check_backward(program(x()).sum(), program).findings
    assert "on the scripted module itself" in finding.remedy
    program.train()
    assert not check_backward(program(x()).sum(), program)
