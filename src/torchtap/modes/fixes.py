"""Ways to run a model in the mode that you need, and to find it afterwards as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)
_RNN_NAMES = frozenset({"LSTM", "GRU", "RNN"})


@contextmanager
def differentiable_eval(model: Model) -> Iterator[Model]:
    """Outputs of eval mode and a backward pass that works on cuDNN: for saliency, attacks, frozen parts.

    Inside, every `nn.LSTM`, `nn.GRU` and `nn.RNN` of `model` (any device, any dtype) is in train mode with
    its dropout set to 0, so that cuDNN keeps what backward needs; every other module is in eval mode. After
    it, and after an exception, each module's own mode and each RNN's dropout are what they were. May be
    nested; also a decorator of plain functions (`@differentiable_eval(model)`), not of generators or coroutines,
    whose body runs when the decorator has closed already. Yields `model`.

    What it costs: cuDNN's reserve memory for each RNN call, as in training. Under `torch.no_grad()` nothing
    is gained, use plain `eval()` there. Modes are set by writing `training`, so that a `train()` or `eval()`
    that the model overrides is not called. Where backward runs does not matter; the forward must run inside.

    Outputs equal eval outputs bitwise on a CPU; not yet compared on a GPU, where cuDNN may choose another
    algorithm. Not promised: RNN subclasses or wrappers that drop something by themselves when `rnn.training`
    is set. Not for several threads that use one model at once: the mode belongs to the module.

    Raises `TypeError` for what is not an `nn.Module`, and for RNNs compiled by `torch.jit.script` (their
    dropout cannot be changed any more); the model is then unchanged.

    >>> model = nn.Sequential(nn.LSTM(4, 3, num_layers=2, dropout=0.5)).train()
    >>> with differentiable_eval(model):
    ...     model.training, model[0].training, model[0].dropout
    (False, True, 0.0)
    >>> model.training, model[0].training, model[0].dropout
    (True, True, 0.5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"differentiable_eval() takes an nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and getattr(module, "original_name", "") in _RNN_NAMES:
            raise TypeError(
                f"differentiable_eval(): {name or 'the model itself'} is a scripted {module.original_name}: "
                "its dropout cannot be changed any more. Use the model as it was before torch.jit.script"
            )
    with _restored(model):
        for module in model.modules():
            module.training = isinstance(module, nn.RNNBase)
            if isinstance(module, nn.RNNBase):
                module.dropout = 0.0
        yield model


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Give every module that is there now its own mode back afterwards, and every RNN its dropout."""
    modes = [(module, module.training) for module in model.modules()]
    dropouts = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for rnn, dropout in dropouts:
            rnn.dropout = dropout


@contextmanager
def preserve_modes(model: Model) -> Iterator[Model]:
    """Give every module its own mode back afterwards."""
    with _restored(model):
        yield model


@contextmanager
def eval_mode(model: Model, *, inference: bool = False) -> Iterator[Model]:
    """eval() and no_grad (or inference_mode) inside; every module's own mode afterwards."""
    with _restored(model), torch.inference_mode() if inference else torch.no_grad():
        model.eval()
        yield model


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Run RNNs without cuDNN: only the enabled switch."""
    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)
