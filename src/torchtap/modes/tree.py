"""`describe(model)`: a model's modules with their modes, and what looks odd about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchtap.modes._findings import Finding, Severity
from torchtap.modes.kinds import what_mode_changes

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(slots=True, kw_only=True)
class ModuleModes:
    """One module of the tree, as it was when `describe` looked."""

    path: str
    """As in `model.named_modules()`; "" is the model itself."""
    name: str
    """The last part of the path; for the model itself its class."""
    class_name: str
    training: bool
    requires_grad: str
    """Of the parameters here and below: "all", "some" or "none" of them, "-" where there are none."""
    changes: str
    """What the mode changes in this module itself; "" for nothing that is known."""
    same_as: str | None = None
    """The path under which a shared module was met first. Its children are listed there."""
    findings: list[Finding] = field(default_factory=list)
    children: list[ModuleModes] = field(default_factory=list)

    @property
    def mode(self) -> str:
        """ "train" or "eval"."""
        return "train" if self.training else "eval"

    @property
    def title(self) -> str:
        """Name and class, as `print(model)` shows them; control characters escaped, as they move the cursor."""
        title = f"{self.name}: {self.class_name}" if self.path else self.name
        return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in title)

    def cells(self) -> tuple[str, str, str]:
        """What the table says of this module, beside its title."""
        changes = f"same module as {self.same_as}" if self.same_as is not None else self.changes
        return self.mode, self.requires_grad, changes

    def walk(self, depth: int = 0) -> Iterator[tuple[int, ModuleModes]]:
        """This module and all below it, each with its depth."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_dict(self) -> dict[str, Any]:
        """This module and all below it as JSON types."""
        return {
            "path": self.path,
            "class": self.class_name,
            "training": self.training,
            "requires_grad": self.requires_grad,
            "changes": self.changes,
            "same_as": self.same_as,
            "findings": [finding.to_dict() for finding in self.findings],
            "children": [child.to_dict() for child in self.children],
        }


@dataclass(frozen=True, slots=True, repr=False)
class ModeTree:
    """What `describe` saw. Prints as a table; a rich renderable; drawn as HTML in Jupyter."""

    root: ModuleModes

    @property
    def findings(self) -> list[Finding]:
        """All that looks odd, in the order of the tree."""
        return [finding for _, module in self.root.walk() for finding in module.findings]

    def to_dict(self) -> dict[str, Any]:
        """The tree as JSON types: `schema` 1, `root`, `findings`."""
        return {
            "schema": 1,
            "root": self.root.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def __rich_console__(self, _console: object, _options: object) -> Iterator[Table]:
        from rich.markup import escape as plain
        from rich.table import Table

        table = Table(*_HEAD, box=None, pad_edge=False)
        table.columns[1].no_wrap = True
        for depth, module in self.root.walk():
            mark = "[yellow]!" if module.findings else ""
            table.add_row(mark, "  " * depth + plain(module.title), *(plain(cell) for cell in module.cells()))
        yield table
        for finding in self.findings:
            lines = Table.grid(padding=(0, 2, 0, 0))  # a column of labels keeps wrapped lines clear of them
            for label, text in finding.lines():
                lines.add_row(label, plain(text))
            yield lines

    def __str__(self) -> str:
        from rich.console import Console

        text = StringIO()
        # Plain text whatever surrounds us: in a notebook rich would display it, and FORCE_COLOR would colour it.
        Console(file=text, width=100, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().split("\n"))

    __repr__ = __str__  # so that a console shows the table, as Jupyter does

    def _repr_html_(self) -> str:
        modules = "".join(
            _row("&#9888;" * bool(module.findings), module.title, *module.cells(), indent=depth)
            for depth, module in self.root.walk()
        )
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in _HEAD)
        lines = "".join(_row(*line) for finding in self.findings for line in finding.lines())
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{modules}</tbody></table>"
            + f"<table><tbody>{lines}</tbody></table>" * bool(lines)
        )


def _row(mark: str, first: str, *others: str, indent: int = 0) -> str:
    """One line of an HTML table. `mark` is HTML, the rest is text."""
    cells = "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in others)
    padding = 0.5 + 1.5 * indent
    return (
        f'<tr><td style="text-align:left">{mark}</td>'
        f'<td style="text-align:left;padding-left:{padding}em">{escape(first)}</td>{cells}</tr>'
    )


_HEAD = ("", "module", "mode", "requires_grad", "what the mode changes here")


