"""`check_backward(loss)`: which RNN calls would make backward raise on cuDNN, told before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from torchtap.modes._blame import blamed, told
from torchtap.modes._findings import CallFinding
from torchtap.modes._graph import AT_MOST, is_freed, nodes
from torchtap.modes._hidden import checkpointed, unseen
from torchtap.modes._named import Named, is_frozen
from torchtap.modes._suspects import calls_of, captured_calls

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True, repr=False)
class BackwardReport:
    """What `check_backward` found. False when that is nothing; prints one line a call, `text` says why and what to do.

    All is well where `unseen` is empty too: only then the text says so.
    """

    findings: tuple[CallFinding, ...]
    calls: int
    """RNN calls in the graph that follow, or on a GPU would follow, cuDNN's rule."""
    unseen: tuple[str, ...] = ()
    """What could hide an RNN call, or its mode, and why. These are neither well nor unwell."""

    def __bool__(self) -> bool:
        return bool(self.findings)

    def __str__(self) -> str:
        lines = [finding.line for finding in self.findings] or [self._well]
        return "\n".join([*lines, *(f"not seen: {each}" for each in self.unseen)])

    __repr__ = __str__  # so that a console shows it, as Jupyter does

    @property
    def _well(self) -> str:
        seen = (
            f"{_counted(self.calls)}, none refused by cuDNN"
            if self.calls
            else "no RNN call seen that cuDNN would run"
        )
        return f"not known: {seen}, but not all can be seen" if self.unseen else f"well: {seen}"

    @property
    def text(self) -> str:
        """All of it: for each call where it stands, why and what to do; then what could not be seen."""
        if not self.findings:
            return str(self)
        head = (
            "backward raises:"
            if any(each.raises for each in self.findings)
            else "backward would raise on cuDNN:"
        )
        return "\n".join([head, told(self.findings, most=50), *(f"not seen: {each}" for each in self.unseen)])

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types: `schema` 1, `calls`, `findings`, `unseen`."""
        return {
            "schema": 1,
            "calls": self.calls,
            "findings": [each.to_dict() for each in self.findings],
            "unseen": list(self.unseen),
        }

    def __rich_console__(self, _console: object, _options: object) -> Iterator[Text]:
        from rich.text import Text

        yield Text(self.text)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


def _counted(calls: int) -> str:
    return f"{calls} RNN call{'s' * (calls != 1)}"


def check_backward(
    loss: Tensor | GradientEdge | Sequence[Tensor | GradientEdge],
    model: nn.Module | None = None,
    *,
    inputs: Tensor | GradientEdge | Sequence[Tensor | GradientEdge] | None = None,
) -> BackwardReport:
    """Tell, without running backward, which RNN calls would make it raise on cuDNN.

    Walks the graph of `loss` once: a tensor of any shape, dtype and device, a `GradientEdge`, or several; changes
    nothing, keeps nothing alive, does not synchronise (1,000 nodes: about 2 ms). With `inputs`, tensors as for
    `torch.autograd.grad` or `backward(inputs=...)`, only what lies on a way to them.

    The report is false when no call was found that raises. Each finding tells the call's module, as a path where
    `model` is given, and, where the forward ran inside `guard` or `emulate_cudnn`, the lines of the forward and of what
    put the module in eval mode, and what to do. On CUDA graphs and under emulation it tells what backward will do here;
    on a plain CPU what it would do on cuDNN, for the calls that were watched, for LSTMs, whose CPU nodes tell their
    mode, and for programs of `torch.export`, `torch.fx` and `torch.jit.trace` in `model`, which keep theirs (then taken
    for granted: that `torch.backends.cudnn.enabled` was as it is now).

    What cannot be told is never called well: `report.unseen` names custom `autograd.Function`s and, where `model` is
    given, RNNs of a plain CPU whose mode nobody knows: unwatched GRUs and RNNs, also scripted ones, and those with
    frozen weights, which a graph does not show. Not seen without `model`, and not promised: calls of `torch.gru` and
    its like by hand. A gradient that never arrives, because a custom function gives None, is foreseen all the same. For
    a reentrant checkpoint the mode at backward counts: RNNs in it that are in eval mode now are findings too.

    Raises `TypeError` for what is no tensor or no `nn.Module`, `ValueError` for a loss or inputs without a graph, and
    for a graph that backward has freed, where that can be seen without touching it (cuDNN's RNNs always; tanh, softmax
    and their like since torch 2.10 or later).

    >>> rnn, x = nn.LSTM(4, 3), torch.zeros(5, 2, 4)  # steps, batch, features
    >>> report = check_backward(rnn.eval()(x)[0].sum(), rnn)
    >>> bool(report), report.findings[0].class_name, report.findings[0].raises  # would raise, on a GPU only
    (True, 'LSTM', False)
    >>> bool(check_backward(rnn.train()(x)[0].sum(), rnn))
    False
    """
    _check_model(model, loss)
    losses = _losses(loss, model)
    asked = _inputs(inputs)
    reached = nodes(losses, asked)
    if any(map(is_freed, reached)):
        raise ValueError(
            "check_backward(): backward has run through this graph already and freed it. Check before backward, or "
            "give the loss of a new forward"
        )
    named = Named(() if model is None else (model,))
    suspects = calls_of(reached, named)
    suspects += captured_calls(reached, suspects, named)
    found = blamed(suspects, named, asked)
    found += checkpointed(reached, named)
    hidden = unseen(reached, suspects, named)
    if len(reached) >= AT_MOST:
        hidden = (*hidden, f"the graph beyond {AT_MOST:,} nodes: more are not looked at")
    return BackwardReport(tuple(found), sum(each.follows_rule for each in suspects), hidden)


def _check_model(model: object, loss: object) -> None:
    if model is None or isinstance(model, nn.Module):
        return
    if isinstance(loss, nn.Module) and isinstance(model, (Tensor, GradientEdge)):
        raise TypeError("check_backward(loss, model): the loss comes first, it was given the model first")
    hint = ""
    if isinstance(model, type) and issubclass(model, nn.Module):
        hint = ": give the instance that made the loss"
    elif isinstance(model, (Tensor, GradientEdge)):
        hint = ": several losses go into one list, check_backward([first, second], model)"
    elif isinstance(model, (list, tuple, dict)):
        kind = "ModuleDict" if isinstance(model, dict) else "ModuleList"
        hint = f": several models go into one, nn.{kind}(...)"
    raise TypeError(f"check_backward(model=...) takes an nn.Module, got {_kind(model)}{hint}")


def _losses(loss: object, model: nn.Module | None) -> list[Tensor | GradientEdge]:
    several = isinstance(loss, (list, tuple)) and not isinstance(loss, GradientEdge)  # which is a tuple
    losses: list[Any] = list(loss) if several else [loss]  # type: ignore[call-overload]
    if not losses:
        raise ValueError("check_backward() was given no loss: an empty sequence")
    for number, each in enumerate(losses):
        name = f"loss[{number}]" if several else "loss"
        if isinstance(each, GradientEdge):
            continue
        if not isinstance(each, Tensor):
            raise TypeError(
                f"check_backward() takes a tensor or several, {name} is {_kind(each)}{_instead_of(each)}"
            )
        if not each.requires_grad:
            raise ValueError(
                f"check_backward(): {name} has no graph, backward would raise: {_why_no_graph(each, model)}"
            )
    return losses


def _instead_of(loss: object) -> str:
    if isinstance(loss, nn.Module):
        return ": give what backward is called on, check_backward(loss, model)"
    if isinstance(loss, Mapping):
        keys = [key for key, value in loss.items() if isinstance(value, Tensor) and value.requires_grad]
        return f": give a value of it, such as that of {keys[0]!r:.40}" if keys else ""
    if isinstance(loss, (list, tuple)):
        return ": give its tensors, in one list"
    return ""


def _why_no_graph(loss: Tensor, model: nn.Module | None) -> str:
    if loss.is_inference():
        return "it was made under torch.inference_mode()"
    if not (loss.is_floating_point() or loss.is_complex()):
        return f"no tensor of {loss.dtype} has one (argmax and comparisons give such ones)"
    if not torch.is_grad_enabled():
        return "torch.no_grad() is on here; the forward must run outside of it"
    if model is not None and is_frozen(model):
        return "no parameter of the model requires a gradient, nor does its input"
    return "its forward ran under torch.no_grad(), it was detached, or nothing that it was made of requires a gradient"


def _inputs(inputs: Any) -> list[Tensor | GradientEdge]:
    if inputs is None:
        return []
    if isinstance(inputs, nn.Module):
        raise TypeError(
            "check_backward(inputs=...) takes tensors: of a model, inputs=list(model.parameters())"
        )
    if isinstance(inputs, (Tensor, GradientEdge)):
        return _checked([inputs])
    if isinstance(inputs, (str, Mapping)) or not isinstance(inputs, Iterable):
        raise TypeError(f"check_backward(inputs=...) takes a tensor or several, got {_kind(inputs)}")
    several = list(inputs)
    if not several:
        raise ValueError(
            "check_backward(inputs=...) is empty, backward would raise; leave it out for all leaves"
        )
    return _checked(several)


def _checked(several: list[Any]) -> list[Tensor | GradientEdge]:
    for number, each in enumerate(several):
        if not isinstance(each, (Tensor, GradientEdge)):
            raise TypeError(f"check_backward(inputs=...) takes tensors, number {number} is {_kind(each)}")
        if isinstance(each, Tensor) and not each.requires_grad:
            raise ValueError(f"check_backward(inputs=...): number {number} does not require a gradient")
    return several


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
