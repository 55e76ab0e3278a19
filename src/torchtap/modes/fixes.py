"""Ways to run a model in the mode that you need, and to find it afterwards as it was.

| you want | use |
|---|---|
| to validate, to predict | `eval_mode(model)` |
| to call code that changes modes | `preserve_modes(model)` |
| gradients of eval outputs: saliency, attacks, frozen parts | `differentiable_eval(model)` |
| second derivatives through an RNN, or an RNN in a model that cannot be changed | `without_cudnn()` |

What holds for all: they restore what they change, also after an exception and when nested; each may be entered again
and is also a decorator of plain functions (`@eval_mode(model)`), a `TypeError` on generators and coroutines, whose body
would run when it has closed already. What they restore is what they found on entry: a module that is taken out of the
model inside gets its mode back, one that is put in keeps the mode it has. A module that occurs twice is restored once.
Modules in plain lists and dicts are not reached, as by `train()` and `eval()` themselves: use `nn.ModuleList`.
A mode belongs to the module and not to a thread: another thread that runs the same model meanwhile sees it too.
Several may be open on the same modules in several threads or coroutines: in whatever order they are left, each module
is in the end what it was before the first.
Wrappers (`DataParallel`, `DistributedDataParallel`, what `torch.compile` returns) may be given, or what is in them.
Nothing here looks at tensors: any device, any dtype, meta too. A model of which a part is half made, as
`super().__init__()` was not called, is a `TypeError` that names the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from torchtap.modes._given import models_given, no_brackets
from torchtap.modes._observer import OBSERVER, ModeChange, restoring
from torchtap.modes._overlap import LOCK, Overlap
from torchtap.modes._scope import Scope
from torchtap.modes._torch import CudnnSwitch
from torchtap.modes._walk import modules, named_modules

Model = TypeVar("Model", bound=nn.Module)


def eval_mode(model: Model, *more: nn.Module, inference: bool = False) -> Scope[Model]:
    """Eval mode and no gradients inside, and every module's own mode afterwards: for validation and prediction.

    Calls `eval()` of each model given and opens `torch.no_grad()`; with `inference`, `torch.inference_mode()`, which
    is a little faster and whose results cannot be used in training later. Yields `model`. Not for gradients of
    eval outputs: those need `differentiable_eval`.

    A `train()` or `eval()` that a model overrides is called, since it may do more than set the mode (merge LoRA
    weights, keep a BatchNorm frozen): on entry what `model.eval()` calls; afterwards `train(its own mode)` of each
    module that overrides `train` and whose mode has changed. So inside, the modules are in the modes that
    `model.eval()` leaves, which an override may decide. Both run outside of `no_grad` and `inference_mode`.

    Cost (benchmarks/modes.py): entering and leaving takes about 1.1 times as long as `model.eval()` and
    `model.train()`; no memory, and no graph is kept inside.

    Raises `TypeError` for what is not an `nn.Module`; `NotImplementedError` for models made by `torch.export`, which
    refuse `eval()`; what an overridden `eval()` raises. The modes are then as before. What `torch.jit.trace` or
    `torch.jit.freeze` made keeps the mode that it was made in, whatever is set.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4).eval())
    >>> with eval_mode(model):
    ...     [module.training for module in model.modules()], torch.is_grad_enabled()
    ([False, False, False, False], False)
    >>> [module.training for module in model.modules()], torch.is_grad_enabled()
    ([True, True, True, False], True)
    """
    models = models_given("eval_mode", model, *more)

    @contextmanager
    def scope() -> Iterator[Model]:
        with ExitStack() as stack:
            with LOCK:
                stack.enter_context(_restored(models, by_train=True))
                for each in models:
                    try:
                        each.eval()
                    except NotImplementedError as error:
                        raise NotImplementedError(_EXPORTED.format(error)) from error
            with torch.inference_mode() if inference else torch.no_grad():
                yield model

    return Scope("eval_mode(...)", scope)


_EXPORTED = (
    "{} A model made by torch.export keeps the mode that it was exported in: "
    "export it in eval mode and use torch.no_grad() alone, or give eval_mode() the model as it was before"
)


def preserve_modes(model: Model, *more: nn.Module) -> Scope[Model]:
    """Give every module its own mode back afterwards, whatever is done to the modes inside.

    For code that you do not own and that calls `train()` or `eval()`: `model.train()` afterwards would also wake the
    parts that were in eval mode on purpose. Changes nothing on entry. Yields `model`. Where validation is yours,
    `eval_mode` is shorter.

    Overridden `train()` methods are called on restoring, as `eval_mode` does.

    Cost: less than `model.eval()` and `model.train()`; it keeps a list of the modules until it is left.

    Raises `TypeError` for what is not an `nn.Module`.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
    >>> with preserve_modes(model):
    ...     _ = model.train()
    >>> [module.training for module in model.modules()]
    [True, True, False]
    """
    models = models_given("preserve_modes", model, *more)

    @contextmanager
    def scope() -> Iterator[Model]:
        with ExitStack() as stack:
            with LOCK:
                stack.enter_context(_restored(models, by_train=True))
            yield model

    return Scope("preserve_modes(...)", scope)


def differentiable_eval(model: Model, *more: nn.Module) -> Scope[Model]:
    """Outputs of eval mode and a backward pass that works on cuDNN: for saliency, attacks, frozen parts.

    Inside, every `nn.LSTM`, `nn.GRU` and `nn.RNN`, subclasses too, is in train mode with its dropout set to 0, so that
    cuDNN keeps what backward needs; every other module is in eval mode. Afterwards each module's mode and each RNN's
    dropout are what they were on entry. Yields `model`. The forward must run inside; where backward runs does not
    matter.

    Modes are set by writing `training`, so that a `train()` or `eval()` that the model overrides is not called.
    Outputs equal eval outputs bitwise on a CPU; not yet compared on a GPU, where cuDNN may choose another
    algorithm. Not promised: subclasses, wrappers and hooks (`torch.nn.utils.spectral_norm`) that do something by
    themselves when `rnn.training` is set. Second derivatives: see `without_cudnn`.

    Cost: cuDNN's reserve memory for each RNN call, as in training, and no time in the RNN. Entering and leaving takes
    about 1.25 times as long as `model.eval()` and `model.train()`. Under `torch.no_grad()` nothing is gained: use
    `eval_mode` there.

    Raises `TypeError` for what is not an `nn.Module`, and where the mode cannot be changed any more: RNNs compiled by
    `torch.jit.script` or `torch.jit.trace`, models made by `torch.export`. The model is then unchanged.

    >>> model = nn.Sequential(nn.LSTM(4, 3, num_layers=2, dropout=0.5)).train()
    >>> with differentiable_eval(model):
    ...     model.training, model[0].training, model[0].dropout
    (False, True, 0.0)
    >>> model.training, model[0].training, model[0].dropout
    (True, True, 0.5)
    """
    models = models_given("differentiable_eval", model, *more)

    @contextmanager
    def scope() -> Iterator[Model]:
        for each in models:
            _refuse_fixed_modes(each)
        everything = modules(*models)
        rnns = [module for module in everything if isinstance(module, nn.RNNBase)]
        # A subclass may have a module of that name, which is then in eval mode as all others are.
        dropping = [rnn for rnn in rnns if not isinstance(rnn.dropout, nn.Module)]
        with ExitStack() as stack:
            with LOCK:
                stack.enter_context(_restored(models, by_train=False))
                stack.enter_context(_without_dropout(dropping))
                for module in everything:
                    _write(module, isinstance(module, nn.RNNBase))
            yield model

    return Scope("differentiable_eval(...)", scope)


def without_cudnn(bare: None = None, /) -> Scope[None]:
    """Run forwards without cuDNN: gradients of RNNs in eval mode work then, and second derivatives.

    Sets `torch.backends.cudnn.enabled` to False inside and nothing else. `torch.backends.cudnn.flags(enabled=False)`
    also sets `benchmark`, `deterministic` and `allow_tf32` to defaults of its own, and from PyTorch 2.9 on raises where
    `cudnn.conv.fp32_precision` and `cudnn.rnn.fp32_precision` differ. Works after
    `torch.backends.disable_global_flags()` too. The **forward** must run inside; around backward alone it does nothing.
    Under `emulate_cudnn()` CPU RNNs are native ones inside.

    The switch belongs to the process: other threads lose cuDNN meanwhile. Several may be open, in whatever threads; in
    whatever order they are left, the switch is in the end what it was at first.

    Cost: RNNs run PyTorch's own kernels, step by step, and convolutions, BatchNorm and CTC loss lose cuDNN too (on ROCm
    MIOpen): slower on a GPU, by how much is not measured yet. So open it around the RNN's forward alone. On a CPU there
    is no cuDNN, and no cost. For first derivatives `differentiable_eval` keeps cuDNN.

    `bare` is nothing: it is there so that `@without_cudnn` without brackets can be told.

    >>> with without_cudnn():
    ...     torch.backends.cudnn.enabled
    False
    """
    if bare is not None:
        raise no_brackets("without_cudnn", bare)

    @contextmanager
    def scope() -> Iterator[None]:
        with CudnnSwitch.off():
            yield

    return Scope("without_cudnn()", scope)


_ABSENT = object()
"""torch.jit.freeze takes the attribute away."""
_UNREADABLE = object()
"""A property of the user's own raises: what it would give back is not known, so it is left alone."""


