"""check_backward: says before backward what backward will do, who is to blame and what helps; and only looks."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import functools
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from torchtap import modes
from torchtap.modes import BackwardReport, check_backward
from torchtap.modes._blame import blame, told
from torchtap.modes._doors import RNN, opened
from torchtap.modes._findings import CallFinding
from torchtap.modes._frames import shown
from torchtap.modes._graph import nodes
from torchtap.modes._situations import SITUATIONS

SOURCE = Path(__file__).read_text().splitlines()


def at(text: str) -> str:
    """`file:line` of the line of this file that ends in a comment with this text."""
    (number,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# {text}")]
    return f"{shown(__file__)}:{number}"


class Tagger(nn.Module):
    """(steps, batch, 4) in, (steps, batch, 1) out."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.rnn = kind(4, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(self.embed(x))  # the forward
        result: Tensor = self.head(y)
        return result


def x() -> Tensor:
    return torch.randn(5, 2, 4)


def evaluate(model: nn.Module) -> None:
    model.eval()  # in evaluate
    with torch.no_grad():
        model(x())


def load_model(kind: Any = Tagger) -> Any:
    model = kind()
    model.eval()
    return model


@pytest.fixture
def emulated() -> Iterator[None]:
    with modes.emulate_cudnn():
        yield


def raises(loss: Tensor, **arguments: Any) -> bool:
    """What backward itself does."""
    try:
        torch.autograd.backward(loss, **arguments)
    except RuntimeError as error:
        assert "can only be called in training mode" in str(error)  # noqa: PT017
        return True
    return False


@pytest.mark.usefixtures("emulated")
def test_the_whole_text() -> None:
    model = Tagger()
    model(x())
    evaluate(model)
    loss = model(x()).sum()  # the training step
    report = check_backward(loss, model)
    first = (
        f"rnn (LSTM), call 3: its forward at {at('the forward')} (from {at('the training step')}) "
        f"ran in eval mode, set by model.eval() at {at('in evaluate')}"
    )
    assert str(report) == first
    assert report.text == (
        "backward raises:\n"
        f"  {first}\n"
        "  Only the mode at the forward counts; train() just before backward() changes nothing.\n"
        "  do: in evaluate(), with modes.eval_mode(model): ... gives every module its mode back; "
        f"or model.train() before the forward at {at('the training step')}"
    )
    (finding,) = report.findings
    assert (finding.id, finding.where, finding.class_name, finding.call, finding.raises) == (
        "rnn.eval_backward",
        "rnn",
        "LSTM",
        3,
        True,
    )
    assert (finding.forward, finding.called_from) == (at("the forward"), at("the training step"))
    assert (finding.set_by, finding.set_how) == (at("in evaluate"), "model.eval()")


# Situations: id -> (makes loss, model and inputs; words of the remedy)


def left_in_eval() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    evaluate(model)
    return model(x()).sum(), model, None


def train_after_forward() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    evaluate(model)
    loss = model(x()).sum()
    model.train()  # too late
    return loss, model, None


def gradient_of_input_by_freezing() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger().requires_grad_(False).eval()
    return model(x().requires_grad_()).sum(), model, None


def gradient_of_input_by_asking() -> tuple[Tensor, nn.Module, Any]:
    model, features = Tagger().eval(), x().requires_grad_()
    return model(features).sum(), model, features


def part() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    model.rnn.eval()
    return model(x()).sum(), model, None


def part_left_in_eval() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    evaluate(model.rnn)  # as validate(net.module) of a wrapped model
    return model(x()).sum(), model, None


def part_that_evaluates_itself() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    evaluate_all([model.rnn])
    return model(x()).sum(), model, None


def evaluate_all(models: list[nn.Module]) -> None:
    [each.eval() for each in models]
    with torch.no_grad():
        [each(x()) for each in models]


def left_in_eval_by_a_comprehension() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    evaluate_all([model])
    return model(x()).sum(), model, None


def left_in_eval_in_a_wrapper() -> tuple[Tensor, nn.Module, Any]:
    model = nn.DataParallel(Tagger())
    evaluate(model.module)
    return model(x()).sum(), model, None


