"""emulate_cudnn(): the decision table (what raises, what does not), where it applies, and that it leaves no trace.

The table is that of docs/modes.md; "raises" stands for the one error text of cuDNN's backward.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import doctest
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError, checkpoint

from tests.unit.modes.conftest import redirections
from torchtap import modes
from torchtap.modes import _kernels
from torchtap.modes.emulate import would_use_cudnn

VF: Any = torch._VF
EVAL_BACKWARD = f"^{_kernels.EVAL_BACKWARD}$"
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args: nn.RNN(*args, nonlinearity="relu"),
}


class Net(nn.Module):
    """Embedding, RNN, head: the model of every row unless the row says otherwise."""

    def __init__(self, kind: str = "lstm") -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.rnn = KINDS[kind](5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.rnn(self.embed(tokens))
        result: Tensor = self.head(out)
        return result


def tokens() -> Tensor:
    return torch.randint(0, 7, (6, 3))


def features() -> Tensor:
    return torch.randn(6, 3, 5)


# --- the rows: each builds its situation under emulation and ends in the call that raises or does not ---


def mode_at_forward_and_backward(forward: bool, backward: bool) -> None:
    net = Net().train(forward)
    loss = net(tokens()).sum()
    net.train(backward)
    loss.backward()


def rnn_attribute_written() -> None:
    net = Net()
    net.rnn.training = False
    net(tokens()).sum().backward()


def rnn_train_root_eval() -> None:
    net = Net().eval()
    net.rnn.train()
    net(tokens()).sum().backward()


def losses_of_both_modes_summed() -> None:
    net = Net()
    (net.train()(tokens()).sum() + net.eval()(tokens()).sum()).backward()


def state_of_an_eval_forward(detach: bool) -> None:
    rnn = nn.LSTM(5, 4)
    _, state = rnn.eval()(features())
    if detach:
        state = tuple(t.detach() for t in state)
    rnn.train()(features(), state)[0].sum().backward()


def only_final_state_used(which: int) -> None:
    nn.LSTM(5, 4).eval()(features())[1][which].sum().backward()


def rnn_output_not_used() -> None:
    net = Net().eval()
    embedded = net.embed(tokens())
    net.rnn(embedded)
    embedded.sum().backward()


def loss_times_zero() -> None:
    (Net().eval()(tokens()) * 0).sum().backward()


def gradients_of_later_parameters_only() -> None:
    net = Net().eval()
    torch.autograd.grad(net(tokens()).sum(), list(net.head.parameters()))


def backward_into_later_parameters_only() -> None:
    net = Net().eval()
    net(tokens()).sum().backward(inputs=list(net.head.parameters()))


def frozen_rnn(before: str) -> None:
    net = Net().eval()
    net.rnn.requires_grad_(False)
    state, x = None, features()
    if before == "embedding":
        x = net.embed(tokens())
    if before == "learnable state":
        state = (torch.zeros(1, 3, 4, requires_grad=True), torch.zeros(1, 3, 4))
    if before == "input":
        x.requires_grad_()
    net.head(net.rnn(x, state)[0]).sum().backward()


def forward_without_grad(context: Any) -> None:
    with context():
        loss = Net().eval()(tokens()).sum()
    loss.backward()


def output_detached() -> None:
    net = Net().eval()
    net.head(net.rnn(net.embed(tokens()))[0].detach()).sum().backward()


def cells(kind: Callable[..., nn.Module]) -> None:
    cell = kind(5, 4).eval()
    state: Any = None
    for x in features():
        state = cell(x, state)
    (state[0] if isinstance(state, tuple) else state).sum().backward()


def cudnn_off(forward: bool, backward: bool) -> None:
    net = Net().eval()
    with torch.backends.cudnn.flags(enabled=False) if forward else nullcontext():
        loss = net(tokens()).sum()
    with torch.backends.cudnn.flags(enabled=False) if backward else nullcontext():
        loss.backward()


def empty_batch() -> None:
    nn.LSTM(5, 4).eval()(torch.randn(6, 0, 5))[0].sum().backward()


def direct_forward() -> None:
    net = Net().eval()
    net.forward(tokens()).sum().backward()


def functional_gradient(train: bool) -> None:
    rnn = nn.LSTM(5, 4).train(train)
    torch.func.grad(lambda x: rnn(x)[0].sum())(features())


def checkpointed(forward: bool, backward: bool, reentrant: bool) -> None:
    rnn = nn.LSTM(5, 4, num_layers=2, dropout=0.3).train(forward)
    x = features().requires_grad_()
    loss = checkpoint(lambda x: rnn(x)[0], x, use_reentrant=reentrant).sum()
    rnn.train(backward)
    loss.backward()


def compiled(train: bool) -> None:
    net = Net().train(train)
    torch.compile(net, backend="aot_eager")(tokens()).sum().backward()


def traced_in_eval() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net: Any = torch.jit.trace(Net().eval(), tokens())
    net.train()
    assert net.training
    net(tokens()).sum().backward()


ROWS: list[tuple[str, Callable[[], None], str]] = [
    ("forward in eval, backward in eval", lambda: mode_at_forward_and_backward(False, False), "raises"),
    (
        "forward in eval, `train()` before backward",
        lambda: mode_at_forward_and_backward(False, True),
        "raises",
    ),
    ("forward in train, `eval()` before backward", lambda: mode_at_forward_and_backward(True, False), "ok"),
    ("forward in train, backward in train", lambda: mode_at_forward_and_backward(True, True), "ok"),
    ("`rnn.training = False` in a model in train mode", rnn_attribute_written, "raises"),
    ("only the RNN in train, the model in eval", rnn_train_root_eval, "ok"),
    ("a loss of a train forward plus one of an eval forward", losses_of_both_modes_summed, "raises"),
    ("state of an eval forward, fed into a train forward", lambda: state_of_an_eval_forward(False), "raises"),
    ("the same state, detached", lambda: state_of_an_eval_forward(True), "ok"),
    ("only `hy` of an eval forward in the loss", lambda: only_final_state_used(0), "raises"),
    ("only `cy` of an eval forward in the loss", lambda: only_final_state_used(1), "raises"),
    ("RNN in eval, its output not in the loss", rnn_output_not_used, "ok"),
    ("RNN in eval, loss multiplied by 0", loss_times_zero, "raises"),
    ("`torch.autograd.grad` for parameters after the RNN only", gradients_of_later_parameters_only, "ok"),
    ("`backward(inputs=...)` for parameters after the RNN only", backward_into_later_parameters_only, "ok"),
    ("frozen RNN in eval, input without gradient", lambda: frozen_rnn("nothing"), "ok"),
    ("frozen RNN in eval after a trained embedding", lambda: frozen_rnn("embedding"), "raises"),
    ("frozen RNN in eval, learnable initial state", lambda: frozen_rnn("learnable state"), "raises"),
    ("frozen RNN in eval, gradient of the input (saliency)", lambda: frozen_rnn("input"), "raises"),
    ("forward under `no_grad`", lambda: forward_without_grad(torch.no_grad), "does not require grad"),
    (
        "forward under `inference_mode`",
        lambda: forward_without_grad(torch.inference_mode),
        "does not require grad",
    ),
    ("RNN in eval, output detached", output_detached, "ok"),
    ("`LSTMCell` in eval", lambda: cells(nn.LSTMCell), "ok"),
    ("`GRUCell` in eval", lambda: cells(nn.GRUCell), "ok"),
    ("`RNNCell` in eval", lambda: cells(nn.RNNCell), "ok"),
    ("eval, cuDNN off at the forward", lambda: cudnn_off(True, False), "ok"),
    ("eval, cuDNN off at forward and backward", lambda: cudnn_off(True, True), "ok"),
    ("eval, cuDNN off at backward only", lambda: cudnn_off(False, True), "raises"),
    ("eval, empty batch", empty_batch, "ok"),
    ("eval, `rnn.forward(x)` instead of `rnn(x)`", direct_forward, "raises"),
    ("`torch.func.grad` in eval", lambda: functional_gradient(False), "raises"),
    ("`torch.func.grad` in train", lambda: functional_gradient(True), "ok"),
    ("checkpoint, eval at forward and backward", lambda: checkpointed(False, False, False), "raises"),
    ("checkpoint, train at forward and backward", lambda: checkpointed(True, True, False), "ok"),
    (
        "checkpoint, train at forward, eval at backward",
        lambda: checkpointed(True, False, False),
        "different metadata",
    ),
    (
        "checkpoint, eval at forward, train at backward",
        lambda: checkpointed(False, True, False),
        "different metadata",
    ),
    (
        "reentrant checkpoint, eval at forward, train at backward",
        lambda: checkpointed(False, True, True),
        "ok",
    ),
    (
        "reentrant checkpoint, train at forward, eval at backward",
        lambda: checkpointed(True, False, True),
        "raises",
    ),
    ("`torch.compile` (default), eval", lambda: compiled(False), "raises"),
    ("`torch.compile` (default), train", lambda: compiled(True), "ok"),
    ("`torch.jit.trace` in eval, then `train()`", traced_in_eval, "raises"),
]


@pytest.mark.parametrize(("situation", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
@pytest.mark.filterwarnings("ignore:.*(use_reentrant|torch.jit|is deprecated)")
def test_decision_table(situation: Callable[[], None], expected: str) -> None:
    """Every row ends as on a GPU. The same rows never raise cuDNN's error natively: see the test below."""
    errors = {"raises": EVAL_BACKWARD, "different metadata": "different metadata"}
    with modes.emulate_cudnn():
        if expected == "ok":
            situation()
        else:
            with pytest.raises((RuntimeError, CheckpointError), match=errors.get(expected, expected)):
                situation()