def _read(module: nn.Module) -> object:
    """Its `training`, whatever that is."""
    try:
        return getattr(module, "training", _ABSENT)
    except Exception:
        return _UNREADABLE


@contextmanager
def _restored(models: tuple[nn.Module, ...], *, by_train: bool) -> Iterator[None]:
    """Give every module that is there now its own mode back afterwards; `by_train`: see `eval_mode`.

    Entered under the lock, together with what changes the modes.
    """
    before = [(module, _read(module)) for module in modules(*models)]
    watched = OBSERVER.open
    found = {id(each): (mode, OBSERVER.who_set(each) if watched else None) for each, mode in before}
    _MODES.entered(found)
    try:
        yield
    finally:
        with LOCK:
            handed = _MODES.left(found)
            back = [(each, found[id(each)][0]) for each, _ in before]
            if handed:  # an overridden train() of those above may reach them
                back = [(each, _read(each) if id(each) in handed else mode) for each, mode in back]
            try:
                with restoring():
                    _restore(back, by_train=by_train)
            finally:
                for module, _ in back if OBSERVER.open else ():
                    who = found[id(module)][1]
                    if who is not None and id(module) not in handed:
                        OBSERVER.is_back(module, *who)


_MODES: Overlap[tuple[object, tuple[ModeChange | None, ModeChange | None] | None]] = Overlap()
"""Each module's mode, and who had set it, where somebody watched."""
_DROPOUTS: Overlap[float] = Overlap()