def unregistered(cells: Any, get: Callable[[Any], nn.Module]) -> tuple[Tensor, nn.Module, Any]:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = cells

        def forward(self, x: Tensor) -> Any:
            return get(self.cells)(x)

    model = Holds()
    get(cells).eval()
    model.eval()
    model.train()
    return model(x()).sum(), model, None


def unregistered_in_a_list() -> tuple[Tensor, nn.Module, Any]:
    return unregistered([Tagger()], lambda cells: cells[0])


def unregistered_in_a_dict() -> tuple[Tensor, nn.Module, Any]:
    return unregistered({"a": Tagger()}, lambda cells: cells["a"])


def unregistered_in_a_closure() -> tuple[Tensor, nn.Module, Any]:
    inner = Tagger()
    return unregistered(lambda: inner, lambda cells: cells())


def checkpointed() -> tuple[Tensor, nn.Module, Any]:
    """Its forward runs again within backward: there the inner graph is asked."""
    found: list[Tensor] = []

    class Asks(Tagger):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if y.grad_fn is not None:
                found.append(y)
                raise RuntimeError("seen enough")
            return y

    model = Asks().eval()
    with pytest.raises(RuntimeError, match="seen enough"):
        checkpoint(model, x().requires_grad_(), use_reentrant=True).sum().backward()
    return found[-1].sum(), model, None


def part_by_freezing() -> tuple[Tensor, nn.Module, Any]:
    def freeze_encoder(model: Tagger) -> None:
        model.rnn.eval()

    model = Tagger()
    freeze_encoder(model)
    return model(x()).sum(), model, None


def frozen_part() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    model.rnn.requires_grad_(False).eval()
    return model(x()).sum(), model, None


def unreached() -> tuple[Tensor, nn.Module, Any]:
    class Stops(Tagger):
        def train(self, mode: bool = True) -> Stops:
            if not mode:
                super().train(mode)
            self.training = mode
            return self

    model = Stops()
    model.eval()
    model.train()  # the user's train
    return model(x()).sum(), model, None


def state_fed_on() -> tuple[Tensor, nn.Module, Any]:
    rnn = nn.GRU(4, 3)
    rnn.eval()
    _, state = rnn(x())
    rnn.train()
    return rnn(x(), state)[0].sum(), rnn, None


def made_in_eval() -> tuple[Tensor, nn.Module, Any]:
    model = load_model()
    return model(x()).sum(), model, None


def eval_in_line() -> tuple[Tensor, nn.Module, Any]:
    model = Tagger()
    model.eval()
    return model(x()).sum(), model, None


TOO_LATE = f"train() at {at('too late')} came after this forward"


