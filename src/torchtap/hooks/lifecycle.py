"""Forward hooks that do no harm: they change no output, go when they should, and no copy of a model has them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from torchtap.hooks.selection import Layer

Seen = Callable[[nn.Module, tuple[Any, ...], Any], object]
"""(module, positional inputs, output)"""
SeenAll = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], object]
"""(module, positional inputs, inputs by name, output)"""
SeenBefore = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], object]
"""(module, positional inputs, inputs by name)"""


class Harmless:
    """A hook that returns None, since what a hook returns would replace the output, and that no copy has.

    A copy of it, or what is loaded from a file, is a method of the standard library that takes anything and does
    nothing: so the copy of a watched model (an EMA, a checkpoint) is not watched, and needs no Torchtap to be loaded.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Quiet(Harmless):
    """One that calls a function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *seen: Any) -> None:
        self._function(*seen)


# Where a module has its forward hooks, and what is special about some.
_TABLES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Hooks:
    """Forward hooks on layers, removed together.

    >>> import torch
    >>> from torch import nn
    >>> from torchtap.hooks import select
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> with Hooks() as hooks:
    ...     for layer in select(net):
    ...         _ = hooks.add(layer, lambda module, args, output, name=layer.name: print(name, output.shape))
    ...     _ = net(torch.ones(1, 2))
    0 torch.Size([1, 2])
    1 torch.Size([1, 2])
    >>> net[0]._forward_hooks
    OrderedDict()
    """

    def __init__(self) -> None:
        self.refused: list[tuple[Layer, str]] = []
        """The layers that could not be hooked, each with the reason in words."""
        self._at: list[tuple[weakref.ref[nn.Module], int]] = []
        """Whose hooks they are, and the number of each. Not PyTorch's handles, which are larger than all else here."""
        self._lock = threading.Lock()

    def add(self, layer: Layer, function: Seen) -> bool:
        """Have `function(module, args, output)` called after each call of this layer.

        What it returns is not used; what it raises reaches the caller of the model. The hook is the last of the layer's
        hooks, so that it sees what the layer gives in the end. Under `nn.DataParallel` `module` is a replica and calls
        come from several threads: bind the name to the function, do not look the module up. False where the layer
        cannot be hooked: the reason is in `refused`.
        """
        return self._add(layer, layer.module.register_forward_hook, function)

    def add_with_inputs(self, layer: Layer, function: SeenAll) -> bool:
        """As `add`, for `function(module, args, kwargs, output)`: inputs that are given by name are seen, too."""
        return self._add(
            layer, lambda hook: layer.module.register_forward_hook(hook, with_kwargs=True), function
        )

    def add_before(self, layer: Layer, function: SeenBefore) -> bool:
        """As `add`, for `function(module, args, kwargs)` before each call: an operation in place may change them."""
        return self._add(
            layer, lambda hook: layer.module.register_forward_pre_hook(hook, with_kwargs=True), function
        )

    def _add(
        self, layer: Layer, register: Callable[[Any], RemovableHandle], function: Callable[..., object]
    ) -> bool:
        with self._lock:
            if (why := refusal(layer)) is not None:
                self.refused.append((layer, why))
                return False
            handle = register(function if isinstance(function, Harmless) else Quiet(function))
            self._at.append((weakref.ref(layer.module), handle.id))
            return True

    def remove(self) -> None:
        """Take all hooks off. Doing it again does nothing."""
        with self._lock:
            while self._at:
                module, number = self._at.pop()
                if (there := module()) is not None:
                    for table in _TABLES:
                        getattr(there, table).pop(number, None)

    def __len__(self) -> int:
        """How many hooks there are now."""
        return len(self._at)

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()


def recomputing() -> bool:
    """Whether a backward is running: a forward now is one that activation checkpointing repeats, and not another call.

    Both kinds of `torch.utils.checkpoint` recompute inside a backward; FSDP2 tells it by the same sign.
    False in code that torch.compile traces, which would have to stop for the question: that runs as often as it is
    called.
    """
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)


def is_aside() -> bool:
    """Whether the forward that runs now is none of the training's own: it is compiled, traced, inside a transform of
    `torch.func`, runs without gradients, or is repeated by activation checkpointing."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or not torch.is_grad_enabled()
        or recomputing()
    )


def compiled_runs_eagerly() -> bool:
    """Whether compiled models run as they were written now: inside `torch.compiler.set_stance("force_eager")`."""
    stance = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    return getattr(stance, "stance", None) == "force_eager"


def refusal(layer: Layer) -> str | None:
    """Why this layer cannot be hooked, in words; None where it can."""
    module = layer.module
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "it is a ScriptModule: TorchScript runs no Python hooks. Watch the module that it was made from"
        )
    if not hasattr(module, "_forward_hooks"):
        return "it is half made: its __init__ did not call super().__init__()"
    if not compiled_runs_eagerly() and any(_has_run_compiled(each, module) for each in layer.compiled):
        return (
            "torch.compile has compiled it, or a model of its class, already, and PyTorch ignores hooks that come after"
            " that. Hook it before the first compiled call, or call torch._dynamo.reset() and hook it then: the next "
            "call compiles it anew, hooks included"
        )
    return None


def _has_run_compiled(compiled: nn.Module, module: nn.Module) -> bool:
    """Whether there is compiled code for this module, below one whose call torch.compile was asked to compile.

    It is kept with the code of the forward that was compiled, so it is that of all models of this class: PyTorch does
    not look at hooks when it takes it for another one. Where torch.compile had to leave the outer one as it is, it is
    the module's own forward.
    """
    outer = getattr(compiled, "_orig_mod", compiled)
    codes = [_code(outer), _code(module)]
    if type(outer).__module__.startswith("torch.") and (
        theirs := sys.modules.get("torch._dynamo.external_utils")
    ):
        # torch.compile does not look into PyTorch's own files, so it wraps their call into a function of its own.
        codes += [each for each in theirs.wrap_inline.__code__.co_consts if isinstance(each, CodeType)]
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
    return any(entries(code) for code in codes if code is not None)


def _code(module: nn.Module) -> CodeType | None:
    """The code of its forward."""
    forward = vars(module).get("forward", type(module).forward)
    forward = getattr(forward, "_torchdynamo_orig_callable", forward)
    code = getattr(getattr(forward, "__func__", forward), "__code__", None)
    return code if isinstance(code, CodeType) else None