DOCS = Path(__file__).parents[3] / "docs" / "modes.md"


def test_docs_show_this_table() -> None:
    """Every row, in this order, with this result."""
    shown = re.findall(
        r"^\| (.+) \| (raises|ok|another error: .+) \|$", DOCS.read_text("utf-8"), re.MULTILINE
    )
    assert shown == [
        (name, end if end in ("raises", "ok") else f"another error: {end}") for name, _, end in ROWS
    ]


def test_example_in_the_docs_runs() -> None:
    assert doctest.testfile(str(DOCS), module_relative=False).failed == 0


RAISING = {name: situation for name, situation, expected in ROWS if expected == "raises"}


@pytest.mark.parametrize("situation", RAISING.values(), ids=RAISING)
@pytest.mark.filterwarnings("ignore:.*(use_reentrant|torch.jit|is deprecated)")
def test_the_rows_that_raise_are_silent_on_a_plain_cpu(situation: Callable[[], None]) -> None:
    """What emulation is for: without it no CPU test would ever show these."""
    situation()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rnn_gets_the_genuine_node(kind: str) -> None:
    rnn = KINDS[kind](5, 4)
    mode = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}[kind]
    with modes.emulate_cudnn():
        for train in (True, False):
            node = rnn.train(train)(features())[0].grad_fn
            assert (node.name(), node._saved_train, node._saved_mode) == ("CudnnRnnBackward0", train, mode)
        with pytest.raises(RuntimeError, match=EVAL_BACKWARD):
            rnn(features())[0].sum().backward()


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_already_made_stay_after_the_error(layers: int) -> None:
    """LSTM(eval), then GRU(train), then head: those after the LSTM have their gradient when it raises."""
    lstm, gru, head = nn.LSTM(5, 4, layers).eval(), nn.GRU(4, 4), nn.Linear(4, 2)
    with modes.emulate_cudnn():
        loss = head(gru(lstm(features())[0])[0]).sum()
        with pytest.raises(RuntimeError, match=EVAL_BACKWARD):
            loss.backward()
    assert gru.weight_ih_l0.grad is not None
    assert head.weight.grad is not None
    assert lstm.weight_ih_l0.grad is None