@pytest.mark.parametrize("watch", [modes.emulate_cudnn, lambda: opened(RNN)], ids=["emulated", "watched"])
@pytest.mark.parametrize(
    ("make", "situation", "remedy", "cause"),
    [
        (
            left_in_eval,
            "left_in_eval",
            "in evaluate(), with modes.eval_mode(model):",
            "Only the mode at the forward",
        ),
        (
            train_after_forward,
            "train_after_forward",
            "move train() to before the forward",
            f"train() at {at('too late')}",
        ),
        (
            gradient_of_input_by_freezing,
            "gradient_of_input",
            "with modes.differentiable_eval(model):",
            "Only the mode",
        ),
        (
            gradient_of_input_by_asking,
            "gradient_of_input",
            "with modes.differentiable_eval(model):",
            "Only the mode",
        ),
        (
            part,
            "part",
            "rnn.requires_grad_(False), and leave it in train mode",
            "rnn is in eval mode while the model",
        ),
        (
            part_by_freezing,
            "part",
            "rnn.requires_grad_(False), and leave it",
            "rnn is in eval mode while the model",
        ),
        (
            part_left_in_eval,
            "part_left_in_eval",
            "in evaluate(), with modes.eval_mode(rnn):",
            "rnn is in eval mode while the model",
        ),
        (
            part_that_evaluates_itself,
            "part_left_in_eval",
            "in evaluate_all(), with modes.eval_mode(rnn):",
            "rnn is in eval mode while the model",
        ),
        (
            left_in_eval_by_a_comprehension,
            "left_in_eval",
            "in evaluate_all(), with modes.eval_mode(model):",
            "Only the mode at the forward",
        ),
        (
            left_in_eval_in_a_wrapper,
            "left_in_eval",
            "in evaluate(), with modes.eval_mode(model):",
            "Only the mode at the forward",
        ),
        (
            unregistered_in_a_list,
            "unregistered",
            "until then train() on model.cells[0] before the forward",
            "model.train() and model.eval() do not reach model.cells[0]: it is not registered",
        ),
        (
            unregistered_in_a_dict,
            "unregistered",
            "an nn.ModuleDict instead of a dict",
            "model.train() and model.eval() do not reach model.cells['a']",
        ),
        (
            unregistered_in_a_closure,
            "unregistered",
            "an attribute of its own for the rest",
            "model.train() and model.eval() do not reach what model.cells closes over",
        ),
        (
            checkpointed,
            "checkpoint",
            "model.train() before backward, and before the forward too",
            "checkpoint(..., use_reentrant=True) runs its forward again within backward",
        ),
        (frozen_part, "frozen_part", "leave rnn in train mode", "rnn is frozen and in eval mode"),
        (
            unreached,
            "unreached",
            "super().train(mode)",
            f"train() at {at('the user' + chr(39) + 's train')} did not",
        ),
        (state_fed_on, "state_fed_on", "detach", "Call 2 ran in train mode and was fed"),
        (made_in_eval, "made_in_eval", "model.train() before the forward", "Only the mode at the forward"),
        (eval_in_line, "eval", "modes.eval_mode(model) around evaluations", "Only the mode at the forward"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_remedy_fits_the_situation(
    watch: Callable[[], Any],
    make: Callable[[], tuple[Tensor, nn.Module, Any]],
    situation: str,
    remedy: str,
    cause: str,
) -> None:
    with watch():
        loss, model, inputs = make()
        report = check_backward(loss, model, inputs=inputs)
    assert [each.situation for each in report.findings] == [situation]
    assert remedy in report.findings[0].remedy
    assert report.findings[0].cause.startswith(cause)


@pytest.mark.usefixtures("emulated")
def test_of_several_models_one_in_eval_may_be_a_teacher() -> None:
    teacher, student = Tagger().eval(), Tagger()
    loss = (teacher(x()) - student(x())).square().sum()
    (finding,) = blame(nodes([loss]), [teacher, nn.Sequential(student)])
    assert (finding.situation, finding.where) == ("teacher", "Tagger.rnn")
    assert "torch.no_grad()" in finding.remedy


def test_every_situation_has_a_test_and_an_id_of_its_own() -> None:
    ids = [each.id for each in SITUATIONS]
    assert len(set(ids)) == len(ids)
    tested = {"unwatched", "teacher"}  # by tests of their own
    tested |= {"exported", "captured", "traced", "frozen", "scripted"}  # in test_captured.py
    function: Any = test_the_remedy_fits_the_situation
    marks = [mark for mark in function.pytestmark if mark.args[0][0] == "make"]
    tested |= {row[1] for mark in marks for row in mark.args[1]}
    assert tested == set(ids)


def test_no_text_has_an_unfilled_slot() -> None:
    for make in (left_in_eval, train_after_forward, part, frozen_part, unreached, state_fed_on, made_in_eval):
        with modes.emulate_cudnn():
            loss, model, inputs = make()
            text = check_backward(loss, model, inputs=inputs).text
        assert not set("{}") & set(text)
        assert "None" not in text


MODULES = st.lists(
    st.tuples(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]), st.booleans()), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None)
@given(
    modules=MODULES,
    wiring=st.lists(st.sampled_from(["out", "state", "detached", "skip", "zeroed"]), min_size=4, max_size=4),
    frozen=st.lists(st.booleans(), min_size=4, max_size=4),
    wanted=st.sampled_from(["all", "last", "first", "input"]),
)
def test_it_says_yes_exactly_when_backward_raises(
    modules: list[tuple[Any, bool]], wiring: list[str], frozen: list[bool], wanted: str
) -> None:
    """Random chains of RNNs in random modes, frozen or not, with what lies between passed on, cut or left out."""
    with modes.emulate_cudnn():
        net = nn.ModuleList([kind(4, 4).train(training) for kind, training in modules])
        for rnn, freeze in zip(net, frozen, strict=False):
            rnn.requires_grad_(not freeze)
        first = x().requires_grad_(frozen[0])
        y, loss = first, nn.Linear(4, 1)(x()).sum()
        for rnn, how in zip(net, wiring, strict=False):
            out, state = rnn(y)
            state = state[0] if isinstance(state, tuple) else state
            loss = loss + {"state": state.sum(), "zeroed": out.sum() * 0}.get(how, torch.zeros(()))
            y = {"detached": out.detach(), "skip": y}.get(how, out)
        loss = loss + y.sum()
        inputs = {
            "all": None,
            "last": list(net[-1].parameters()),
            "first": list(net[0].parameters()),
            "input": [first],
        }[wanted]
        inputs = [each for each in inputs if each.requires_grad] or None if inputs else None
        report = check_backward(loss, net, inputs=inputs)
        assert bool(report) == raises(loss, inputs=inputs)
        assert all(each.raises for each in report.findings)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "graph", ["after the RNN", "its weights", "before it", "its output", "not in the graph"]
)
def test_inputs_prune_as_autograd_does(graph: str) -> None:
    model = Tagger().eval()
    y = model.rnn(model.embed(x()))[0]
    loss = model.head(y).sum()
    inputs = {
        "after the RNN": list(model.head.parameters()),
        "its weights": [model.rnn.weight_hh_l0],
        "before it": [model.embed.weight],
        "its output": [y],
        "not in the graph": [nn.Linear(2, 2).weight],
    }[graph]
    report = check_backward(loss, model, inputs=inputs)
    assert bool(report) == raises(loss, inputs=inputs) == (graph in ("its weights", "before it"))


