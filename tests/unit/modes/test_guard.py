"""guard(): cuDNN's refusal explained, on a plain CPU raised, and what else the guard itself does."""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import re
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.unit.modes.conftest import redirections
from tests.unit.modes.test_walk import DIFFICULT
from torchtap import modes
from torchtap.modes import _kernels, _warn
from torchtap.modes._findings import CallFinding
from torchtap.modes._frames import is_users
from torchtap.modes._observer import OBSERVER
from torchtap.modes._walk import modules
from torchtap.modes.silent._rule import Rule

REFUSED = _kernels.EVAL_BACKWARD
WHERE: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "emulated": modes.emulate_cudnn,  # backward raises by itself
    "plain": nullcontext,
}
everywhere = pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)


class Tagger(nn.Module):
    """An RNN that a head follows."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(x)[0])
        return result


class Other(Tagger):
    """One more class of model."""


KEPT = Tagger()  # a guard keeps no model alive


def features(**options: Any) -> Tensor:
    return torch.randn(5, 2, 4, **options)


def line_of(text: str, function: Callable[..., object]) -> str:
    """`file:line` of the one line of `function` that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    (index,) = (index for index, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(function)}:{first + index}"


def same_line(shown: str | None, full: str) -> bool:
    return shown is not None and full.endswith(shown)


def forward_and_backward(net: nn.Module) -> None:
    net(features()).sum().backward()


def twice(action: Callable[[Any], object], net: nn.Module) -> None:
    for _ in range(2):
        action(net)


def raised_by(action: Callable[[], object]) -> RuntimeError:
    with pytest.raises(RuntimeError, match=f"^{REFUSED}") as caught:
        action()
    return caught.value


def findings_of(error: BaseException) -> tuple[modes.Finding, ...]:
    found: tuple[modes.Finding, ...] = error.findings  # type: ignore[attr-defined]
    return found


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those about silent mistakes have tests of their own."""
    with_rules(monkeypatch)


# --- the error ---


@everywhere
def test_the_error_names_module_forward_setter_and_remedy(where: Any) -> None:
    net = Tagger()

    def train() -> None:
        net.eval()
        net(features()).sum().backward()

    with where(), modes.guard(net) as guard:
        error = raised_by(train)
    (found,) = findings_of(error)
    assert guard.findings == [found]
    assert isinstance(found, CallFinding)
    assert (found.id, found.where, found.class_name, found.call) == ("rnn.eval_backward", "rnn", "LSTM", 1)
    assert same_line(found.set_by, line_of("net.eval()", train))
    assert same_line(found.called_from, line_of("net(features())", train))
    assert same_line(found.forward, line_of("self.rnn(x)", Tagger))
    text = str(error)
    for part in ("rnn (LSTM)", found.set_by, found.forward, "do: "):
        assert part is not None
        assert part in text
    assert type(error) is RuntimeError
    assert type(error.__cause__) is RuntimeError
    assert str(error.__cause__) == REFUSED


def test_only_a_plain_cpu_is_told_that_the_guard_raised() -> None:
    net = Tagger().eval()
    with modes.guard(net):
        assert "the guard did" in str(raised_by(lambda: forward_and_backward(net)))
    with modes.emulate_cudnn(), modes.guard(net):
        assert "the guard did" not in str(raised_by(lambda: forward_and_backward(net)))


@everywhere
def test_an_explained_error_survives_pickling(where: Any) -> None:
    """As it does on its way from a worker process."""
    net = Tagger().eval()
    with where(), modes.guard(net):
        error = raised_by(lambda: forward_and_backward(net))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.findings) == (str(error), findings_of(error))


@everywhere
def test_nested_guards_explain_once(where: Any) -> None:
    """The innermost does; all keep the finding, each with its own path."""
    net = Tagger().eval()
    with where(), modes.guard(net) as outer, modes.guard(net.rnn) as inner:
        error = raised_by(lambda: forward_and_backward(net))
    assert str(error).count("do: ") == 1
    assert str(error.__cause__) == REFUSED
    assert [found.where for found in inner.findings] == [""]
    assert [found.where for found in outer.findings] == ["rnn"]


@pytest.mark.parametrize(
    "text",
    [
        "miopen RNN backward can only be called in training mode",
        "backward_input can only be called in training mode",
        "cudnn RNN backward can only be called in training mode\nException raised from _cudnn_rnn_backward_input",
    ],
)
def test_other_wordings_are_explained_too(text: str) -> None:
    """AMD's, the oldest, and the one with TORCH_SHOW_CPP_STACKTRACES=1."""
    x = features(requires_grad=True)
    loss = x.sum()
    x.register_hook(lambda _: raises(RuntimeError(text)))
    with modes.guard(KEPT), pytest.raises(RuntimeError) as caught:
        loss.backward()
    assert str(caught.value).startswith(text + "\n")
    assert findings_of(caught.value) == ()
    assert "cannot be read from the graph" in str(caught.value)


