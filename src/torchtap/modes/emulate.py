"""cuDNN's rule on a CPU: under `emulate_cudnn()` RNNs on CPU tensors work, and fail, as on an NVIDIA GPU."""

from __future__ import annotations

from contextlib import ExitStack

from torchtap.modes import _rnn
from torchtap.modes._doors import RNN, opened
from torchtap.modes._given import Function, decorated, no_brackets

_process = ExitStack()
would_use_cudnn = _rnn.would_use_cudnn


def emulate_cudnn(bare: None = None, /) -> Emulation:
    """Run `nn.LSTM`, `nn.GRU` and `nn.RNN` on CPU tensors under cuDNN's rule: a GPU's error shows here.

    Inside, calls go through `aten::_cudnn_rnn`, for which Torchtap brings a CPU kernel: outputs, gradients
    and the random numbers taken are those of the CPU, while the graph gets the genuine `CudnnRnnBackward0`.
    So backward through a call whose **forward ran in eval mode** raises `RuntimeError: cudnn RNN backward can
    only be called in training mode`; double backward raises libtorch's own `NotImplementedError`.

    Context manager, and decorator of functions and coroutine functions; `TypeError` for generators, which run in
    pieces: open it inside them. Open for the whole process, like `torch.backends.cudnn.enabled`; may be
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
    the rule for good. Modules made by `torch.export` call libtorch themselves and stay native here, while on a GPU
    the mode that they were exported in decides.

    Raises `RuntimeError` if another package has registered CPU kernels for cuDNN's RNN already. `bare` is nothing: it
    is there so that `@emulate_cudnn` without brackets can be told.

    >>> import torch
    >>> rnn, x = torch.nn.LSTM(4, 3).eval(), torch.zeros(5, 2, 4)  # steps, batch, features
    >>> rnn(x)[0].sum().backward()  # on a CPU: fine
    >>> with emulate_cudnn():
    ...     rnn(x)[0].sum().backward()
    Traceback (most recent call last):
    ...
    RuntimeError: cudnn RNN backward can only be called in training mode
    """
    if bare is not None:
        raise no_brackets("emulate_cudnn", bare)
    return Emulation()


class Emulation:
    """See `emulate_cudnn`. May be entered several times, from several threads too."""

    def __init__(self) -> None:
        self._open: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            _rnn.emulate(True)
            stack.callback(_rnn.emulate, False)
            stack.enter_context(opened(RNN))
            self._open.append(stack.pop_all())

    def __exit__(self, *_: object) -> None:
        if not self._open:
            raise RuntimeError("emulate_cudnn() is left, but was not entered")
        self._open.pop().close()  # whichever: they are alike

    def __call__(self, function: Function) -> Function:
        """Open it for each call of `function`, and for each run of its coroutine."""
        return decorated("emulate_cudnn()", function, lambda: self, coroutines=True)


def emulate_in_this_process() -> None:
    """Open `emulate_cudnn()` and leave it open."""
    _process.enter_context(emulate_cudnn())