@pytest.mark.usefixtures("emulated")
def test_several_losses_and_edges() -> None:
    well, unwell = Tagger(), Tagger().eval()
    losses = [well(x()).sum(), unwell(x())]
    assert check_backward(losses).calls == 2
    assert len(check_backward(tuple(losses)).findings) == 1
    edge = torch.autograd.graph.get_gradient_edge(unwell.rnn.weight_ih_l0)
    assert check_backward(losses[1], inputs=edge)
    assert not check_backward(losses[0], well)
    assert (
        check_backward(torch.autograd.graph.get_gradient_edge(losses[1]), unwell).findings[0].where == "rnn"
    )
    assert check_backward([losses[0], torch.autograd.graph.get_gradient_edge(losses[1])])


def test_of_an_unwatched_lstm_on_a_cpu_the_path_is_found_by_its_parameters() -> None:
    model = nn.Sequential(nn.LSTM(4, 3, num_layers=2, bidirectional=True)).eval()
    report = check_backward(model(x())[0].sum(), model)
    (finding,) = report.findings
    assert (finding.where, finding.situation, finding.raises, report.calls) == ("0", "unwatched", False, 1)
    assert (finding.call, finding.forward, finding.set_by) == (None, None, None)
    assert "with modes.guard(model):" in finding.remedy
    assert str(report).startswith(
        "0 (LSTM), a forward that nobody watched ran in eval mode (cuDNN would raise"
    )


def test_of_an_unwatched_cudnn_call_too() -> None:
    model = nn.Sequential(nn.GRU(4, 3)).eval()
    with modes.emulate_cudnn():
        loss = model(x())[0].sum()
    node: Any = loss.grad_fn
    node.next_functions[0][0].metadata.clear()
    (finding,) = check_backward(loss, model).findings
    assert (finding.where, finding.class_name, finding.raises) == ("0", "GRU", True)
    (finding,) = check_backward(loss).findings
    assert (finding.where, finding.class_name) == ("GRU", "GRU")


