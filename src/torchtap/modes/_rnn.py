"""What stands in for `torch._VF.lstm` and its like while somebody watches: cuDNN's rule, or only a look.

`torch.nn.modules.rnn` calls these functions for every forward, also of a direct `.forward()` and of a recomputation
inside backward.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.modes import _kernels
from torchtap.modes._frames import stack_from
from torchtap.modes._observer import OBSERVER
from torchtap.modes._torch import cudnn_rnn, is_fake, not_traced, register_once

FUNCTIONS = {
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
_emulations = 0  # how many emulate_cudnn() are open in this process, in whatever thread


def emulate(begin: bool) -> None:
    """One emulation more, or one less."""
    global _emulations
    if begin:
        register_once({"_cudnn_rnn": _kernels.forward, "_cudnn_rnn_backward": _kernels.backward})
    with _lock:
        _emulations += 1 if begin else -1


def is_emulated() -> bool:
    """Whether an `emulate_cudnn()` is open."""
    return _emulations > 0


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


def by_name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one of the `FUNCTIONS` by their names; "data" stands for packed sequences only."""
    packed = "batch_sizes" in kwargs or (len(args) > 3 and not isinstance(args[3], bool))
    return {**dict(zip(_PACKED if packed else _PADDED, args, strict=False)), **kwargs}


def stand_in(name: str, native: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """What stands on `torch._VF` in place of `name` while somebody watches."""
    mode = FUNCTIONS[name]

    # torch.compile runs RNNs eagerly unless told otherwise; looking into this it would compile them after all.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def eager(*args: Any, **kwargs: Any) -> Any:
        call = by_name(args, kwargs)
        packed = "data" in call
        x = call.get("data" if packed else "input")
        # Not a call that libtorch would accept: let it say so. And what is traced has no values.
        if len(call) != len(_PADDED) or not isinstance(x, Tensor) or is_fake(x):
            return native()(*args, **kwargs)
        with not_traced():
            cudnn = would_use_cudnn(x)
        emulated = cudnn and _emulations > 0 and x.device.type == "cpu"  # on a GPU the real thing decides
        outputs = _call_cudnn(mode, x, call, packed) if emulated else native()(*args, **kwargs)
        frame: FrameType | None = sys._getframe(1)
        # Out of torch.compiler.disable's own code and of `redirected`, whose code object torch.compile may replace.
        while frame is not None and frame.f_code.co_filename in between:
            frame = frame.f_back
        OBSERVER.ran_rnn(
            frame,
            outputs,
            call["params"],
            training=call["train"],
            cudnn=cudnn,
            enforced=emulated or (cudnn and x.is_cuda),
        )
        return outputs

    between = {__file__, eager.__code__.co_filename}

    def redirected(*args: Any, **kwargs: Any) -> Any:
        # In a graph nothing of ours: compiled with allow_rnn it is decomposed and never reaches cuDNN, on a GPU too;
        # an exported program holds aten::lstm and may be loaded where there is no Torchtap.
        if torch.compiler.is_compiling() and (
            not torch.compiler.is_dynamo_compiling() or torch._dynamo.config.allow_rnn
        ):
            return native()(*args, **kwargs)
        return eager(*args, **kwargs)

    return redirected


def create_script_module(_: str, native: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """What stands in torch.jit while somebody watches: it says of RNNs that emulation will not reach them."""

    def create(
        nn_module: nn.Module, stubs_fn: Any, share_types: bool = True, is_tracing: bool = False
    ) -> Any:
        if _emulations and not is_tracing and any(isinstance(m, nn.RNNBase) for m in nn_module.modules()):
            _warn(f"{type(nn_module).__name__}: {_SCRIPTED}", sys._getframe(1))
        return native()(nn_module, stubs_fn, share_types, is_tracing)

    return create


_SCRIPTED = (
    "an RNN that torch.jit.script compiles calls libtorch without Python, so it stays native under emulate_cudnn(): "
    "cuDNN's error cannot show in it on a CPU. Run the module unscripted to see it"
)
_warned: dict[Any, Any] = {}  # what was said for which line: the filter "default" says it once


def _warn(text: str, frame: FrameType) -> None:
    here = stack_from(frame).here
    file, line = (here.file, here.lineno) if here else ("<unknown>", 0)
    warnings.warn_explicit(text, UserWarning, file, line, registry=_warned)


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
    with not_traced():
        hidden_size, out_size = (hx if cx is None else cx).size(-1), hx.size(-1)
        batch_sizes = call["batch_sizes"].tolist() if packed else ()
    proj_size = out_size if out_size != hidden_size else 0
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
        batch_sizes,
        None,  # dropout_state: cuDNN's random state, on the GPU only
    )
    if out.grad_fn is not None:
        out.grad_fn.register_hook(_kernels.nothing_comes_of_nothing)
    return (out, hy) if cx is None else (out, hy, cy)
