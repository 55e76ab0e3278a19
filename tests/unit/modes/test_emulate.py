"""emulate_cudnn(): the decision table (what raises, what does not), where it applies, and that it leaves no trace.

The table is that of docs/modes.md; "raises" stands for the one error text of cuDNN's backward.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import asyncio
import doctest
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.modes.conftest import redirections
from tests.unit.modes.situations import EVAL_BACKWARD, KINDS, ROWS, Net, ends, features, tokens
from torchtap import modes
from torchtap.modes.emulate import would_use_cudnn

VF: Any = torch._VF


@pytest.mark.parametrize(("situation", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
@pytest.mark.filterwarnings("ignore:.*(use_reentrant|torch.jit|is deprecated)")
def test_decision_table(situation: Callable[[], None], expected: str) -> None:
    """Every row ends as on a GPU. The same rows never raise cuDNN's error natively: see the test below."""
    with modes.emulate_cudnn():
        ends(situation, expected)


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
def test_nothing_of_emulation_is_exported(strict: bool) -> None:
    """The program shall hold aten::gru, or its parts, and run anywhere: no _cudnn_rnn may be recorded."""
    with modes.emulate_cudnn():
        program = torch.export.export(Net("gru").eval(), (tokens(),), strict=strict)
    assert "_cudnn_rnn" not in str(program.graph)


# --- torch.jit.script, which compiles past it ---


class Everything(nn.Module):
    """One of each module behind whose functions somebody may stand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Sequential(nn.Dropout(0.4), nn.AlphaDropout(0.4), nn.Dropout(0.2, inplace=True))
        self.channels = nn.Sequential(nn.Dropout1d(0.4), nn.FeatureAlphaDropout(0.4))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3)
        self.lstm, self.gru = nn.LSTM(8, 8, 2, dropout=0.3), nn.GRU(8, 8)
        self.tanh, self.relu = nn.RNN(8, 8), nn.RNN(8, 8, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = self.channels(self.drop(x))
        x = self.attention(x, x, x)[0]
        x = self.gru(self.lstm(x)[0])[0]
        result: Tensor = self.relu(self.tanh(x)[0])[0]
        return result


def result_of(module: Any, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    out = module(x)
    return [out, *torch.autograd.grad(out.sum(), list(module.parameters()))]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script", "ignore:.*stays native")
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("door", ["emulate_cudnn", "guard"])
def test_scripted_modules_compute_what_they_compute_otherwise(door: str, train: bool) -> None:
    """Compiled inside or outside, run inside or outside: equal results, and RNNs that stay native."""
    module, x = Everything().train(train), torch.randn(6, 3, 8)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    expected = result_of(module, x)

    def check(scripted: Any) -> None:
        module.load_state_dict(state)  # BatchNorm's statistics, which the two share
        for ours, theirs in zip(result_of(scripted, x), expected, strict=True):
            torch.testing.assert_close(ours, theirs)

    def inside() -> Any:
        return (
            modes.emulate_cudnn() if door == "emulate_cudnn" else modes.guard(module, on_violation="collect")
        )

    torch.jit._state._clear_class_state()  # what was compiled once would be taken again
    before = torch.jit.script(module)
    with inside():
        check(before)
    torch.jit._state._clear_class_state()
    with inside():
        within = torch.jit.script(module)
        check(within)
    check(within)


@pytest.mark.filterwarnings("ignore:.*torch.jit.(script|trace)")
def test_it_says_so_when_an_rnn_is_scripted(recwarn: pytest.WarningsRecorder) -> None:
    """Once, for the line that asked; not for other modules, nor where nothing is emulated."""

    def said() -> list[str]:
        found = [str(each.message) for each in recwarn if "stays native" in str(each.message)]
        recwarn.clear()
        return found

    net, plain = Net("gru").eval(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
    with modes.emulate_cudnn():
        torch.jit.script(plain)
        torch.jit.trace(net, tokens())
        assert said() == []
        scripted = torch.jit.script(net)
        assert recwarn.list[-1].filename == __file__
        (text,) = said()
        assert text.startswith("Net: an RNN that torch.jit.script compiles")
        scripted(tokens()).sum().backward()  # on a GPU this raises
    with modes.guard(net, on_violation="collect"):
        torch.jit.script(net)
    torch.jit.script(net)
    assert said() == []


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("watch", [lambda _: modes.emulate_cudnn(), modes.guard], ids=["emulated", "guarded"])
def test_tracing_warns_of_nothing_that_is_done_here(
    watch: Callable[[nn.Module], Any], kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Sizes are tensors while torch.jit.trace runs, and it warns where one is compared or made an int."""
    rnn: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](5, 4)

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = rnn

        def forward(self, x: Tensor, lengths: Tensor) -> Any:
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data

    trace: Any = torch.jit.trace
    with watch(rnn):
        trace(rnn, (features(),))
        trace(Packed(), (torch.randn(3, 2, 5), torch.tensor([3, 2])), check_trace=False)
    assert [str(each.message) for each in recwarn if "/torchtap/" in each.filename] == []


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


def test_decorated_coroutines_run_inside() -> None:
    @modes.emulate_cudnn()
    async def name_later() -> str:
        await asyncio.sleep(0)
        return node_name()

    assert asyncio.run(name_later()) == "CudnnRnnBackward0"
    assert redirections() == []


def test_one_object_may_be_entered_again_and_inside_itself() -> None:
    emulation = modes.emulate_cudnn()
    for _ in range(2):
        with emulation, emulation:
            assert node_name() == "CudnnRnnBackward0"
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