def test_of_an_unwatched_gru_on_a_cpu_is_said_that_it_cannot_be_seen() -> None:
    model = Tagger(nn.GRU).eval()
    report = check_backward(model(x()).sum(), model)
    assert not report
    (unseen,) = report.unseen
    assert unseen.startswith("rnn (GRU): nobody watched its forward")
    assert "not seen: rnn (GRU)" in str(report)


@pytest.mark.usefixtures("emulated")
def test_a_module_that_is_not_part_of_the_model_is_said_to_be_so() -> None:
    rnn, model = nn.LSTM(4, 3).eval(), Tagger()
    (finding,) = check_backward(rnn(x())[0].sum(), model).findings
    assert finding.where == "LSTM (not part of Tagger)"


def test_a_custom_function_is_said_to_hide_what_is_in_it() -> None:
    class Hiding(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(_: Any, g: Tensor) -> Tensor:
            return g * 2

    y = Hiding.apply(Hiding.apply(x().requires_grad_()))
    report = check_backward(y.sum())
    assert not report
    expected = "Hiding (a custom autograd.Function), 2 times: RNN calls inside it cannot be seen"
    assert report.unseen == (expected,)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("held", ["module", "bound method", "partial", "closure", "argument", "trainer"])
@pytest.mark.parametrize("at_backward", ["train", "eval"])
def test_in_a_reentrant_checkpoint_the_mode_at_backward_counts(held: str, at_backward: str) -> None:
    model, features = nn.Sequential(nn.LSTM(4, 3)), x().requires_grad_()
    model.train(at_backward != "train")

    class Trainer:
        def __init__(self) -> None:
            self.net = model

        def step(self, x: Tensor) -> Any:
            return self.net(x)[0]

    ways: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "module": (model, ()),
        "bound method": (model.forward, ()),
        "partial": (functools.partial(model.forward), ()),
        "closure": (lambda x: model(x)[0], ()),
        "argument": (lambda x, net: net(x), (model,)),
        "trainer": (Trainer().step, ()),
    }
    run, more = ways[held]
    out = checkpoint(run, features, *more, use_reentrant=True)
    loss = (out if isinstance(out, Tensor) else out[0]).sum()
    model.train(at_backward == "train")  # before backward
    report = check_backward(loss, model)
    assert [each.id for each in report.findings] == ["rnn.eval_checkpoint"] * (at_backward == "eval")
    assert "CheckpointFunctionBackward" in report.unseen[0]
    assert raises(loss) == bool(report)
    if report:
        assert (report.findings[0].where, report.findings[0].set_by) == ("0", at("before backward"))
        assert report.findings[0].remedy.startswith(
            "model.train() before backward, and before the forward too"
        )


@pytest.mark.usefixtures("emulated")
def test_in_the_other_checkpoint_the_mode_at_the_forward_counts() -> None:
    model = Tagger().eval()
    loss = checkpoint(model, x(), use_reentrant=False).sum()
    assert bool(check_backward(loss, model)) == raises(loss) is True


def test_what_torch_compile_made_is_named() -> None:
    torch.compiler.reset()
    net = torch.compile(nn.Linear(4, 3), backend="aot_eager")
    report = check_backward(net(x()).sum())
    assert not report
    assert report.unseen[0].startswith("CompiledFunctionBackward: compiled by torch.compile")


@pytest.mark.usefixtures("emulated")
def test_traced_exported_and_meta_modules() -> None:
    traced = torch.jit.trace(nn.GRU(4, 3).eval(), (x(),))
    (finding,) = check_backward(traced(x())[0].sum(), traced).findings
    assert finding.raises
    meta = nn.LSTM(4, 3, device="meta").eval()
    assert (
        check_backward(meta(torch.empty(5, 2, 4, device="meta"))[0].sum(), meta).findings[0].raises is False
    )
    program: Any = torch.export.export(nn.Sequential(nn.GRU(4, 3)).eval(), (x(),)).module()
    loss = program(x())[0].sum()
    (finding,) = check_backward(loss, program).findings
    assert finding.raises is raises(loss) is False  # it stays native; on a GPU the mode of the export decides


