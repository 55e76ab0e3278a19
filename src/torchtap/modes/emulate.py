"""cuDNN's rule on a CPU: under `emulate_cudnn()` RNNs on CPU tensors work, and fail, as on an NVIDIA GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchtap.modes import _kernels
from torchtap.modes._torch import VF, cudnn_rnn, register_once

_REDIRECTED = {
    "lstm": _kernels.LSTM,
    "gru": _kernels.GRU,
    "rnn_tanh": _kernels.RNN_TANH,
    "rnn_relu": _kernels.RNN_RELU,
}
# Both overloads of each function take nine arguments. The fourth tells them apart: a bool, or the list params.
_REST = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
_PADDED = ("input", "hx", *_REST, "batch_first")
_PACKED = ("data", "batch_sizes", "hx", *_REST)

_lock = threading.Lock()
_depth = 0  # how many emulate_cudnn() are open in this process, in whatever thread
_before: dict[str, Any] = {}  # what torch._VF held itself before the first of them: normally nothing


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

    As cuDNN's own path, taken for float64, float32, float16 (bfloat16: see `would_use_cudnn`), padded, packed
    and unbatched inputs; not for empty ones, nor while `torch.backends.cudnn.enabled` is False. CUDA tensors
    go to the real thing. Cells (`nn.LSTMCell`, ...) never use cuDNN.

    Not imitated: cuDNN's own random stream, speed, memory and rounding; the warning about weights that are
    not one chunk of memory; direct calls of `torch.lstm` and its like; modules scripted with
    `torch.jit.script` before, and scripting an RNN inside is refused (torch keeps the half-made class, so after
    such a refusal scripting RNNs needs a new process). What `torch.jit.trace` records inside keeps
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
    register_once({"_cudnn_rnn": _kernels.forward, "_cudnn_rnn_backward": _kernels.backward})
    _enter()
    try:
        yield
    finally:
        _exit()


def _enter() -> None:
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            own = vars(VF)
            _before.update({name: own[name] for name in _REDIRECTED if name in own})
            for name in _REDIRECTED:
                setattr(VF, name, _redirect(name))


def _exit() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            for name in _REDIRECTED:
                if name in _before:
                    setattr(VF, name, _before.pop(name))
                else:
                    delattr(VF, name)


def would_use_cudnn(x: Tensor) -> bool:
    """Whether cuDNN would run an RNN on this input on a GPU: libtorch's `use_cudnn`, device left out.

    Depends on `x` (shape and dtype only) and on `torch.backends.cudnn.enabled` now. bfloat16 is taken from
    PyTorch 2.10 with cuDNN 9.13 on, on GPUs of compute capability 8.0; such a GPU is assumed, and for builds
    without cuDNN the one that the default build of that version has.

    >>> would_use_cudnn(torch.zeros(5, 2, 4)), would_use_cudnn(torch.zeros(5, 0, 4))
    (True, False)
    """
    if not torch.backends.cudnn.enabled or x.numel() == 0:
        return False
    return x.dtype in _DTYPES or (x.dtype == torch.bfloat16 and _takes_bfloat16())


_DTYPES = frozenset({torch.float64, torch.float32, torch.float16})


def _takes_bfloat16() -> bool:
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    # TorchVersion compares by number; None: a build without CUDA.
    return torch.__version__ >= "2.10" and (cudnn is None or cudnn >= 91300)


def _redirect(name: str) -> Callable[..., Any]:
    """What stands on `torch._VF` in place of `name` while emulation is open."""
    native = getattr(VF, name)  # looked up now: what was there before, libtorch's as a rule

    # torch.compile runs RNNs eagerly unless told otherwise; looking into this it would compile them after all.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def eager(*args: Any, **kwargs: Any) -> Any:
        packed = "batch_sizes" in kwargs or (len(args) > 3 and not isinstance(args[3], bool))
        call = {**dict(zip(_PACKED if packed else _PADDED, args, strict=False)), **kwargs}
        x = call.get("data" if packed else "input")
        if (
            _depth == 0  # somebody kept this function; emulation is over
            or len(call) != len(_PADDED)  # not a call that libtorch would accept: let it say so
            or not isinstance(x, Tensor)
            or x.device.type != "cpu"  # on a GPU the real thing decides
            or not would_use_cudnn(x)
        ):
            return native(*args, **kwargs)
        return _call_cudnn(_REDIRECTED[name], x, call, packed)

    # torch.jit.script cannot compile this, and shows the next line when it says so: hence the remark there.
    def redirected(
        *args: Any, **kwargs: Any
    ) -> Any:  # to script an RNN in a new process, leave emulate_cudnn() first
        # An RNN in a graph is decomposed and never reaches cuDNN, on a GPU too: exported, or allow_rnn is set.
        if torch.compiler.is_compiling() and (
            not torch.compiler.is_dynamo_compiling() or torch._dynamo.config.allow_rnn
        ):
            return native(*args, **kwargs)
        return eager(*args, **kwargs)

    return redirected


def _call_cudnn(mode: int, x: Tensor, call: dict[str, Any], packed: bool) -> tuple[Tensor, ...]:
    """A call of `aten::lstm` (or gru, ...) made as one of `aten::_cudnn_rnn`, as libtorch does for CUDA."""
    hx, cx = call["hx"] if mode == _kernels.LSTM else (call["hx"], None)
    weights = call["params"]
    if torch.is_autocast_enabled("cpu"):
        # On a GPU autocast casts what goes into the operator, outside its node, and leaves float64 alone.
        low = torch.get_autocast_dtype("cpu")
        x, hx, cx, *weights = (
            t.to(low) if t is not None and t.dtype != torch.float64 else t for t in (x, hx, cx, *weights)
        )
    hidden_size = int((hx if cx is None else cx).size(-1))
    proj_size = int(hx.size(-1)) if hx.size(-1) != hidden_size else 0
    out, hy, cy, _reserve, _weight_buf = cudnn_rnn(
        x,
        weights,
        (4 if call["has_biases"] else 2) + (proj_size > 0),  # weights of one layer and direction
        None,  # weight_buf: cuDNN's flat copy of the weights, which the CPU has no use for
        hx,
        cx,
        mode,
        hidden_size,
        proj_size,
        call["num_layers"],
        not packed and call["batch_first"],
        call["dropout"],
        call["train"],
        call["bidirectional"],
        call["batch_sizes"].tolist() if packed else (),
        None,  # dropout_state: cuDNN's random state, on the GPU only
    )
    return (out, hy) if cx is None else (out, hy, cy)