def test_a_second_backward_after_the_error_finds_the_graph_freed() -> None:
    """So a retry needs a new forward; train() before the retry does not help."""
    net = Net().eval()
    with modes.emulate_cudnn():
        loss = net(tokens()).sum()
        with pytest.raises(RuntimeError, match=EVAL_BACKWARD):
            loss.backward()
        net.train()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_double_backward_is_refused_by_libtorch_itself() -> None:
    rnn, x = nn.LSTM(5, 4), features().requires_grad_()
    with modes.emulate_cudnn():
        (gradient,) = torch.autograd.grad(rnn(x)[0].sum(), [x], create_graph=True)
        with pytest.raises(NotImplementedError, match="Double backwards is not supported for CuDNN RNNs"):
            gradient.sum().backward()


def test_double_backward_works_with_cudnn_off_around_the_forward() -> None:
    """The way out that the refusal names. float64: oneDNN's LSTM has no second derivative either."""
    rnn, x = nn.LSTM(5, 4).double(), features().double().requires_grad_()
    with modes.emulate_cudnn(), torch.backends.cudnn.flags(enabled=False):
        (gradient,) = torch.autograd.grad(rnn(x)[0].sum(), [x], create_graph=True)
        gradient.sum().backward()
    assert rnn.weight_ih_l0.grad is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch.func itself scripts something
