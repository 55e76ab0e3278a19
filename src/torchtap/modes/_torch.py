"""The private corners of PyTorch that the emulation stands on, each with its reason. No other module has any.

Seen to work alike in torch 2.9.1+cu128 and 2.14.1+cu130 (CPU only, no GPU); tests/unit/modes runs on both.

- `aten::_cudnn_rnn` and its backward: private by name, but their schema and the autograd formula that refers
  to them are in every build, with or without CUDA. Only the kernels are missing on a CPU.
- `torch._VF`: the module object through which `torch.nn.modules.rnn` looks up `lstm`, `gru`, `rnn_tanh` and
  `rnn_relu` at each call. What is set on it wins over what it finds in libtorch, and `delattr` gives that
  back.
- `torch._C._SetExcludeDispatchKeyGuard`: below an autograd kernel PyTorch excludes autograd for this thread,
  so that a kernel cannot record a graph by accident. The backward kernel needs one on purpose. The public way
  would be a new thread for every backward; `torch.enable_grad()` alone changes nothing here.
- `torch.jit._builtins._register_builtin`, `torch.jit._recursive.create_script_module`: torch.jit.script is told which
  operators our stand-ins are, and an RNN that it compiles is noticed there.
- `torch._C._set_cudnn_enabled`: `torch.backends.cudnn.flags()` sets more than this switch and reads `allow_tf32`, which
  raises where fp32_precision differs between operators; assigning `cudnn.enabled` raises after
  `disable_global_flags()`.
- `torch._C._get_tracing_state`, `_set_tracing_state`: while torch.jit.trace runs, sizes are traced tensors, and
  comparing them warns the user.
- `ScriptModule._c`: the public `graph` is that of `forward` only, which a scripted RNN does not have.
- `torch._C._current_graph_task_id`: as torch.utils.checkpoint tells that backward is running.
- `distributed_c10d._get_default_store`: the store that every process group is made with. A store of our own would need
  an address, and a collective to agree on it.
- `torch._C.DisableTorchFunction`: a tensor subclass of the user must not see or change what happens inside a
  kernel, as it could not inside a C++ one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch

Kernel = Callable[..., tuple[Any, ...]]

VF: Any = torch._VF
cudnn_rnn: Any = torch._cudnn_rnn
autograd: Any = torch.autograd
jit: Any = torch.jit._recursive


def register_builtin(function: Callable[..., Any], operator: str) -> None:
    """Tell torch.jit.script that this function is `operator`, such as `aten::lstm`: it could not compile it."""
    torch.jit._builtins._register_builtin(function, operator)


def is_fake(x: Any) -> bool:
    """Whether this tensor has no values: torch.compile and torch.export run code with such ones."""
    return isinstance(x, torch._subclasses.FakeTensor)


@contextmanager
def not_traced() -> Iterator[None]:
    """Inside, torch.jit.trace records nothing: sizes are numbers, and to compare them warns of nothing."""
    state = torch._C._get_tracing_state()
    if state is None:
        yield
        return
    switch: Any = torch._C
    switch._set_tracing_state(None)
    try:
        yield
    finally:
        switch._set_tracing_state(state)


def script_graphs(module: torch.jit.ScriptModule) -> list[Any]:
    """The graphs of this module's own methods, without those of the modules that they call."""
    compiled: Any = module._c
    return [compiled._get_method(name).graph for name in compiled._method_names()]


def runs_in_backward() -> bool:
    """Whether autograd runs a backward in this thread: what is called then recomputes a forward."""
    return int(torch._C._current_graph_task_id()) != -1


_lock = threading.Lock()
_library: torch.library.Library | None = None


def register_once(kernels: dict[str, Kernel]) -> None:
    """Give these `aten` operators CPU kernels, once a process, for good.

    For good, because a graph made under emulation may be run backward after it; and once, because registering
    twice is an error in torch 2.9 and a warning later. Raises `RuntimeError` where somebody else registered
    one already: then nothing is known about what it does.
    """
    global _library
    with _lock:
        if _library is not None:
            return
        for name in kernels:
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
                raise RuntimeError(
                    f"aten::{name} has a CPU kernel already, and not Torchtap's (torch {torch.__version__}): "
                    "cuDNN's rule cannot be emulated here. Leave out the package that registered it"
                )
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
        _library = library  # keeping the handle keeps the kernels


@contextmanager
def inside_kernel(*, recording: bool = False) -> Iterator[None]:
    """What a kernel's own calls need: no `__torch_function__`, no autocast; for `recording`, autograd.

    Anomaly mode is off meanwhile: it shall name cuDNN's node, not those that only exist in here.
    """
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if recording:
            # AutogradFunctionality stands for every backend's autograd key; AutogradCPU alone does nothing.
            for key in (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView):
                stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
            stack.enter_context(torch.enable_grad())
            if torch.is_anomaly_enabled():
                stack.enter_context(torch.autograd.set_detect_anomaly(False))
        yield


class CudnnSwitch:
    """`torch.backends.cudnn.enabled` set to False, by whoever needs it, in whatever thread and order."""

    _lock = threading.Lock()
    _open: ClassVar[list[CudnnSwitch]] = []

    def __init__(self, before: bool) -> None:
        self.before = before

    @classmethod
    @contextmanager
    def off(cls) -> Iterator[None]:
        """Off inside. Left in another order than entered, the first one's value is handed on and restored last."""
        with cls._lock:
            mine = cls(torch._C._get_cudnn_enabled())
            cls._open.append(mine)
            torch._C._set_cudnn_enabled(False)
        try:
            yield
        finally:
            with cls._lock:
                place = cls._open.index(mine)
                if place == len(cls._open) - 1:
                    torch._C._set_cudnn_enabled(mine.before)
                else:
                    cls._open[place + 1].before = mine.before
                del cls._open[place]


def default_store() -> Any:
    """The key-value store of the default process group: reading and writing it waits for no other rank."""
    return torch.distributed.distributed_c10d._get_default_store()