@contextmanager
def _without_dropout(rnns: list[nn.RNNBase]) -> Iterator[None]:
    found = {id(rnn): rnn.dropout for rnn in rnns}
    _DROPOUTS.entered(found)
    try:
        for rnn in rnns:
            rnn.dropout = 0.0
        yield
    finally:
        with LOCK:
            handed = _DROPOUTS.left(found)
            for rnn in rnns:
                if id(rnn) not in handed:
                    rnn.dropout = found[id(rnn)]


def _restore(before: list[tuple[nn.Module, object]], *, by_train: bool) -> None:
    try:
        for module, training in before if by_train else ():
            overridden = type(module).train is not nn.Module.train or "train" in vars(module)
            if overridden and training is not _UNREADABLE and _read(module) != training:
                with suppress(NotImplementedError):  # torch.export's refuse, so there is nothing to undo
                    module.train(bool(training))  # and all below it, which come later here
    finally:
        for module, training in before:
            _write(module, training)


def _write(module: nn.Module, training: object) -> None:
    """Set the mode of this one module, where it is not that already."""
    if training is _ABSENT:
        vars(module).pop("training", None)
    elif training is not _UNREADABLE and _read(module) is not training:
        module.training = training  # type: ignore[assignment]


_RNN_NAMES = frozenset({"LSTM", "GRU", "RNN"})
_RNN_OPERATORS = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")


def _refuse_fixed_modes(model: nn.Module) -> None:
    """Raise `TypeError` where a mode is part of compiled code: the innermost such module is named."""
    for module in reversed(modules(model)):
        if isinstance(module, torch.jit.ScriptModule) and (kind := _compiled_rnn(module)):
            made = f"a scripted {kind}: its dropout cannot be changed any more"
            remedy = "Use the model as it was before torch.jit"
        elif isinstance(module, torch.fx.GraphModule) and "train" in vars(module):
            made = "made by torch.export: its mode cannot be changed any more"
            remedy = "Use the model as it was before torch.export"
        else:
            continue
        name = next(path for path, each in named_modules(model) if each is module)
        raise TypeError(f"differentiable_eval(): {name or 'the model itself'} is {made}. {remedy}")


def _compiled_rnn(module: torch.jit.ScriptModule) -> str:
    """The kind of RNN that this is, or that its own code calls; "" for none."""
    name = getattr(module, "original_name", "")
    if name in _RNN_NAMES:
        return str(name)
    try:
        graph: Any = module.inlined_graph
    except (RuntimeError, AttributeError):  # it has no forward, only parts that its parent calls
        return ""
    return "RNN" if any(graph.findAllNodes(each) for each in _RNN_OPERATORS) else ""
