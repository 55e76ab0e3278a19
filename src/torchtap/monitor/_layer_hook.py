"""The hooks of a watch: what runs in every forward of every watched layer, so every line here costs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from torchtap.hooks import tensors
from torchtap.hooks.gradient import follow
from torchtap.hooks.lifecycle import Harmless
from torchtap.monitor._compiled import NOTHING, TICKET, number_of, saw
from torchtap.monitor._keys import MOST_CALLS, Key
from torchtap.monitor._state import MOST_GRADIENTS, State
from torchtap.monitor.stats import refusal

_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_graph_task = torch._C._current_graph_task_id
_NO_TASK = -1
_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.uint8))
_BEGINS = "begins"
_MOST_TOKENS = 1 << 20  # of whole numbers, which are copied to be measured


class LayerHook(Harmless):
    """The forward hook of one layer."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_compiled_calls",
        "_gradients",
        "_layer",
        "_numbers",
        "_numbers_of_first",
        "_pass",
        "_recall",
        "_state",
        "calls",
        "number",
        "refused",
        "zeros",
    )

    def __init__(self, state: State, layer: int, *, zeros: bool, gradients: bool) -> None:
        self._state = state
        self._layer = layer
        self._gradients = gradients
        self.zeros = zeros
        self._pass = -1
        self._call = self._recall = 0
        # There is one of these for each layer: what few need is made when they do.
        self._compiled_calls: dict[str, int] | None = None
        self._numbers: dict[tuple[int, str], tuple[int, int]] | None = None
        self._numbers_of_first: tuple[int, int] | None = None
        """Of the output itself in the first call: most layers have no other."""
        self.number = number_of(self)
        """What compiled code knows it by."""
        self.calls = 0
        """Of the whole run, sampled or not, with gradients or without; recomputations are none."""
        self.refused: dict[str, int] | None = None
        """Why outputs were not measured, and how many; None: all were."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        if is_compiling():
            for path, tensor in (("", output),) if type(output) is Tensor else tensors(output):
                saw(tensor.detach(), TICKET, self.number, path, torch.is_grad_enabled())
            return
        if _is_tracing():
            return
        state = self._state
        if _graph_task() != _NO_TASK:
            if state.sampling and self._gradients:
                self._recomputed(output)
            return
        self.calls += 1
        if not state.sampling or not (_grad_enabled() or state.training_pass):
            return
        if self._pass != state.passes:
            self._pass = state.passes
            self._call = self._recall = 0
        if "_is_replica" in module.__dict__:
            call = self._call_of_replica()
        else:
            call = self._call
            if call < MOST_CALLS - 1:
                self._call = call + 1
        if type(output) is Tensor:
            self._measure(output, call, "")
        else:
            for path, tensor in tensors(output):
                self._measure(tensor, call, path)

    def _call_of_replica(self) -> int:
        """DataParallel runs each replica in a thread that it makes for one forward: there it is counted."""
        here = self._state.in_thread.calls
        call = here.get(self.number, 0)
        here[self.number] = min(call + 1, MOST_CALLS - 1)
        return call

    def saw(self, tensor: Tensor, path: str, *, recording: bool) -> None:
        """Compiled code has this output. Its gradient is not seen: that is the business of the compiled backward."""
        state = self._state
        state.compiled.add(self._layer)
        if self._pass != state.passes or self._compiled_calls is None:
            self._pass = state.passes
            self._compiled_calls = {}
        call = self._compiled_calls.get(path, 0)
        self._compiled_calls[path] = min(call + 1, MOST_CALLS - 1)
        self.calls += 1
        if state.sampling and recording:
            self._measure(tensor, call, path)

    def _measure(self, tensor: Tensor, call: int, path: str) -> None:
        numbers = self._numbers_of(call, path) if call or path else self._numbers_of_first  # a call less
        if numbers is None:
            if (why := refusal(tensor)) is not None:
                self._refuse(why)
                return
            numbers = self._number(call, path)
        if (why := self._state.measure(tensor, numbers[0], zeros=self.zeros)) is not None:
            self._refuse(why)
        elif self._gradients and tensor.requires_grad:
            self._follow(tensor, numbers[1])

    def _refuse(self, why: str) -> None:
        refused = self.refused = self.refused or {}
        refused[why] = refused.get(why, 0) + 1

    def _numbers_of(self, call: int, path: str) -> tuple[int, int] | None:
        """Those of an output and of its gradient, where it was measured before."""
        if not call and not path:
            return self._numbers_of_first
        return self._numbers.get((call, path)) if self._numbers is not None else None

    def _number(self, call: int, path: str) -> tuple[int, int]:
        table = self._state.keys
        made = (
            table.number(Key(self._layer, call, path, "output")),
            table.number(Key(self._layer, call, path, "gradient")),
        )
        if not call and not path:
            self._numbers_of_first = made
        else:
            others = self._numbers = self._numbers or {}
            others[call, path] = made
        return made

    def _follow(self, tensor: Tensor, number: int) -> None:
        """Measure the gradient when it comes."""
        state = self._state
        state.gradients += 1
        if state.gradients <= MOST_GRADIENTS:
            of_leaf = follow(tensor, _GradientHook(state.me, number))
            if of_leaf is not None:
                state.of_leaves.append(of_leaf)

    def _recomputed(self, output: Any) -> None:
        """A checkpoint runs the forward again within backward. Its values are known; of a reentrant one, which ran
        without a graph the first time, the gradients come only here."""
        call = self._recall
        self._recall = min(call + 1, MOST_CALLS - 1)
        for path, tensor in tensors(output):
            if tensor.requires_grad and refusal(tensor) is None:
                numbers = self._numbers_of(call, path) or self._number(call, path)
                self._follow(tensor, numbers[1])


class _GradientHook:
    """On one tensor. It may outlive the watch, so it keeps nothing alive."""

    __slots__ = ("_measured_in", "_number", "_state")

    __torch_unserializable__ = True  # as torch.utils.hooks.unserializable_hook marks it

    def __init__(self, state: weakref.ref[State], number: int) -> None:
        self._state = state
        self._number = number
        self._measured_in = -1

    def __call__(self, gradient: Tensor) -> None:
        state = self._state()
        # A second backward through the same graph calls it again: the first counts.
        if state is None or not state.sampling or self._measured_in == state.step:
            return
        self._measured_in = state.step
        state.measure(gradient, self._number, zeros=False)


class PassHook(Harmless):
    """The forward pre-hook of the model itself: a pass begins. Measures the inputs, whole numbers too."""

    __slots__ = ("__weakref__", "_state", "number")

    def __init__(self, state: State) -> None:
        self._state = state
        self.number = number_of(self)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        if is_compiling():
            saw(NOTHING, TICKET, self.number, _BEGINS, torch.is_grad_enabled())
            for path, tensor in tensors((args, kwargs)):
                saw(tensor.detach(), TICKET, self.number, path, torch.is_grad_enabled())
            return
        if _is_tracing() or _graph_task() != _NO_TASK:
            return
        training = _grad_enabled()
        self._state.begin_pass(training=training)
        for path, tensor in tensors((args, kwargs)) if training else ():
            self._measure(tensor, path)

    def saw(self, tensor: Tensor, path: str, *, recording: bool) -> None:
        """Compiled code has this input, or its pass begins."""
        if path == _BEGINS:
            self._state.begin_pass(training=recording)
        elif recording:
            self._measure(tensor, path)

    def _measure(self, tensor: Tensor, path: str) -> None:
        state = self._state
        if not state.sampling:
            return
        values = tensor
        if tensor.dtype in _WHOLE and tensor.numel() <= _MOST_TOKENS:
            values = tensor.detach().double()
        if refusal(values) is None:
            number = state.keys.number(Key(-1, 0, path, "input"))
            if values is not tensor:
                state.whole_inputs.add(number)
            state.measure(values, number, zeros=False)