def test_a_scripted_lstm_is_found_by_its_parameters() -> None:
    model = torch.jit.script(nn.Sequential(nn.LSTM(4, 3)).eval())
    report = check_backward(model(x())[0].sum(), model)
    assert [each.where for each in report.findings] == ["0"]


def freed() -> Tensor:
    loss: Tensor = nn.LSTM(4, 3)(x())[0].tanh().sum()
    loss.backward()
    return loss


def freed_cudnn() -> Tensor:
    with modes.emulate_cudnn():
        loss: Tensor = nn.GRU(4, 3)(x())[0].sum()
    loss.backward()
    return loss


def under_no_grad() -> Tensor:
    with torch.no_grad():
        result: Tensor = Tagger()(x())
    return result


def under_inference() -> Tensor:
    with torch.inference_mode():
        result: Tensor = Tagger()(x())
    return result


check: Any = check_backward  # for what its types refuse
BAD: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("number", lambda: check(3.0), TypeError, "takes a tensor or several, loss is of type float"),
    ("none", lambda: check(None), TypeError, "loss is of type NoneType"),
    ("mixed", lambda: check([freed(), "x"]), TypeError, r"loss\[1\] is of type str"),
    ("empty", lambda: check([]), ValueError, "was given no loss"),
    (
        "detached",
        lambda: check(Tagger()(x()).detach()),
        ValueError,
        "no graph, backward would raise.*detached",
    ),
    ("no_grad", lambda: check(under_no_grad()), ValueError, r"torch.no_grad\(\)"),
    (
        "inference",
        lambda: check(under_inference()),
        ValueError,
        r"made under torch.inference_mode\(\)",
    ),
    (
        "argmax",
        lambda: check(Tagger()(x()).argmax()),
        ValueError,
        "no tensor of torch.int64 has one",
    ),
    (
        "frozen",
        lambda: check((m := Tagger().requires_grad_(False))(x()), m),
        ValueError,
        "no parameter of the model requires a gradient",
    ),
    ("freed cudnn", lambda: check(freed_cudnn()), ValueError, "has run through this graph already"),
    (
        "class",
        lambda: check(Tagger()(x()), Tagger),
        TypeError,
        "takes an nn.Module, got the class Tagger",
    ),
    ("path", lambda: check(Tagger()(x()), "rnn"), TypeError, "takes an nn.Module, got of type str"),
    (
        "inputs",
        lambda: check(Tagger()(x()), inputs=[3]),
        TypeError,
        "takes tensors, number 0 is of type int",
    ),
    (
        "swapped",
        lambda: check(m := Tagger(), m(x()).sum()),
        TypeError,
        r"check_backward\(loss, model\): the loss comes first",
    ),
    (
        "model only",
        lambda: check(Tagger()),
        TypeError,
        r"loss is of type Tagger: give what backward is called",
    ),
    ("two losses", lambda: check(Tagger()(x()), x()), TypeError, r"several losses go into one list"),
    (
        "models",
        lambda: check(Tagger()(x()), [Tagger(), Tagger()]),
        TypeError,
        r"takes an nn.Module, got of type list: several models go into one, nn.ModuleList",
    ),
    ("dict", lambda: check({"n": 1, "loss": Tagger()(x())}), TypeError, "of type dict: .* that of 'loss'"),
    ("nested", lambda: check(nn.LSTM(4, 3)(x())), TypeError, r"loss\[1\] is of type tuple: give its tensors"),
    (
        "inputs=model",
        lambda: check((m := Tagger())(x()), inputs=m),
        TypeError,
        r"inputs=list\(model.parameters\(\)\)",
    ),
    ("inputs=3", lambda: check(Tagger()(x()), inputs=3), TypeError, "a tensor or several, got of type int"),
    (
        "named inputs",
        lambda: check((m := Tagger())(x()), inputs=m.named_parameters()),
        TypeError,
        "number 0 is of type tuple",
    ),
    ("inputs={}", lambda: check(Tagger()(x()), inputs={}), TypeError, "got of type dict"),
    ("no inputs", lambda: check(Tagger()(x()), inputs=[]), ValueError, "is empty, backward would raise"),
    (
        "leaf",
        lambda: check(Tagger()(x()), inputs=x()),
        ValueError,
        "number 0 does not require a gradient",
    ),
]