def describe(model: nn.Module) -> ModeTree:
    """Tell of each module which mode it is in, whether it trains, what its mode changes, and what looks odd.

    Looks only: changes nothing, runs nothing, on any device (meta too). What it says holds until the next
    `train()`, `eval()` or write to `training`.

    Marked as odd: a part in another mode than the model itself (`mode.mixed`); an RNN in eval mode, whose
    backward would raise on cuDNN (`rnn.eval`); a BatchNorm in train mode whose parameters are frozen, so that
    its running statistics still move (`batchnorm.frozen`). All three can be on purpose.

    Raises `TypeError` for what is not an `nn.Module`.

    >>> tree = describe(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval()))
    >>> [(finding.id, finding.where) for finding in tree.findings]
    [('mode.mixed', '1')]
    >>> tree.to_dict()["root"]["children"][1]["training"]
    False
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"describe() takes an nn.Module, got {type(model).__name__}")
    return ModeTree(_look(model, path="", name=type(model).__name__, root=model, parent=model, seen={}))


def _look(
    module: nn.Module, *, path: str, name: str, root: nn.Module, parent: nn.Module, seen: dict[nn.Module, str]
) -> ModuleModes:
    told = ModuleModes(
        path=path,
        name=name,
        class_name=type(module).__name__,
        training=module.training,
        requires_grad=_requires_grad(module),
        changes=what_mode_changes(module),
        same_as=seen.get(module),
    )
    if told.same_as is None:  # else shared (or even a cycle): told where it was met first
        seen[module] = path
        told.findings = [found for rule in RULES if (found := rule(module, path, parent, root)) is not None]
        told.children = [
            _look(child, path=f"{path}.{key}" if path else key, name=key, root=root, parent=module, seen=seen)
            for key, child in module._modules.items()
            if child is not None
        ]
    return told


def _requires_grad(module: nn.Module) -> str:
    asks = {parameter.requires_grad for parameter in module.parameters()}
    return {frozenset(): "-", frozenset({True}): "all", frozenset({False}): "none"}.get(
        frozenset(asks), "some"
    )


Rule = Callable[[nn.Module, str, nn.Module, nn.Module], "Finding | None"]
"""(module, its path, its parent, the model) -> what is odd about this module, if anything."""


_APART = {
    "eval": "eval() was called on this part after train() on the model",
    "train": "train() was called on this part, or it was added after eval() on the model",
}


def _mixed(module: nn.Module, path: str, parent: nn.Module, root: nn.Module) -> Finding | None:
    # Only the top of a part that differs: what lies below it in the same mode follows from it.
    if module.training == root.training or parent.training != root.training:
        return None
    mine, roots = ("train", "eval") if module.training else ("eval", "train")
    apart = sum(below.training == module.training for below in module.modules())
    return Finding(
        id="mode.mixed",
        severity=Severity.INFO,
        where=path,
        seen=f"in {mine} mode, the model in {roots} mode ({apart} module{'s' * (apart > 1)})",
        cause=_APART[mine],
        remedy=f"nothing if on purpose (a frozen part), else {roots}() on the whole model before the forward",
    )


def _rnn_eval(module: nn.Module, path: str, _parent: nn.Module, root: nn.Module) -> Finding | None:
    if module.training or not isinstance(module, nn.RNNBase):
        return None
    return Finding(
        id="rnn.eval",
        severity=Severity.WARN if root.training else Severity.INFO,
        where=path,
        seen=f"{type(module).__name__} in eval mode: on cuDNN, backward through a forward run now will raise",
        cause="cuDNN keeps what backward needs only when the forward runs in train mode",
        remedy="nothing for inference; to train, train() before the forward; for gradients of eval outputs, "
        "modes.differentiable_eval(model) around the forward",
    )


def _frozen_batchnorm(module: nn.Module, path: str, _parent: nn.Module, _root: nn.Module) -> Finding | None:
    if not (module.training and isinstance(module, _BatchNorm) and module.running_mean is not None):
        return None
    if _requires_grad(module) != "none":
        return None
    return Finding(
        id="batchnorm.frozen",
        severity=Severity.WARN,
        where=path,
        seen=f"{type(module).__name__} in train mode, parameters frozen: running statistics move",
        cause="requires_grad=False freezes weight and bias; statistics follow the mode, also under no_grad",
        remedy="eval() on this module after each train() of the model",
    )


RULES: tuple[Rule, ...] = (_mixed, _rnn_eval, _frozen_batchnorm)