def test_vmap_and_forward_derivatives_are_refused_as_on_a_gpu() -> None:
    rnn, x = nn.LSTM(5, 4), features()
    with modes.emulate_cudnn():
        with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::_cudnn_rnn"):
            torch.func.vmap(lambda x: rnn(x)[0])(x[None])
        with pytest.raises(NotImplementedError, match="forward AD with _cudnn_rnn"):
            torch.func.jvp(lambda x: rnn(x)[0], (x,), (x,))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_names_the_node() -> None:
    rnn = nn.LSTM(5, 4).eval()
    with modes.emulate_cudnn(), torch.autograd.detect_anomaly(check_nan=False):
        loss = rnn(features())[0].sum()
        with (
            pytest.raises(RuntimeError, match=EVAL_BACKWARD),
            pytest.warns(UserWarning, match="Error detected in CudnnRnnBackward0. Traceback of forward call"),
        ):
            loss.backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_anomaly_mode_blames_the_rnn_as_a_whole_for_nan() -> None:
    """A GRU is many small nodes on a CPU and one node on a GPU."""
    out, _ = nn.GRU(5, 4)(features())
    with (
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match=r"Function '(?!CudnnRnn)\w+' returned nan"),
    ):
        out.backward(torch.full_like(out, torch.inf))
    with modes.emulate_cudnn(), torch.autograd.detect_anomaly():
        out, _ = nn.GRU(5, 4)(features())
        with pytest.raises(RuntimeError, match=r"Function 'CudnnRnnBackward0' returned nan"):
            out.backward(torch.full_like(out, torch.inf))
    assert not torch.is_anomaly_enabled()


def test_full_backward_hooks_see_what_they_see_on_a_gpu() -> None:
    """The pre-hook of the RNN fires before the error, the hook after its backward does not."""
    net, fired = Net().eval(), []
    net.rnn.register_full_backward_pre_hook(lambda *_: fired.append("pre"))
    net.rnn.register_full_backward_hook(lambda *_: fired.append("post"))
    with modes.emulate_cudnn(), pytest.raises(RuntimeError, match=EVAL_BACKWARD):
        net(tokens()).sum().backward()
    assert fired == ["pre"]


# --- where it applies ---


@pytest.mark.parametrize(
    ("dtype", "taken"),
    [(torch.float64, True), (torch.float32, True), (torch.float16, True), (torch.int64, False)],
)
def test_dtypes_that_cudnn_takes(dtype: torch.dtype, taken: bool) -> None:
    assert would_use_cudnn(torch.zeros(2, 3, 4, dtype=dtype)) is taken


