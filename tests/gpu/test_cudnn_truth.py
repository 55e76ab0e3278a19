"""The emulation against the real cuDNN: the same rows, messages, rules and numbers on an NVIDIA GPU.

Run with `pytest -m gpu tests/gpu/test_cudnn_truth.py`. What is asked here is asked of the emulation too, in
tests/unit/modes/test_emulate.py and test_truths.py. Not run yet on any GPU: what fails here is news about the
emulation or about this file, in this order.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.unit.modes.situations import KINDS, ROWS, Net, ends, features, tokens
from tests.unit.modes.truths import TOLERANCE, TRUTHS, compare_with_emulation
from torchtap import modes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu"),
    pytest.mark.filterwarnings("ignore"),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize(("situation", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_decision_table_holds_on_cudnn(situation: Callable[[], None], expected: str) -> None:
    """The rows are written without devices; a default device puts them on the GPU. No emulation here."""
    torch.manual_seed(0)
    with CUDA:
        ends(situation, expected)


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.__name__)
def test_truths_hold_on_cudnn(truth: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    truth("cuda")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_cudnn_are_those_of_the_emulation(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    compare_with_emulation("cuda", kind, dtype)


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


def test_scripted_rnns_follow_their_own_mode() -> None:
    """Not to be seen on a CPU, where a scripted RNN stays native: `training` is an attribute and no constant here."""
    rnn, x = torch.jit.script(torch.nn.GRU(5, 4)).to(CUDA), features().to(CUDA)
    rnn.train()(x)[0].sum().backward()
    out = rnn.eval()(x)[0].sum()
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        out.backward()


def test_exported_rnns_obey_the_mode_of_their_export() -> None:
    """Inferred: the program holds aten::lstm, which hands itself to cuDNN. On a CPU it stays native."""
    net, batch = Net().to(CUDA), tokens().to(CUDA)
    torch.export.export(net.train(), (batch,)).module()(batch).sum().backward()
    out = torch.export.export(net.eval(), (batch,)).module()(batch).sum()
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        out.backward()
