"""`find_nan(model, batch, loss)`: which operation, of which module, at which line, made the first NaN or Inf."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtap.hooks import select, tensors
from torchtap.hooks.lifecycle import Quiet
from torchtap.monitor._causes import cause_of
from torchtap.monitor._keys import input_name
from torchtap.monitor._ops import Looking, Origin, Values, Where, _Stop, values_of


@dataclass(frozen=True, slots=True)
class NanReport:
    """What `find_nan` found. False where all was finite.

    >>> bool(NanReport(None, None, ()))
    False
    """

    origin: Origin | None
    """The operation that began it; None where all was finite, or where the model or batch held NaN or Inf before."""
    became_nan: Origin | None
    """Where an infinity, the origin, became NaN later."""
    given: tuple[tuple[str, Values], ...]
    """Inputs, parameters and buffers that held NaN or Inf before anything ran."""
    harmless: Origin | None = None
    """An infinity on the way to a loss and gradients that are finite."""
    came_in: bool = False
    """The loss or a gradient is not finite, and no operation made it of finite values: it came in by a value that is
    neither parameter, buffer nor input, as a target of the loss, or as an infinity among inputs or buffers."""

    def __bool__(self) -> bool:
        return bool(self.origin or self.given or self.came_in)

    def __str__(self) -> str:
        if self.given:
            held = [f"  {name}: {values}" for name, values in self.given]
            return "\n".join(["NaN or Inf was there before anything ran:", *held])
        if self.came_in:
            return (
                "the loss or a gradient is NaN or Inf, and no operation made it of finite values: it came in from "
                "outside, as a target of the loss, a tensor that is no parameter or buffer, or an infinity in the "
                "inputs or buffers\ndo     torch.isfinite(target).all(), and the same for each of these"
            )
        if self.origin is None:
            text = "all values and gradients are finite"
            return (
                f"{text} (an infinity in between did no harm: {_at(self.harmless)})"
                if self.harmless
                else text
            )
        cause, remedy = cause_of(self.origin)
        lines = [
            f"{'NaN' if any(each.nans for each in self.origin.outputs) else 'Inf'} first in {_at(self.origin)}",
            *(f"  given  {each}" for each in self.origin.inputs),
            *(f"  gave   {each}" for each in self.origin.outputs),
        ]
        if self.became_nan is not None:
            lines.append(f"  and NaN came of it in {_at(self.became_nan)}")
        return "\n".join([*lines, f"cause  {cause}", f"do     {remedy}"])


def _at(origin: Origin | None) -> str:
    if origin is None:
        return ""
    what = origin.operator + (f" (backward: {origin.node})" if origin.node else "")
    where = origin.where
    if where is None:
        return what
    module = "" if where.module is None else f" of {where.module or 'the model itself'} ({where.kind})"
    call = f", call {where.call + 1}" if where.call else ""
    line = f", at {where.place}" if where.place else ""
    if where.place and where.place.text:  # it cannot be read where the code came from a string
        line += f": {where.place.text}"
    return f"{what}{module}{call}{line}"


def find_nan(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any], Tensor] | None = None,
    *,
    backward: bool = True,
) -> NanReport:
    """Run a batch once, looking at every operation, and say which one first made NaN or Inf, forward or backward.

    `batch`: what the model is called with: a tensor, a tuple of positional inputs, or a mapping of named ones. `loss`:
    makes the loss of the model's output, a tensor of one value; None: the output's `.loss` where there is one, else the
    sum of its floating tensors. `backward` False: the forward alone.

    Any device; waits for it at each operation, so it is slow. The model is afterwards as it was: buffers, gradients
    and random states are put back. Not seen: what runs within compiled or scripted code, whose result is looked at as
    a whole. Raises what the model raises, and TypeError where `loss` gives no tensor.

    >>> class Log(nn.Module):
    ...     def forward(self, x):
    ...         return x.log()
    >>> report = find_nan(nn.Sequential(nn.Identity(), Log()), torch.tensor([1.0, -1.0]), torch.sum)
    >>> report.origin.operator, report.origin.where.module
    ('aten.log', '1')
    """
    if isinstance(batch, Mapping):
        return look_for_nan(model, (), dict(batch), loss, backward=backward)
    return look_for_nan(model, batch if isinstance(batch, tuple) else (batch,), {}, loss, backward=backward)


def look_for_nan(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Callable[[Any], Tensor] | None,
    *,
    backward: bool,
) -> NanReport:
    """`find_nan`, given what the model is called with."""
    given = tuple(_given(model, args, kwargs))
    if given:
        return NanReport(None, None, given)
    looking = Looking()
    with _kept(model), _modules_told(model, looking):
        finite = _run(functools.partial(model, *args, **kwargs), model, loss, looking, backward)
    origin = looking.infinite or looking.nan
    if finite:
        return NanReport(None, None, (), harmless=looking.infinite)
    return NanReport(origin, looking.nan if looking.nan is not origin else None, (), came_in=origin is None)


def _run(
    forward: Callable[[], Any],
    model: nn.Module,
    loss: Callable[[Any], Tensor] | None,
    looking: Looking,
    backward: bool,
) -> bool:
    """Whether the loss, and all gradients of parameters, are finite."""
    with contextlib.suppress(_Stop), torch.enable_grad(), looking:
        value = _loss(forward(), loss)
        if backward and value.requires_grad:
            looking.backward = True
            value.backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        with torch._C._DisableTorchDispatch():
            return all(bool(torch.isfinite(each).all()) for each in (value, *gradients))
    return False


def _loss(output: Any, loss: Callable[[Any], Tensor] | None) -> Tensor:
    if loss is not None:
        value = loss(output)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"find_nan(loss=...) makes a tensor of the output; it gave a {type(value).__name__}"
            )
        return value.mean() if value.numel() != 1 else value
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    floating = [each.float().sum() for _, each in tensors(output) if each.is_floating_point()]
    if not floating:
        raise TypeError("find_nan: the output holds no floating tensor. Give loss=, which makes one of it")
    return torch.stack(floating).sum()


def _given(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Values]]:
    """What is not finite before anything runs. Infinite buffers and inputs are masks as a rule: only NaN counts."""
    for name, parameter in model.named_parameters():
        if _is_looked_at(parameter) and not bool(torch.isfinite(parameter).all()):
            yield f"parameter {name}", values_of(parameter)
    others = [(f"buffer {name}", buffer) for name, buffer in model.named_buffers()]
    inputs = [(input_name(path), each) for path, each in tensors((args, kwargs))]
    for name, tensor in [*others, *inputs]:
        if _is_looked_at(tensor) and bool(torch.isnan(tensor).any()):
            yield name, values_of(tensor)


def _is_looked_at(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not tensor.is_meta and tensor.layout is torch.strided


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Buffers, gradients and random states afterwards as before."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = {each.device for each in (*model.parameters(), *model.buffers()) if each.is_cuda}
    of_python, of_numpy = random.getstate(), np.random.get_state()  # what models and data use
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng([device.index for device in devices]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextlib.contextmanager
def _modules_told(model: nn.Module, looking: Looking) -> Iterator[None]:
    """`looking.modules` holds the calls that run."""
    calls: Counter[str] = Counter()
    handles = []

    def enter(name: str, kind: str) -> Callable[..., None]:
        def entered(*_: object) -> None:
            looking.modules.append(Where(name, kind, calls[name], None))
            calls[name] += 1

        return entered

    def left(*_: object) -> None:
        looking.modules.pop()

    try:
        for layer in select(model, "all"):
            if not isinstance(layer.module, torch.jit.ScriptModule):
                module = layer.module
                handles.append(
                    module.register_forward_pre_hook(Quiet(enter(layer.name, layer.kind)), prepend=True)
                )
                handles.append(module.register_forward_hook(Quiet(left), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