@pytest.mark.parametrize(
    ("torch_version", "cudnn", "taken"),
    [
        ("2.9.1", 91002, False),
        ("2.9.1", None, False),
        ("2.14.1", 91002, False),
        ("2.14.1", 92400, True),
        ("2.14.1", None, True),
    ],
)
def test_bfloat16_follows_the_build(
    monkeypatch: pytest.MonkeyPatch, torch_version: str, cudnn: int | None, taken: bool
) -> None:
    """2.9.1+cu128 runs bfloat16 natively; PyTorch 2.10 with cuDNN 9.13 hands it to cuDNN (pytorch#164411)."""
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(torch_version))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
    assert would_use_cudnn(torch.zeros(2, 3, 4, dtype=torch.bfloat16)) is taken


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_casts_outside_the_node(kind: str, dtype: torch.dtype) -> None:
    """As on a GPU: the RNN runs in the low precision, gradients arrive in that of the parameters."""
    rnn = KINDS[kind](5, 4)
    x = features().requires_grad_()
    with modes.emulate_cudnn():
        with torch.autocast("cpu", dtype=dtype):
            out, _ = rnn(x)
            low_again = rnn(x)[0].sum()
        out.sum().backward()
        with torch.autocast("cpu", dtype=dtype):
            low_again.backward()  # backward under autocast must not cast a second time
    assert out.dtype == dtype
    assert out.grad_fn.name() == "CudnnRnnBackward0"
    assert [leaf.grad.dtype for leaf in (x, *rnn.parameters()) if leaf.grad is not None] == [
        torch.float32
    ] * 5


def test_backward_under_autocast_computes_as_the_forward_did() -> None:
    """The forward ran in float32, so does what backward needs of it."""
    rnn, x = nn.LSTM(5, 4), features().requires_grad_()
    with modes.emulate_cudnn():
        (expected,) = torch.autograd.grad(rnn(x)[0].sum(), [x])
        loss = rnn(x)[0].sum()
        with torch.autocast("cpu"):
            (got,) = torch.autograd.grad(loss, [x])
    assert torch.equal(got, expected)


def test_autocast_leaves_double_precision_alone() -> None:
    rnn = nn.LSTM(5, 4).double()
    with modes.emulate_cudnn(), torch.autocast("cpu"):
        assert rnn(features().double())[0].dtype == torch.float64


def test_meta_tensors_stay_native() -> None:
    rnn = nn.LSTM(5, 4, device="meta")
    with modes.emulate_cudnn():
        out, _ = rnn(torch.randn(6, 3, 5, device="meta"))
    assert out.device.type == "meta"
    assert out.grad_fn.name() != "CudnnRnnBackward0"


def test_a_wrong_call_gets_libtorchs_own_message() -> None:
    rnn = nn.LSTM(5, 4)
    with modes.emulate_cudnn():
        with pytest.raises(RuntimeError, match=r"input\.size"):
            rnn(torch.randn(6, 3, 9))
        with pytest.raises(TypeError, match="lstm"):
            VF.lstm(features())
        with pytest.raises(TypeError, match="lstm"):
            VF.lstm("not a tensor", None, [], True, 1, 0.0, True, False, False)


def test_keyword_arguments_are_understood() -> None:
    rnn, x = nn.GRU(5, 4), features()
    names = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
    rest = dict(zip(names, (rnn._flat_weights, True, 1, 0.0, False, False), strict=True))
    packed = nn.utils.rnn.pack_sequence([x[:, 0]])
    with modes.emulate_cudnn():
        for out, _ in (
            VF.gru(input=x, hx=torch.zeros(1, 3, 4), **rest, batch_first=False),
            VF.gru(data=packed.data, batch_sizes=packed.batch_sizes, hx=torch.zeros(1, 1, 4), **rest),
        ):
            assert out.grad_fn.name() == "CudnnRnnBackward0"


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("strict", [False, True])
def test_exported_rnns_stay_decomposed(strict: bool) -> None:
    """On a GPU an exported RNN never reaches cuDNN, so no _cudnn_rnn may be recorded here either."""
    with modes.emulate_cudnn():
        program = torch.export.export(Net("gru").eval(), (tokens(),), strict=strict)
    assert "_cudnn_rnn" not in str(program.graph)