def raises(error: Exception) -> None:
    raise error


class OneMoreError(RuntimeError):
    """As torch.AcceleratorError is one."""


class DifficultError(RuntimeError):
    """Cannot be made of a text alone."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    ("error", "kind"), [(OneMoreError(REFUSED), OneMoreError), (DifficultError(REFUSED, 7), RuntimeError)]
)
def test_the_class_is_kept_where_it_can_be(error: RuntimeError, kind: type[RuntimeError]) -> None:
    x = features(requires_grad=True)
    loss = x.sum()
    x.register_hook(lambda _: raises(error))
    with modes.guard(KEPT), pytest.raises(RuntimeError) as caught:
        loss.backward()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("y"), KeyboardInterrupt(), StopIteration()])
def test_other_errors_of_backward_are_left_alone(error: BaseException) -> None:
    x = features(requires_grad=True)
    loss = x.sum()

    def fail(_: Tensor) -> None:
        raise error

    x.register_hook(fail)
    with modes.guard(KEPT), pytest.raises(type(error)) as caught:
        loss.backward()
    assert caught.value is error
    assert error.__cause__ is None
    assert not hasattr(error, "findings")


def test_an_error_of_another_model_is_explained_as_such() -> None:
    net, other = Tagger(), Other().eval()
    with modes.emulate_cudnn(), modes.guard(net):
        error = raised_by(lambda: forward_and_backward(other))
    assert "not part of Tagger" in str(error)


def test_another_model_is_none_of_its_business_where_nothing_raises() -> None:
    net, other = Tagger(), Other().eval()
    with modes.guard(net) as guard:
        forward_and_backward(other)
    assert guard.findings == []


def test_a_forward_before_the_guard_is_said_to_be_unwatched() -> None:
    net = Tagger().eval()
    with modes.emulate_cudnn():
        loss = net(features()).sum()
        for node in (loss.grad_fn, *walk(loss.grad_fn)):
            node.metadata.clear()  # as on a GPU, where without a guard nobody watches
        with modes.guard(net):
            error = raised_by(loss.backward)
    assert "nobody watched" in str(error)
    assert [found.where for found in findings_of(error)] == ["rnn"]


def walk(node: Any) -> Iterator[Any]:
    for before, _ in node.next_functions:
        if before is not None:
            yield before
            yield from walk(before)


@everywhere
@pytest.mark.parametrize("keep", [list, tuple, lambda items: {"rnn": items[0]}])
def test_rnns_in_plain_containers_of_the_model_count(
    where: Any, keep: Callable[[list[nn.Module]], Any]
) -> None:
    net, kept = Tagger(), nn.GRU(4, 3).eval()
    net.kept = keep([kept])
    with where(), modes.guard(net):
        raised_by(lambda: kept(features())[0].sum().backward())


@everywhere
def test_each_of_several_models_is_named_by_its_class(where: Any) -> None:
    nets = Tagger().eval(), Other().eval()
    with where(), modes.guard(*nets, on_violation="collect") as guard:
        for net in nets:
            try:
                forward_and_backward(net)
            except RuntimeError:
                assert where is modes.emulate_cudnn
    assert [found.where for found in guard.findings] == ["Tagger.rnn", "Other.rnn"]


@everywhere
def test_two_models_of_one_class_are_told_apart_in_all_that_is_said(where: Any) -> None:
    one, two = Tagger(), Tagger()
    with where(), modes.guard(one, two, on_violation="collect") as guard:
        one.rnn.eval()
        two.rnn.eval()
        for net in (one, two):
            with suppress(RuntimeError):
                forward_and_backward(net)
    texts = [str(found) for found in guard.findings]
    for number, text in enumerate(texts, 1):
        assert f"Tagger{number}.rnn (LSTM)" in text
        assert f"tagger{number}.rnn.train() before" in text or f"freeze tagger{number}.rnn:" in text
    assert [getattr(found, "set_how", None) for found in guard.findings] == [
        f"tagger{n}.rnn.eval()" for n in (1, 2)
    ]


def test_a_remedy_for_a_model_that_is_not_guarded_names_that_one() -> None:
    net = Tagger()
    other = Other()
    with modes.emulate_cudnn(), modes.guard(net):
        other.eval()
        (found,) = findings_of(raised_by(lambda: forward_and_backward(other)))
        assert "other.train()" in found.remedy
        assert not re.search(r"\bmodel\b", found.remedy)
        alone = nn.GRU(4, 3)
        alone.training = False
        (found,) = findings_of(raised_by(lambda: alone(features())[0].sum().backward()))
        assert "gru.train()" in found.remedy


@everywhere
def test_the_errors_traceback_ends_at_the_backward_of_the_user(where: Any) -> None:
    net = Tagger().eval()
    with where(), modes.guard(net):
        error = raised_by(lambda: forward_and_backward(net))
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "torchtap" not in f.filename]
    assert any("net(features()).sum().backward()" in (frame.line or "") for frame in ours)


# --- what a plain CPU refuses, and when it does not ---


def gradient_of_input(net: Tagger) -> None:
    x = features(requires_grad=True)
    torch.autograd.grad(net(x).sum(), [x])


def functional_gradient(net: Tagger) -> None:
    weights = dict(net.named_parameters())
    torch.func.grad(lambda w: torch.func.functional_call(net, w, (features(),)).sum())(weights)


def checkpointed(reentrant: bool) -> Callable[[Tagger], None]:
    def run(net: Tagger) -> None:
        checkpoint(net, features(requires_grad=True), use_reentrant=reentrant).sum().backward()

    return run


def several_losses(net: Tagger) -> None:
    fine = net.head(torch.randn(2, 3)).sum()
    torch.autograd.backward([fine, net(features()).sum()])


def final_state(net: Tagger) -> None:
    net.rnn(features())[1][1].sum().backward()


def in_another_thread(net: Tagger) -> None:
    loss = net(features()).sum()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            loss.backward()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    if caught:
        raise caught[0]


def under_anomaly_mode(net: Tagger) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            forward_and_backward(net)


def packed(net: Tagger) -> None:
    sequence = nn.utils.rnn.pack_padded_sequence(features(), torch.tensor([5, 3]))
    net.rnn(sequence)[0].data.sum().backward()


REFUSES = {
    "backward": forward_and_backward,
    "times zero": lambda net: (net(features()) * 0).sum().backward(),
    "gradient of the input": gradient_of_input,
    "torch.func.grad": functional_gradient,
    "checkpoint": checkpointed(False),
    "reentrant checkpoint": checkpointed(True),
    "several losses": several_losses,
    "final state": final_state,
    "another thread": in_another_thread,
    "anomaly mode": under_anomaly_mode,
    "packed": packed,
    "forward() called directly": lambda net: net.forward(features()).sum().backward(),
    "float64": lambda net: net.double()(features().double()).sum().backward(),
    "create_graph": lambda net: net(features()).sum().backward(create_graph=True),
    "retain_graph": lambda net: net(features()).sum().backward(retain_graph=True),
}


@everywhere
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("situation", REFUSES.values(), ids=REFUSES)
def test_a_gradient_into_an_eval_call_is_refused(where: Any, situation: Callable[[Tagger], None]) -> None:
    """With an error that names the call, whoever computes the gradient."""
    net = Tagger().eval()
    with where(), modes.guard(net) as guard:
        error = raised_by(lambda: situation(net))
    assert [found.where for found in findings_of(error)] == ["rnn"]
    assert len(guard.findings) == 1
    situation(Tagger().train())
    if where is nullcontext:
        situation(net)  # the guard is left: as ever


def later_parameters(net: Tagger) -> None:
    loss = net(features()).sum()
    torch.autograd.grad(loss, list(net.head.parameters()), retain_graph=True)
    loss.backward(inputs=list(net.head.parameters()))


def gradient_of_its_output(net: Tagger) -> None:
    out, _ = net.rnn(features())
    torch.autograd.grad(net.head(out).sum(), [out])


def without_cudnn(net: Tagger) -> None:
    with torch.backends.cudnn.flags(enabled=False):
        loss = net(features()).sum()
    loss.backward()


def output_not_used(net: Tagger) -> None:
    net(features())
    net.head(torch.randn(2, 3)).sum().backward()


GOES_ON = {
    "gradients of later parameters": later_parameters,
    "gradient of the RNN's own output": gradient_of_its_output,
    "cuDNN off at the forward": without_cudnn,
    "empty batch": lambda net: net(torch.randn(5, 0, 4)).sum().backward(),
    "output not used": output_not_used,
    "detached": lambda net: net.head(net.rnn(features())[0].detach()).sum().backward(),
    "train at the forward": lambda net: (net.train()(features()).sum(), net.eval())[0].backward(),
    "no_grad": lambda net: torch.no_grad()(net)(features()),
    "cell": lambda net: nn.LSTMCell(4, 3).eval()(torch.randn(2, 4))[0].sum().backward(),
}


@everywhere
@pytest.mark.parametrize("situation", GOES_ON.values(), ids=GOES_ON)
def test_what_cudnn_lets_pass_passes(where: Any, situation: Callable[[Tagger], None]) -> None:
    net = Tagger().eval()
    with where(), modes.guard(net) as guard:
        situation(net)
    assert [found for found in guard.findings if found.id == "rnn.eval_backward"] == []


@everywhere
def test_the_users_hooks_run_before_the_refusal(where: Any) -> None:
    net, ran = Tagger().eval(), []
    with where(), modes.guard(net):
        out, _ = net.rnn(features())
        out.register_hook(lambda _: ran.append("tensor"))
        net.head.weight.register_post_accumulate_grad_hook(lambda _: ran.append("head"))
        raised_by(net.head(out).sum().backward)
    assert ran == ["head", "tensor"] or ran == ["tensor", "head"]
    assert net.rnn.weight_ih_l0.grad is None


def test_a_graph_made_inside_is_free_after_the_guard() -> None:
    net = Tagger().eval()
    with modes.guard(net):
        loss = net(features()).sum()
    loss.backward()
    assert net.rnn.weight_ih_l0.grad is not None


def test_a_graph_keeps_neither_guard_nor_model() -> None:
    net: Tagger | None = Tagger().eval()
    guard: modes.Guard | None = modes.guard(net)  # type: ignore[arg-type]
    with guard:  # type: ignore[union-attr]
        loss = net(features())  # type: ignore[misc]
    of_guard, of_net = weakref.ref(guard), weakref.ref(net)
    del guard, net
    gc.collect()
    assert of_guard() is None
    assert of_net() is None
    loss.sum().backward()


# --- on_violation ---


def test_warn_warns_at_the_users_line_and_goes_on() -> None:
    net = Tagger().eval()
    guard = modes.guard(net, on_violation="warn")
    with pytest.warns(modes.ModeWarning, match="rnn") as caught:
        guard(twice)(forward_and_backward, net)
    assert len(caught) == len(guard.findings) == 1  # of one mistake at one line, once
    line = f"{caught[0].filename}:{caught[0].lineno}"
    assert line == line_of("backward()", forward_and_backward)
    assert net.rnn.weight_ih_l0.grad is not None


def test_warn_leaves_an_error_that_comes_by_itself_untouched() -> None:
    net = Tagger().eval()
    with (
        modes.emulate_cudnn(),
        modes.guard(net, on_violation="warn") as guard,
        pytest.warns(modes.ModeWarning, match="rnn"),
    ):
        error = raised_by(lambda: forward_and_backward(net))
    assert str(error) == REFUSED
    assert len(guard.findings) == 1


@everywhere
def test_collect_says_nothing(where: Any) -> None:
    net = Tagger().eval()
    with where(), modes.guard(net, on_violation="collect") as guard, warnings.catch_warnings():
        warnings.simplefilter("error")
        if where is nullcontext:
            forward_and_backward(net)
        else:
            assert str(raised_by(lambda: forward_and_backward(net))) == REFUSED
    assert [found.where for found in guard.findings] == ["rnn"]


def state_fed_on(net: Tagger) -> None:
    """Of an evaluation, into a training step."""
    _, state = net.rnn.eval()(features())
    net.rnn.train()(features(), state)[0].sum().backward()


def saliency(net: Tagger) -> None:
    net.eval()
    x = features(requires_grad=True)
    torch.autograd.grad(net(x).sum(), [x])


def late(net: Tagger) -> None:
    loss = net.eval()(features()).sum()
    net.train()
    loss.backward()


def two_calls(net: Tagger) -> None:
    net.eval()
    (net(features()).sum() + net.rnn(features())[0].sum()).backward()


@pytest.mark.parametrize(
    "action", [state_fed_on, saliency, late, two_calls, forward_and_backward, checkpointed(True)]
)
def test_all_three_say_the_same(action: Callable[[Tagger], None]) -> None:
    """What does not raise tells of a call all that the error tells: what it was fed to, what gradients were for."""
    said = {}
    for how in ("raise", "warn", "collect"):
        net = Tagger()
        with warnings.catch_warnings(), modes.guard(net, on_violation=how) as guard:
            warnings.simplefilter("ignore")
            net.eval()
            with suppress(RuntimeError):
                action(net)
        said[how] = [found.to_dict() for found in guard.findings]
    assert said["raise"]
    assert said["warn"] == said["collect"] == said["raise"]


def test_what_the_users_backward_raises_goes_before_a_warning_that_is_an_error() -> None:
    net = Tagger().eval()
    x = features(requires_grad=True)
    x.register_hook(lambda _: raises(KeyError("mine")))
    with warnings.catch_warnings(), modes.guard(net, on_violation="warn") as guard:
        warnings.simplefilter("error", modes.ModeWarning)
        with pytest.raises(KeyError, match="mine"):
            net(x).sum().backward()
    assert len(guard.findings) == 1


def test_threads_that_run_backward_at_once_are_each_told_of_their_own() -> None:
    nets = [Tagger().eval() for _ in range(4)]
    barrier = threading.Barrier(len(nets))

    def run(net: Tagger) -> None:
        loss = net(features()).sum()
        barrier.wait()
        loss.backward()

    with modes.guard(*nets, on_violation="collect") as guard:
        threads = [threading.Thread(target=run, args=(net,)) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found.where for found in guard.findings) == [f"Tagger{n}.rnn" for n in (1, 2, 3, 4)]


class Reports(Rule):
    """Finds something at each step of an optimizer and at the end."""

    severity = modes.Severity.WARN

    def finding(self, name: str) -> modes.Finding:
        return modes.Finding(
            id=f"test.{name}", severity=self.severity, where="rnn", seen="odd", cause="why", remedy="mend"
        )

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self.watched.report(self.finding("step"))

    def left(self) -> None:
        self.watched.report(self.finding("left"))


class ReportsInfo(Reports):
    severity = modes.Severity.INFO


def with_rules(monkeypatch: pytest.MonkeyPatch, *rules: type[Rule]) -> None:
    monkeypatch.setattr(sys.modules[modes.Guard.__module__], "RULES", rules)
    ours = frozenset({"stepped", "left", "finding"})  # these stand in for code of Torchtap
    monkeypatch.setattr(_warn, "is_users", lambda f: is_users(f) and f.f_code.co_name not in ours)


def a_step(net: nn.Module) -> None:
    torch.optim.SGD(net.parameters(), lr=0.1).step()


@pytest.mark.parametrize("how", ["raise", "warn"])
def test_silent_mistakes_warn_once_each(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rules(monkeypatch, Reports)
    net = Tagger()
    guard = modes.guard(net, on_violation=how)
    with pytest.warns(modes.ModeWarning) as caught:
        guard(twice)(a_step, net)
    assert [str(each.message).split()[1] for each in caught] == ["test.step", "test.left"]
    assert f"{caught[0].filename}:{caught[0].lineno}" == line_of("step()", a_step)
    assert caught[1].filename == __file__
    assert [found.id for found in guard.findings] == ["test.step", "test.left"]


@pytest.mark.parametrize(
    ("rule", "how"), [(ReportsInfo, "raise"), (ReportsInfo, "warn"), (Reports, "collect")]
)
def test_infos_and_collected_findings_are_kept_only(
    rule: type[Rule], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rules(monkeypatch, rule)
    net = Tagger()
    with warnings.catch_warnings(), modes.guard(net, on_violation=how) as guard:
        warnings.simplefilter("error")
        a_step(net)
        assert [found.id for found in guard.findings] == ["test.step"]  # live
    assert [found.id for found in guard.findings] == ["test.step", "test.left"]


def test_an_equal_finding_of_another_line_or_module_is_another_one() -> None:
    net = Tagger().eval()
    with modes.guard(net, on_violation="collect") as guard:
        forward_and_backward(net)
        net.train()
        net.eval()
        forward_and_backward(net)
        forward_and_backward(net)
    assert len(guard.findings) == 2


def test_where_warnings_are_errors_all_is_closed_and_the_users_error_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_rules(monkeypatch, Reports, Reports)
    net = Tagger()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard = modes.guard(net)
        with pytest.raises(modes.ModeWarning), guard:
            pass
        assert OBSERVER.listeners == ()
        with pytest.raises(KeyError, match="mine"), modes.guard(net):
            raise KeyError("mine")
        assert OBSERVER.listeners == ()
    assert [found.id for found in guard.findings] == ["test.left"]


# --- entering, leaving, decorating ---


def test_the_same_guard_can_be_entered_twice() -> None:
    net = Tagger().eval()
    guard = modes.guard(net)
    with guard:
        with guard as again:
            assert again is guard
        raised_by(lambda: forward_and_backward(net))  # still open
    assert redirections() == []
    with guard:
        assert len(guard.findings) == 1  # of the first time
    forward_and_backward(net)


@pytest.mark.parametrize("again", [True, False], ids=["once an epoch", "around all"])
def test_the_eval_that_made_the_change_is_named_in_an_epoch_after(again: bool) -> None:
    """Not one that found eval mode already; and the guard knows what it saw before it was entered again."""
    net = Tagger()
    guard = modes.guard(net, on_violation="collect")

    def validate() -> None:
        net.eval()  # the change
        net.eval()  # once more

    with nullcontext() if again else guard:
        for _ in range(2):
            with guard if again else nullcontext():
                forward_and_backward(net)
                validate()
    (finding,) = guard.findings
    assert isinstance(finding, CallFinding)
    assert "set by model.eval() at " in finding.seen
    assert "in validate(), with modes.eval_mode(model)" in finding.remedy
    assert set(re.findall(r":(\d+)", finding.set_by or "")) == {str(line_in(validate) + 1)}


def line_in(function: Callable[..., object]) -> int:
    return inspect.getsourcelines(function)[1]


def test_a_decorated_function_may_recur() -> None:
    net = Tagger().eval()

    @modes.guard(net)
    def train(depth: int) -> int:
        """Its own words."""
        return train(depth - 1) if depth else len(redirections())

    assert train(3) > 0
    assert (train.__name__, train.__doc__) == ("train", "Its own words.")
    assert redirections() == []


def test_a_decorated_function_gets_the_explained_error() -> None:
    net = Tagger().eval()
    assert findings_of(raised_by(lambda: modes.guard(net)(forward_and_backward)(net)))
    assert redirections() == []


def test_a_coroutine_function_is_watched_until_it_ends() -> None:
    net = Tagger().eval()

    @modes.guard(net)
    async def train() -> str:
        await asyncio.sleep(0)
        raised_by(lambda: forward_and_backward(net))
        return "done"

    coroutine = train()
    assert redirections() == []  # not yet begun
    assert asyncio.run(coroutine) == "done"
    assert inspect.iscoroutinefunction(train)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_guard_is_not_copied_and_says_so(copied: Callable[[object], object]) -> None:
    net = Tagger()
    with (
        modes.guard(net) as guard,
        pytest.raises(TypeError, match=r"a guard cannot be copied or pickled: .* make another"),
    ):
        copied(guard)


def test_a_model_is_copied_and_saved_inside_and_the_copy_is_another_model() -> None:
    net = Tagger()
    with modes.guard(net) as guard:
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            other.eval()
            forward_and_backward(other)
        forward_and_backward(net)
    assert (guard.findings, guard.changes) == ([], [])


def test_an_interrupt_in_backward_leaves_the_guard_as_good_as_before() -> None:
    net = Tagger()
    interrupt = net.head.weight.register_hook(lambda _: raises(KeyboardInterrupt()))  # type: ignore[arg-type]
    with modes.guard(net) as guard:
        with pytest.raises(KeyboardInterrupt):
            forward_and_backward(net)
        interrupt.remove()
        raised_by(lambda: forward_and_backward(net.eval()))
    assert len(guard.findings) == 1


def test_a_guard_inside_a_generator_is_open_from_the_first_to_the_last_piece() -> None:
    net = Tagger()

    def batches() -> Generator[int, None, None]:
        with modes.guard(net):
            yield 1

    generator = batches()
    assert redirections() == []
    next(generator)
    assert redirections()
    generator.close()
    assert redirections() == []


def test_what_the_body_raises_comes_out_as_it_is() -> None:
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught, modes.guard(KEPT):
        raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert OBSERVER.listeners == ()


def test_what_a_rule_raises_on_entering_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(Rule):
        def entered(self) -> None:
            raise ValueError("odd")

    with_rules(monkeypatch, Fails)
    guard = modes.guard(KEPT)
    for _ in range(2):
        with pytest.raises(ValueError, match="odd"):
            guard.__enter__()
    assert OBSERVER.listeners == ()
    assert redirections() == []


def test_threads_share_the_guard_and_the_last_one_closes() -> None:
    net = Tagger().eval()
    guard = modes.guard(net)
    barrier = threading.Barrier(5)
    errors: list[RuntimeError] = []

    def work() -> None:
        with guard:
            barrier.wait(60)
            for _ in range(5):
                errors.append(raised_by(lambda: forward_and_backward(net)))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 25
    assert len(guard.findings) == 1
    assert redirections() == []
    assert OBSERVER.listeners == ()


def test_guards_may_close_in_another_order_than_they_opened() -> None:
    net = Tagger().eval()
    first, second = modes.guard(net, on_violation="collect"), modes.guard(net)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    raised_by(lambda: forward_and_backward(net))
    second.__exit__(None, None, None)
    assert redirections() == []
    assert (len(first.findings), len(second.findings)) == (0, 1)


# --- what it takes ---


def test_an_unknown_on_violation_is_refused_with_the_three() -> None:
    with pytest.raises(ValueError, match="'raise', 'warn', 'collect'; got 'ignore'"):
        modes.guard(Tagger(), on_violation="ignore")


def test_a_model_that_is_gone_is_told_on_entering() -> None:
    guard = modes.guard(Tagger())
    gc.collect()
    with pytest.raises(RuntimeError, match="keep it in a variable"):
        guard.__enter__()
    assert redirections() == []


def test_a_guard_keeps_no_model_alive_and_goes_on_without() -> None:
    net: Tagger | None = Tagger().eval()
    of_net = weakref.ref(net)
    with modes.guard(net, on_violation="collect") as guard:  # type: ignore[arg-type]
        forward_and_backward(net)  # type: ignore[arg-type]
        net.train()  # type: ignore[union-attr]
        net = None
        gc.collect()
        assert of_net() is None
        forward_and_backward(Tagger())
    assert len(guard.findings) == 1
    assert "rnn" in str(guard)


@pytest.mark.parametrize("make", DIFFICULT.values(), ids=DIFFICULT)
def test_models_that_pytorch_itself_cannot_walk_are_watched(make: Callable[[], nn.Module]) -> None:
    model = make()
    with modes.guard(model, on_violation="collect") as guard:
        modules(model)[-1].eval()
    assert [change.training for change in guard.changes] == [False]


@pytest.mark.parametrize("model", [nn.Identity(), nn.ReLU(), nn.Sequential(), nn.Dropout(0.5)])
def test_a_model_without_parameters_will_do(model: nn.Module) -> None:
    with modes.guard(model) as guard:
        model.eval()
        model(torch.ones(2))
    assert guard.findings == []
    assert len(guard.changes) == 1


def test_a_model_on_meta_is_watched_as_on_any_device() -> None:
    with torch.device("meta"):
        net = Tagger().eval()
        with modes.guard(net):
            raised_by(lambda: forward_and_backward(net))
            net.train()
            forward_and_backward(net)


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda net: torch.jit.trace(net, features())])
def test_what_torch_jit_made_runs_as_ever(compiled: Callable[[nn.Module], Any]) -> None:
    """Its calls cannot be seen; its mode changes can."""
    net = compiled(Tagger().eval())
    with modes.guard(net, on_violation="collect") as guard:
        net.train()
        forward_and_backward(net)
        net.eval()
    assert not net.training
    assert guard.findings == []


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_an_exported_model_runs_as_ever() -> None:
    net = torch.export.export(Tagger().eval(), (features(),)).module()
    with modes.guard(net) as guard:
        forward_and_backward(net)
        with pytest.raises(NotImplementedError):
            net.train()
    assert guard.findings == []


# --- what it tells ---


def test_mode_changes_are_kept_with_their_lines() -> None:
    net = Tagger()

    def evaluate() -> None:
        net.eval()
        net.rnn.training = True
        net.eval().train()

    other = Other()
    with modes.guard(net, other) as guard:
        evaluate()
    evaluate()  # nobody watches
    told = [(change.where, change.training, change.by) for change in guard.changes]
    whole = ["Tagger", "Tagger.rnn", "Tagger.head"]
    assert told == [
        *((where, False, "eval") for where in whole),
        ("Tagger.rnn", True, "write"),
        ("Tagger.rnn", False, "eval"),
        *((where, True, "train") for where in whole),
    ]
    assert same_line(guard.changes[3].place, line_of("training = True", evaluate))
    serials = [change.serial for change in guard.changes]
    assert serials == sorted(serials)
    assert len(set(serials)) == 4


def test_changes_do_not_grow_without_end() -> None:
    net = nn.ReLU()
    with modes.guard(net) as guard:
        for _ in range(1500):
            net.eval()
            net.train()
    assert len(guard.changes) == 1000


def test_changes_of_other_models_are_left_out() -> None:
    with modes.guard(KEPT) as guard:
        Other().eval()
    assert guard.changes == []


def test_a_part_that_the_model_took_in_later_is_known() -> None:
    net, part = Tagger(), nn.ReLU()
    with modes.guard(net) as guard:
        part.eval()
        net.extra = part
        a_step(net)
        part.train()
        net.late = nn.ReLU()
        net.late.eval()
    assert [(change.where, change.training) for change in guard.changes] == [("extra", True), ("late", False)]


def test_the_guard_prints_what_it_knows() -> None:
    net = nn.Sequential(*(nn.ReLU() for _ in range(6)), nn.LSTM(4, 3)).eval()
    with modes.guard(net, on_violation="collect") as guard:
        assert str(guard) == "guard, open: no findings\nno mode changes"
        net(features())[0].sum().backward()
        net.train()
        net[2].training = False
    text = re.sub(r"\S+test_guard.py:\d+", "FILE", str(guard))
    head, *_, changes, first, second = text.splitlines()
    assert head == "guard, closed: 1 finding"
    assert changes == "2 mode changes:"
    assert first == "  train() at FILE: the model itself, 0, 1, 2 and 4 more to train"
    assert second == "  training = False at FILE: 2 to eval"
    assert "error  6 (LSTM)" in text
    assert guard._repr_html_().startswith("<pre>guard, closed")
    assert "&lt;" not in guard._repr_html_() or "<lambda>" not in guard._repr_html_()


def test_the_guard_as_json_types() -> None:
    net = Tagger()
    with modes.guard(net, on_violation="collect") as guard:
        net.eval()
        forward_and_backward(net)
    told = guard.to_dict()
    assert told["schema"] == 1
    assert [found["id"] for found in told["findings"]] == ["rnn.eval_backward"]
    assert told["changes"][0] | {"place": "", "serial": 0} == {
        "where": "",
        "training": False,
        "by": "eval",
        "place": "",
        "serial": 0,
    }


def test_a_guard_that_was_not_entered_cannot_be_left() -> None:
    """And is as good as new afterwards."""
    rnn = nn.LSTM(3, 4)
    guard = modes.guard(rnn, on_violation="collect")
    with pytest.raises(RuntimeError, match="left, but not entered"):
        guard.__exit__(None, None, None)
    with guard:
        rnn.eval()(torch.rand(5, 2, 3))[0].sum().backward()
    assert [finding.id for finding in guard.findings] == ["rnn.eval_backward"]


def test_control_characters_in_names_do_not_reach_a_terminal() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a\x1b[31mb\nc", nn.LSTM(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = next(self.children())(x)[0]
            return out

    odd = Odd().eval()
    with modes.guard(odd) as guard:
        loss = odd(torch.rand(5, 2, 3)).sum()
        with pytest.raises(RuntimeError) as caught:
            loss.backward()
    for text in (str(caught.value), str(guard), guard._repr_html_()):
        assert "\x1b" not in text
        assert "a\\x1b[31mb\\nc" in text


class Holder:
    def __init__(self, rnn: nn.Module) -> None:
        self.rnn = rnn


@pytest.mark.parametrize(
    "hide",
    [lambda rnn: [rnn], lambda rnn: {"a": [rnn]}, Holder, lambda rnn: lambda: rnn],
    ids=["list", "list in a dict", "object", "closure"],
)
def test_an_rnn_out_of_reach_is_the_models_however_it_is_held(hide: Any) -> None:
    rnn = nn.GRU(3, 4)
    model = nn.Linear(4, 2)
    model.hidden = hide(rnn)
    with modes.guard(model):
        loss = model(rnn.eval()(torch.rand(5, 2, 3))[0]).sum()
        with pytest.raises(RuntimeError, match="can only be called in training mode"):
            loss.backward()