# torch 2.9 does not tell of a single saved tensor whether it is freed.
if hasattr(torch._C._autograd.SavedTensor, "data"):
    BAD.append(
        ("freed", lambda: check(freed()), ValueError, "has run through this graph already and freed it")
    )


@pytest.mark.parametrize(("call", "kind", "text"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_where_grad_is_off_it_says_so() -> None:
    with torch.no_grad(), pytest.raises(ValueError, match="the forward must run outside of it"):
        check_backward(Tagger()(x()))


def test_a_leaf_and_a_graph_without_rnns_are_well() -> None:
    for loss in (torch.zeros(3, requires_grad=True), nn.Linear(4, 1)(x())):
        report = check_backward(loss)
        assert (bool(report), report.calls, str(report)) == (
            False,
            0,
            "well: no RNN call seen that cuDNN would run",
        )


def report_of(findings: int, name: str = "rnn") -> BackwardReport:
    """As it is for so many calls in eval mode."""
    model = nn.Module()
    model.add_module(name, nn.LSTM(4, 3))
    rnn: Any = getattr(model, name)
    model.eval()
    with modes.emulate_cudnn():
        loss = sum((rnn(x())[0].sum() for _ in range(findings)), nn.Linear(4, 1)(x()).sum())
        return check_backward(loss, model)


def test_the_report_in_all_its_forms() -> None:
    report = report_of(2, name="<b>[red]rnn")
    assert report.calls == 2
    assert str(report).count("\n") == 1
    assert repr(report) == str(report)
    page = report._repr_html_()
    assert "&lt;b&gt;[red]rnn (LSTM), call 2" in page
    assert "<b>" not in page
    console = Console(width=1000, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(report)
    assert console.export_text().strip() == report.text
    told_of = json.loads(json.dumps(report.to_dict()))
    assert (told_of["schema"], told_of["calls"], len(told_of["findings"]), told_of["unseen"]) == (1, 2, 2, [])
    assert told_of["findings"][0]["severity"] == "error"
    assert told_of["findings"][0]["situation"] == "eval"


def test_why_and_what_to_do_stand_once_for_calls_alike() -> None:
    text = report_of(3).text
    assert [text.count(words) for words in ("call ", "Only the mode", "do: ")] == [3, 1, 1]


def test_an_errors_text_names_no_more_than_five_calls() -> None:
    findings: tuple[CallFinding, ...] = report_of(8).findings
    text = told(findings)
    assert text.count("its forward") == 5
    assert text.endswith("and 3 more calls")


def test_it_only_looks() -> None:
    """No hook runs, nothing is unpacked, run, drawn or written, and nothing is kept."""
    unpacked = []
    model, features = Tagger(), x().requires_grad_()

    def unpack(saved: Tensor) -> Tensor:
        unpacked.append(1)
        return saved

    with modes.emulate_cudnn(), saved_tensors_hooks(torch.detach, unpack):
        y = model(features)
        y.register_hook(lambda _: unpacked.append(2))
        loss = y.tanh().sum()
    before = torch.get_rng_state()
    check_backward(loss, model)
    check_backward(loss, model, inputs=features)
    assert torch.equal(before, torch.get_rng_state())
    assert unpacked == []
    assert all(parameter.grad is None for parameter in model.parameters())
    gone = weakref.ref(model), weakref.ref(loss), weakref.ref(features)
    report = check_backward(loss, model)
    del model, loss, features, y
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    assert report.calls == 1


def test_a_graph_of_ten_thousand_nodes_in_a_row() -> None:
    y = torch.ones(1, requires_grad=True)
    for _ in range(10_000):
        y = y * 1
    assert not check_backward(y)
    assert not check_backward(y, inputs=[y])
