"""The emulation against the real cuDNN: the same rows, messages and rules on an NVIDIA GPU.

Run with `pytest -m gpu tests/gpu`. Not run yet on any GPU: what fails here is news about the emulation or about this
file, in this order.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from tests.unit.modes.test_emulate import EVAL_BACKWARD, KINDS, ROWS, features
from torchtap import modes
from torchtap.modes.emulate import would_use_cudnn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize(("situation", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
@pytest.mark.filterwarnings("ignore")
def test_decision_table_holds_on_cudnn(situation: Callable[[], None], expected: str) -> None:
    """The rows are written without devices; a default device puts them on the GPU. No emulation here."""
    torch.manual_seed(0)
    errors = {"raises": EVAL_BACKWARD}
    with CUDA:
        if expected == "ok":
            situation()
        else:
            with pytest.raises((RuntimeError, CheckpointError), match=errors.get(expected, expected)):
                situation()


@pytest.mark.parametrize("kind", KINDS)
def test_emulation_leaves_cuda_tensors_to_the_real_thing(kind: str) -> None:
    rnn, x = KINDS[kind](5, 4).to(CUDA), features().to(CUDA)
    plain, _ = rnn(x)
    with modes.emulate_cudnn():
        emulated, _ = rnn(x)
        on_cpu, _ = KINDS[kind](5, 4)(x.cpu())
    names = [out.grad_fn.name() for out in (plain, emulated, on_cpu)]
    assert names == ["CudnnRnnBackward0"] * 3
    assert torch.equal(plain, emulated)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [3, 0])
@pytest.mark.parametrize("enabled", [True, False])
def test_would_use_cudnn_is_what_cudnn_does(dtype: torch.dtype, batch: int, enabled: bool) -> None:
    """bfloat16 holds for compute capability 8.0 and newer, which `would_use_cudnn` assumes."""
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("bfloat16 needs compute capability 8.0")
    rnn = nn.LSTM(5, 4, device=CUDA, dtype=dtype)
    x = torch.randn(6, batch, 5, device=CUDA).to(dtype)
    with torch.backends.cudnn.flags(enabled=enabled):
        expected = would_use_cudnn(x)
        node = rnn(x)[0].grad_fn
    assert (node is not None and node.name() == "CudnnRnnBackward0") is expected


@pytest.mark.parametrize("kind", KINDS)
def test_differentiable_eval_gives_eval_outputs(kind: str) -> None:
    """cuDNN may take another algorithm in train mode, so equal to rounding only. TF32 off, else 1e-5 is too tight."""
    rnn = KINDS[kind](64, 64, 2).to(CUDA)
    rnn.dropout = 0.5
    x = torch.randn(30, 8, 64, device=CUDA)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        with torch.no_grad():
            expected, _ = rnn.eval()(x)
        with modes.differentiable_eval(rnn):
            out, _ = rnn(x)
        out.sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in rnn.parameters())


def test_reserve_is_empty_in_eval_only() -> None:
    rnn, x = nn.LSTM(5, 4, device=CUDA), features().to(CUDA)
    sizes = [rnn.train(train)(x)[0].grad_fn._saved_result3.numel() for train in (True, False)]
    assert sizes[0] > 0
    assert sizes[1] == 0


def test_state_that_is_not_contiguous_is_refused_in_the_emulations_words() -> None:
    rnn, x = nn.GRU(5, 4, device=CUDA), features().to(CUDA)
    with pytest.raises(RuntimeError, match=r"^rnn: hx is not contiguous$"):
        rnn(x, torch.zeros(1, 1, 4, device=CUDA).expand(1, 3, 4))


def test_no_gradient_at_all_is_no_error_even_in_eval() -> None:
    """Here the emulation is known to differ: cuDNN leaves `.grad` None, the emulation writes zeros."""

    class Swallow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *_: torch.Tensor) -> None:
            return None

    rnn = nn.LSTM(5, 4, device=CUDA).eval()
    Swallow.apply(rnn(features().to(CUDA))[0]).sum().backward()
    assert all(p.grad is None for p in rnn.parameters())
