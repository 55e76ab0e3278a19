"""cuDNN's rule on a CPU: under `emulate_cudnn()` RNNs on CPU tensors work, and fail, as on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torchtap.modes import _rnn
from torchtap.modes._doors import RNN, opened

_process = ExitStack()
would_use_cudnn = _rnn.would_use_cudnn


@contextmanager
def emulate_cudnn() -> Iterator[None]:
    """Run `nn.LSTM`, `nn.GRU` and `nn.RNN` on CPU tensors under cuDNN's rule: a GPU's error shows here.

    Inside, calls go through `aten::_cudnn_rnn`, for which Torchtap brings a CPU kernel: outputs, gradients
    and the random numbers taken are those of the CPU, while the graph gets the genuine `CudnnRnnBackward0`.
    So backward through a call whose **forward ran in eval mode** raises `RuntimeError: cudnn RNN backward can
    only be called in training mode`; double backward raises libtorch's own `NotImplementedError`.

    Context manager, and decorator of plain functions: the body of a generator or coroutine runs when the
    decorator has closed already. Open for the whole process, like `torch.backends.cudnn.enabled`; may be
    nested and used from several threads. After the last exit CPU RNNs are what they were before; graphs made
    inside keep the rule.

    `TORCHTAP_EMULATE_CUDNN=1` in the environment opens it at `import torchtap.modes`, for good; a test suite runs
    under it with `pytest --emulate-cudnn`.

    As cuDNN's own path, taken for float64, float32, float16 (bfloat16: see `would_use_cudnn`), padded, packed
    and unbatched inputs; not for empty ones, nor while `torch.backends.cudnn.enabled` is False. CUDA tensors
    go to the real thing. Cells (`nn.LSTMCell`, ...) never use cuDNN.

    Not imitated: cuDNN's own random stream, speed, memory and rounding; the warning about weights that are not
    one chunk of memory; direct calls of `torch.lstm` and its like. RNNs compiled by `torch.jit.script` stay
    native, whenever they were compiled; compiling one inside warns. What `torch.jit.trace` records inside keeps
    the rule for good. Exported RNNs never reach cuDNN, here as on a GPU.

    Raises `RuntimeError` if another package has registered CPU kernels for cuDNN's RNN already.

    >>> rnn, x = torch.nn.LSTM(4, 3).eval(), torch.zeros(5, 2, 4)  # steps, batch, features
    >>> rnn(x)[0].sum().backward()  # on a CPU: fine
    >>> with emulate_cudnn():
    ...     rnn(x)[0].sum().backward()
    Traceback (most recent call last):
    ...
    RuntimeError: cudnn RNN backward can only be called in training mode
    """
    _rnn.emulate(True)
    try:
        with opened(RNN):
            yield
    finally:
        _rnn.emulate(False)


def emulate_in_this_process() -> None:
    """Open `emulate_cudnn()` and leave it open."""
    _process.enter_context(emulate_cudnn())
