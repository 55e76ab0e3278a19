"""The decision table of docs/modes.md as situations that run: under emulation on a CPU, and on a GPU with real cuDNN.

Written without devices: `with torch.device("cuda")` puts them on a GPU. "raises" stands for the one error text of
cuDNN's backward; any other word than that and "ok" is part of another error's text.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError, checkpoint

from torchtap.modes import _kernels

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


# --- the rows: each builds its situation and ends in the call that raises or does not ---


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


def eval_rnn_before_a_train_rnn() -> None:
    lstm, gru, head = nn.LSTM(5, 4).eval(), nn.GRU(4, 4), nn.Linear(4, 2)
    head(gru(lstm(features())[0])[0]).sum().backward()


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
    for train in (False, True):
        cell = kind(5, 4).train(train)
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


def second_backward() -> None:
    net = Net().eval()
    loss = net(tokens()).sum()
    with pytest.raises(RuntimeError, match=EVAL_BACKWARD):
        loss.backward()
    net.train()
    loss.backward()


def second_derivative(off: bool) -> None:
    rnn, x = nn.LSTM(5, 4).double(), features().double().requires_grad_()  # float32: oneDNN has none either
    with torch.backends.cudnn.flags(enabled=False) if off else nullcontext():
        (gradient,) = torch.autograd.grad(rnn(x)[0].sum(), [x], create_graph=True)
        gradient.sum().backward()


def over_a_batch_of_models() -> None:
    rnn, x = nn.LSTM(5, 4), features()
    torch.func.vmap(lambda x: rnn(x)[0])(x[None])


def forward_derivative() -> None:
    rnn, x = nn.LSTM(5, 4), features()
    torch.func.jvp(lambda x: rnn(x)[0], (x,), (x,))


def functional_gradient(train: bool) -> None:
    rnn = nn.LSTM(5, 4).train(train)
    torch.func.grad(lambda x: rnn(x)[0].sum())(features())


def checkpointed(forward: bool, backward: bool, reentrant: bool, *, dropout: bool = False) -> None:
    rnn = nn.LSTM(5, 4, num_layers=2, dropout=0.3)
    net = nn.Sequential(*[nn.Dropout()] * dropout, rnn).train(forward)
    x = features().requires_grad_()
    loss = checkpoint(lambda x: net(x)[0], x, use_reentrant=reentrant).sum()
    net.train(backward)
    loss.backward()


def compiled(train: bool) -> None:
    net = Net().train(train)
    torch.compile(net, backend="aot_eager")(tokens()).sum().backward()


def compiled_whole() -> None:
    torch._dynamo.reset()  # else what another row has compiled is taken
    torch.compile(Net().eval(), backend="aot_eager", fullgraph=True)(tokens())


def compiled_into_the_graph() -> None:
    """allow_rnn (off by default) makes torch.compile take the RNN into its graph."""
    import torch._dynamo

    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(allow_rnn=True):
            torch.compile(Net().eval(), backend="aot_eager", fullgraph=True)(tokens()).sum().backward()
    finally:
        torch._dynamo.reset()


def compiled_then_eval() -> None:
    net: Any = torch.compile(Net(), backend="aot_eager")
    net.eval()
    net(tokens()).sum().backward()


def exported_then_train() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.export(Net().eval(), (tokens(),)).module()
    module.train()


def copied(how: Callable[[nn.Module], nn.Module]) -> None:
    net = how(Net().eval())
    net(tokens()).sum().backward()


def weights_of_a_model_in_train() -> None:
    net = Net().eval()
    net.load_state_dict(Net().train().state_dict())
    net(tokens()).sum().backward()


def data_parallel() -> None:
    net = nn.DataParallel(Net())
    net.eval()
    net(tokens()).sum().backward()


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
    ("LSTM in eval, then a GRU in train mode", eval_rnn_before_a_train_rnn, "raises"),
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
    ("`LSTMCell`, whatever the mode", lambda: cells(nn.LSTMCell), "ok"),
    ("`GRUCell`, whatever the mode", lambda: cells(nn.GRUCell), "ok"),
    ("`RNNCell`, whatever the mode", lambda: cells(nn.RNNCell), "ok"),
    ("eval, cuDNN off at the forward", lambda: cudnn_off(True, False), "ok"),
    ("eval, cuDNN off at forward and backward", lambda: cudnn_off(True, True), "ok"),
    ("eval, cuDNN off at backward only", lambda: cudnn_off(False, True), "raises"),
    ("eval, empty batch", empty_batch, "ok"),
    ("eval, `rnn.forward(x)` instead of `rnn(x)`", direct_forward, "raises"),
    ("after the error, `train()` and backward through the same graph", second_backward, "a second time"),
    (
        "train, second derivatives (`create_graph=True`)",
        lambda: second_derivative(False),
        "Double backwards is not supported for CuDNN RNNs",
    ),
    ("the same, cuDNN off at the forward", lambda: second_derivative(True), "ok"),
    ("`torch.func.grad` in eval", lambda: functional_gradient(False), "raises"),
    ("`torch.func.grad` in train", lambda: functional_gradient(True), "ok"),
    (
        "`torch.func.vmap` over an RNN",
        over_a_batch_of_models,
        "Batching rule not implemented for aten::_cudnn_rnn",
    ),
    ("`torch.func.jvp` through an RNN", forward_derivative, "forward AD with _cudnn_rnn"),
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
        "checkpoint with a dropout in it, train at forward, eval at backward",
        lambda: checkpointed(True, False, False, dropout=True),
        "A different number of tensors",
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
    ("`torch.compile(model)`, then `eval()` on what it returned", compiled_then_eval, "raises"),
    (
        "`torch.compile` with `fullgraph=True`",
        compiled_whole,
        "Attempted to wrap RNN, GRU, or LSTM",
    ),
    ("`torch.compile` with `allow_rnn`, eval", compiled_into_the_graph, "ok"),
    ("`torch.jit.trace` in eval, then `train()`", traced_in_eval, "raises"),
    ("`torch.export` in eval, then `train()`", exported_then_train, "Calling train() is not supported"),
    ("a deep copy of a model in eval", lambda: copied(copy.deepcopy), "raises"),
    ("a model pickled in eval", lambda: copied(lambda net: pickle.loads(pickle.dumps(net))), "raises"),
    ("a model in eval, weights loaded from one in train", weights_of_a_model_in_train, "raises"),
    ("`DataParallel(model).eval()`", data_parallel, "raises"),
]


def ends(situation: Callable[[], None], expected: str) -> None:
    """Run a row and check how it ends."""
    if expected == "ok":
        situation()
        return
    text = EVAL_BACKWARD if expected == "raises" else re.escape(expected)
    with pytest.raises((RuntimeError, CheckpointError), match=text):
        situation()