def test_rnns_that_are_compiled_into_the_graph_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """allow_rnn (off by default) makes torch.compile take the RNN into its graph."""
    import torch._dynamo

    monkeypatch.setattr(torch._dynamo.config, "allow_rnn", True)
    torch._dynamo.reset()
    with modes.emulate_cudnn():
        torch.compile(Net().eval(), backend="eager", fullgraph=True)(tokens()).sum().backward()
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripting_inside_is_refused_with_a_remark() -> None:
    class Scripted(nn.Module):  # a class of its own: torch.jit.script remembers what it has compiled
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.rnn(x)[0]
            return out

    module = Scripted()
    torch.jit._state._clear_class_state()
    refusal = pytest.raises(torch.jit.frontend.NotSupportedError, match=r"leave emulate_cudnn\(\) first")
    with modes.emulate_cudnn(), refusal:
        torch.jit.script(module)


# --- it leaves no trace ---


def node_name() -> str:
    name: str = nn.LSTM(5, 4)(features())[0].grad_fn.name()
    return name


def test_rnns_are_native_again_afterwards() -> None:
    native = node_name()
    with modes.emulate_cudnn():
        assert node_name() == "CudnnRnnBackward0"
        assert redirections() == ["lstm", "gru", "rnn_tanh", "rnn_relu"]
    assert node_name() == native != "CudnnRnnBackward0"
    assert redirections() == []


def test_nesting_ends_with_the_outermost() -> None:
    with modes.emulate_cudnn():
        with modes.emulate_cudnn():
            pass
        assert node_name() == "CudnnRnnBackward0"
    assert redirections() == []


def test_exceptions_end_it() -> None:
    with pytest.raises(KeyError), modes.emulate_cudnn(), modes.emulate_cudnn():
        raise KeyError
    assert redirections() == []


def test_decorator_opens_it_for_each_call() -> None:
    emulated = modes.emulate_cudnn()(node_name)
    assert [emulated(), emulated()] == ["CudnnRnnBackward0"] * 2
    assert redirections() == []


def test_open_from_several_threads_until_the_last_one_leaves() -> None:
    inside, leave = threading.Barrier(9), threading.Event()

    def hold() -> None:
        with modes.emulate_cudnn():
            inside.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert node_name() == "CudnnRnnBackward0"  # process-wide: this thread opened nothing
    leave.set()
    for thread in threads:
        thread.join(10)
    assert redirections() == []


def test_many_entries_and_exits_at_once_keep_the_count() -> None:
    def flicker() -> None:
        for _ in range(200):
            with modes.emulate_cudnn():
                pass

    threads = [threading.Thread(target=flicker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert redirections() == []
    assert node_name() != "CudnnRnnBackward0"


def test_a_redirection_that_was_there_before_is_used_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def watched(*args: Any) -> Any:
        calls.append(len(args))
        return torch.gru(*args)

    monkeypatch.setattr(torch._VF, "gru", watched, raising=False)
    with modes.emulate_cudnn():
        nn.GRU(5, 4)(torch.randn(6, 0, 5))  # empty: not for cuDNN, so it goes the old way
    assert calls == [9]
    assert VF.gru is watched


def test_a_function_kept_from_inside_is_native_outside() -> None:
    with modes.emulate_cudnn():
        kept = VF.lstm
    rnn, x, state = nn.LSTM(5, 4), features(), torch.zeros(1, 3, 4)
    out: Any = kept(x, (state, state), rnn._flat_weights, True, 1, 0.0, True, False, False)[0]
    assert out.grad_fn.name() != "CudnnRnnBackward0"


def test_random_state_and_buffers_are_those_of_a_native_run() -> None:
    """A forward without dropout draws nothing, emulated or not."""
    before = torch.get_rng_state()
    rnn = nn.LSTM(5, 4)
    x = torch.zeros(6, 3, 5)
    torch.set_rng_state(before)
    with modes.emulate_cudnn():
        rnn(x)[0].sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
