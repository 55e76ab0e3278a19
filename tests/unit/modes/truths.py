"""What must hold for cuDNN's RNN wherever it runs: real on a GPU, emulated on a CPU. Each takes the device.

`tests/gpu/test_cudnn_truth.py` runs these on a GPU, `test_truths.py` on a CPU under `emulate_cudnn()`.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.modes.situations import EVAL_BACKWARD, KINDS, Net, features, tokens
from torchtap import modes
from torchtap.modes.emulate import would_use_cudnn


def node_and_saved_flag(device: str) -> None:
    for number, kind in enumerate(("relu", "tanh", "lstm", "gru")):
        rnn, x = KINDS[kind](5, 4).to(device), features().to(device)
        for train in (True, False):
            node: Any = rnn.train(train)(x)[0].grad_fn
            assert (node.name(), node._saved_train, node._saved_mode) == ("CudnnRnnBackward0", train, number)


def flag_is_read_after_the_graph_is_freed(device: str) -> None:
    out, _ = nn.LSTM(5, 4).to(device)(features().to(device))
    out.sum().backward()
    assert out.grad_fn._saved_train is True


def reserve_is_empty_in_eval_only(device: str) -> None:
    rnn, x = nn.LSTM(5, 4).to(device), features().to(device)
    sizes = [rnn.train(train)(x)[0].grad_fn._saved_result3.numel() for train in (True, False)]
    assert sizes[0] > 0
    assert sizes[1] == 0


def error_text_letter_by_letter(device: str) -> None:
    loss = nn.GRU(5, 4).to(device).eval()(features().to(device))[0].sum()
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    assert type(caught.value) is RuntimeError
    assert str(caught.value) == "cudnn RNN backward can only be called in training mode"


def states_that_are_not_contiguous(device: str) -> None:
    rnn, x = nn.GRU(5, 4).to(device), features().to(device)
    with pytest.raises(RuntimeError, match=r"^rnn: hx is not contiguous$"):
        rnn(x, torch.zeros(1, 1, 4, device=device).expand(1, 3, 4))


class Swallow(torch.autograd.Function):
    """Lets no gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        return None


def no_gradient_at_all(device: str) -> None:
    """No error, not even in eval mode, and `.grad` stays None."""
    for train in (True, False):
        rnn, x = nn.LSTM(5, 4).to(device).train(train), features().to(device).requires_grad_()
        Swallow.apply(rnn(x)[0]).sum().backward()
        assert [leaf.grad for leaf in (x, *rnn.parameters())] == [None] * 5


def what_cudnn_takes(device: str) -> None:
    """bfloat16 holds for compute capability 8.0 and newer, which `would_use_cudnn` assumes."""
    dtypes = [torch.float64, torch.float32, torch.float16]
    if device == "cpu" or torch.cuda.get_device_capability() >= (8, 0):
        dtypes.append(torch.bfloat16)
    for dtype in dtypes:
        for batch in (3, 0):
            for enabled in (True, False):
                rnn, x = nn.LSTM(5, 4).to(device, dtype), torch.randn(6, batch, 5).to(device, dtype)
                with torch.backends.cudnn.flags(enabled=enabled):
                    expected = would_use_cudnn(x)
                    node = rnn(x)[0].grad_fn
                took = node is not None and node.name() == "CudnnRnnBackward0"
                assert took is expected, (dtype, batch, enabled)


def foreseen_and_blamed(device: str) -> None:
    """check_backward foresees it, guard says who was wrong: the same on a graph of cuDNN's own."""
    net, batch = Net().to(device), tokens().to(device)
    with modes.guard(net, on_violation="collect"):
        assert not modes.check_backward(net(batch).sum(), net)
        net.rnn.eval()
        loss = net(batch).sum()
        (finding,) = modes.check_backward(loss, net).findings
        with pytest.raises(RuntimeError, match=EVAL_BACKWARD.removesuffix("$")) as caught:
            loss.backward()
    assert (finding.where, finding.call) == ("rnn", 2)
    assert "situations.py" in str(finding.forward)
    assert "truths.py" in str(finding.set_by)
    assert str(caught.value).startswith("cudnn RNN backward can only be called in training mode")


def foreseen_without_having_been_watched(device: str) -> None:
    net, batch = Net().to(device), tokens().to(device)
    assert not modes.check_backward(net(batch).sum())
    assert modes.check_backward(net.eval()(batch).sum())


def eval_outputs_with_gradients(device: str) -> None:
    """cuDNN may take another algorithm in train mode, so equal to rounding only. TF32 off, else 1e-5 is too tight."""
    for kind in KINDS:
        rnn = KINDS[kind](64, 64, 2).to(device)
        rnn.dropout = 0.5
        x = torch.randn(30, 8, 64).to(device)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            with torch.no_grad():
                expected, _ = rnn.eval()(x)
            with modes.differentiable_eval(rnn):
                out, _ = rnn(x)
            out.sum().backward()
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in rnn.parameters())


TRUTHS: list[Callable[[str], None]] = [
    node_and_saved_flag,
    flag_is_read_after_the_graph_is_freed,
    reserve_is_empty_in_eval_only,
    error_text_letter_by_letter,
    states_that_are_not_contiguous,
    no_gradient_at_all,
    what_cudnn_takes,
    foreseen_and_blamed,
    foreseen_without_having_been_watched,
    eval_outputs_with_gradients,
]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2}
"""Between two devices, relative to the largest value. TF32 is off."""


def outputs_and_gradients(rnn: nn.RNNBase, x: Tensor) -> list[Tensor]:
    """Of one training call, on the CPU and in float64, to be compared across devices."""
    rnn.zero_grad()
    out, _ = rnn(x)
    out.sin().sum().backward()
    return [
        t.detach().double().cpu() for t in (out, *(p.grad for p in rnn.parameters() if p.grad is not None))
    ]


def compare_with_emulation(device: str, kind: str, dtype: torch.dtype) -> None:
    """The same module and batch, here under whatever runs cuDNN's rule on `device`, there emulated on the CPU."""
    rnn = KINDS[kind](16, 12, 2).to(dtype)
    x = torch.randn(9, 4, 16).to(dtype)
    with modes.emulate_cudnn():
        expected = outputs_and_gradients(rnn, x)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        got = outputs_and_gradients(rnn.to(device), x.to(device))
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=TOLERANCE[dtype] * max(1.0, float(theirs.abs().max()))
        )
