"""`describe(model)`: a model's modules with their modes, and what looks odd about them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchtap._findings import Finding, Severity, printable
from torchtap.modes._given import named
from torchtap.modes._observer import OBSERVER
from torchtap.modes._overrides import overridden
from torchtap.modes._walk import children, is_made, joined, mode_of, modules, named_modules, parameters
from torchtap.modes.kinds import what_mode_changes
from torchtap.modes.reach import unregistered

if TYPE_CHECKING:
    from rich.console import ConsoleOptions
    from rich.text import Text


@dataclass(slots=True, kw_only=True)
class ModuleModes:
    """One module of the tree, as it was when `describe` looked."""

    path: str
    """As in `model.named_modules()`; "" is the model itself."""
    name: str
    """The last part of the path; for the model itself its class."""
    class_name: str
    training: bool | None
    """None where there is no such attribute, as `super().__init__()` was never called, or none that can be read."""
    requires_grad: str
    """Of the parameters here and below: "all", "some" or "none" of them, "-" where there are none."""
    changes: str
    """What the mode changes in this module itself; "" for nothing that is known."""
    set_by: str | None = None
    """Who set the mode: "eval() at file:line". Known only of what `guard` or `emulate_cudnn` saw and is still open."""
    same_as: str | None = None
    """The path under which a shared module was met first. Its children are listed there."""
    findings: list[Finding] = field(default_factory=list)
    children: list[ModuleModes] = field(default_factory=list, repr=False)  # as deep as a model is

    @property
    def mode(self) -> str:
        """ "train" or "eval"; "?" where the module has none."""
        return "?" if self.training is None else "train" if self.training else "eval"

    @property
    def title(self) -> str:
        """Name and class, as `print(model)` shows them; control characters escaped, as they move the cursor."""
        title = f"{self.name}: {self.class_name}" if self.path else self.name
        return printable(title)

    @property
    def note(self) -> str:
        """What the table says last of this module."""
        if self.same_as is None:
            return self.changes
        return f"same module as {self.same_as or 'the model itself'}"

    @property
    def worst(self) -> Severity | None:
        """The most severe of its findings; None without any."""
        severities = {finding.severity for finding in self.findings}
        return next((each for each in reversed(Severity) if each in severities), None)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, ModuleModes]]:
        """This module and all below it, each with its depth."""
        todo = [(depth, self)]
        while todo:
            depth, module = todo.pop()
            yield depth, module
            todo.extend((depth + 1, child) for child in reversed(module.children))

    def to_dict(self) -> dict[str, Any]:
        """This module and all below it as JSON types."""
        whole = self._alone()
        todo = [(self, whole)]
        while todo:
            module, made = todo.pop()
            made["children"] = [child._alone() for child in module.children]
            todo.extend(zip(module.children, made["children"], strict=True))
        return whole

    def _alone(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "class": self.class_name,
            "training": self.training,
            "requires_grad": self.requires_grad,
            "changes": self.changes,
            "set_by": self.set_by,
            "same_as": self.same_as,
            "findings": [finding.to_dict() for finding in self.findings],
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
        """The tree as JSON types: `schema` 1, `root` and `findings`, those of all modules.

        A module: `path`, `class`, `training` (null: it has none), `requires_grad` ("all", "some", "none", "-"),
        `changes`, `set_by` and `same_as` (each may be null), its own `findings`, and `children`, modules again.
        A finding: `id`, `severity` ("info", "warn", "error"), `where`, `seen`, `cause`, `remedy`.
        """
        return {
            "schema": 1,
            "root": self.root.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def _table(self, wide: bool = True) -> tuple[list[str], list[tuple[int, ModuleModes, list[str]]]]:
        """The columns' names beside mark and title; then each module with its depth and cells.

        Who set the modes is a column where it is known of any module, and room for it; a ditto mark under its parent.
        """
        setters = {id(module): module.set_by for _, module in self.root.walk()}
        known = any(setters.values())
        above = {
            id(child): setters[id(module)] for _, module in self.root.walk() for child in module.children
        }
        names = ["mode", *["set by"] * (known and wide), "requires_grad", "what the mode changes here"]
        rows = []
        for depth, module in self.root.walk():
            same = module.set_by is not None and module.set_by == above.get(id(module))
            set_by = '"' if same else module.set_by or ""
            note = module.note
            if not wide and set_by and not same:
                note = f"{note}{'; ' * bool(note)}set by {set_by}"
            rows.append(
                (depth, module, [module.mode, *[set_by] * (known and wide), module.requires_grad, note])
            )
        return names, rows

    def lines(self, width: int = 100) -> Iterator[tuple[str, Severity | None]]:
        """The table and the findings as lines of at most `width` columns, each with the severity of its mark."""
        names, told = self._table(wide=width >= _WIDE)
        rows = [["", "module", *names]]
        rows += [[_MARKS[module.worst], "  " * depth + module.title, *cells] for depth, module, cells in told]
        marks = [None, *(module.worst for _, module, _ in told)]
        widths = _widths(rows, width)
        for row, mark in zip(rows, marks, strict=True):
            wrapped = [_wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
            for number, parts in enumerate(zip_longest(*wrapped, fillvalue="")):
                padded = (_padded(cell, size) for cell, size in zip(parts, widths, strict=True))
                yield "  ".join(padded).rstrip(), None if number else mark
        for finding in self.findings:
            for label, text in finding.lines():
                for number, part in enumerate(_wrapped(text, width - _LABEL)):
                    heads = label == finding.severity.value and not number
                    yield f"{'' if number else label:<{_LABEL}}{part}", finding.severity if heads else None

    def __rich_console__(self, _console: object, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line, mark in self.lines(options.max_width):
            text = Text(line, no_wrap=True, overflow="ignore")
            if mark is not None:
                text.stylize(_COLOURS[mark], 0, len(line.partition(" ")[0]))
            yield text

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.lines())

    __repr__ = __str__  # so that a console shows the table, as Jupyter does

    def _repr_html_(self) -> str:
        names, told = self._table()
        modules = "".join(
            _row("&#9888;" * bool(module.findings), module.title, *cells, indent=depth)
            for depth, module, cells in told
        )
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("", "module", *names))
        lines = "".join(_row(*line) for finding in self.findings for line in finding.lines())
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{modules}</tbody></table>"
            + f"<table><tbody>{lines}</tbody></table>" * bool(lines)
        )


def _row(mark: str, first: str, *others: str, indent: int = 0) -> str:
    """One line of an HTML table, in the page's own colours. `mark` is HTML, the rest is text."""
    cells = "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in others)
    padding = 0.5 + 1.5 * indent
    return (
        f'<tr><td style="text-align:left">{mark}</td>'
        f'<td style="text-align:left;padding-left:{padding}em">{escape(first)}</td>{cells}</tr>'
    )


_MARKS = {None: "", Severity.INFO: "i", Severity.WARN: "!", Severity.ERROR: "!"}
_COLOURS = {Severity.INFO: "cyan", Severity.WARN: "yellow", Severity.ERROR: "red"}
_LABEL = 7  # "cause" and its like, and two blanks
_WIDE = 100
"""Columns of a terminal from which on there is room for one more column."""
_NARROWEST = 24
"""Columns that wrapped text is given at least, on a terminal of usual width."""


def _widths(rows: list[list[str]], width: int) -> list[int]:
    """Of each column: as wide as its longest cell, but for the names and for what the mode changes, which wrap."""
    longest = [max(_cells(cell) for cell in column) for column in zip(*rows, strict=True)]
    longest[0] = 1
    if "set by" in rows[0]:
        longest[3] = min(longest[3], width // 4)
    left = width - longest[0] - sum(longest[2:-1]) - 2 * (len(longest) - 1)
    least = min(_NARROWEST, width // 4)
    longest[1] = min(longest[1], max(left - least, least))
    longest[-1] = min(longest[-1], max(left - longest[1], least))
    return longest


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines, broken at blanks where there are any; all behind the blanks that it begins with."""
    if _cells(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    after = f"{indent}  " if indent and len(indent) < width // 2 else ""
    return textwrap.wrap(text.lstrip(), width, initial_indent=indent[: width // 2], subsequent_indent=after)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - _cells(cell))


def _cells(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def describe(model: nn.Module) -> ModeTree:
    """Tell of each module which mode it is in, whether it trains, what its mode changes, and what looks odd.

    Looks only: changes nothing, runs nothing, on any device (meta too). What it says holds until the next
    `train()`, `eval()` or write to `training`. While a `guard` or `emulate_cudnn()` is open, it also says who set
    each mode, as far as that was seen.

    Marked as odd, each of which can be on purpose:

    - `mode.mixed`: a part in another mode than the model itself
    - `rnn.eval`: an RNN in eval mode, whose backward would raise on cuDNN
    - `batchnorm.frozen`: a BatchNorm in train mode, parameters frozen: its running statistics still move
    - `module.unregistered`: modules in a plain list, dict or object, which `train()` and `eval()` do not reach
    - `module.train_overridden`: a class whose own `train` or `eval` keeps the mode from what is below
    - `module.unreadable`: a module that is half made, or has an attribute that its forward cannot use

    Raises `TypeError` for what is not an `nn.Module`. Half made models, which the fixes and `guard` refuse, are shown.

    >>> tree = describe(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval()))
    >>> [(finding.id, finding.where) for finding in tree.findings]
    [('mode.mixed', '1')]
    >>> tree.to_dict()["root"]["children"][1]["training"]
    False
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"describe() takes an nn.Module, got {named(model)}")
    return ModeTree(_Look(model).whole())


class _Look:
    """One look at a model."""

    def __init__(self, model: nn.Module) -> None:
        self.root = model
        self.seen: dict[int, str] = {}
        self.asks = _asks(model)
        self.hidden: dict[int, list[Finding]] = {}
        for holder, finding in unregistered([model]):
            self.hidden.setdefault(id(holder), []).append(finding)

    def whole(self) -> ModuleModes:
        """The tree. In a loop: models are nested deeper than Python may recur."""
        top: list[ModuleModes] = []
        todo = [(self.root, "", type(self.root).__name__, self.root, top)]
        while todo:
            module, path, name, parent, siblings = todo.pop()
            told = self._at(module, path, name)
            siblings.append(told)
            if told.same_as is not None:  # shared (or even a cycle): told where it was met first
                continue
            self.seen[id(module)] = path
            told.findings = [
                *(found for rule in RULES if (found := rule(module, told, parent, self.root)) is not None),
                *self.hidden.get(id(module), ()),
                *overridden(module, path),
            ]
            todo.extend(
                (child, joined(path, key), key, module, told.children)
                for key, child in reversed(list(children(module)))
            )
        return top[0]

    def _at(self, module: nn.Module, path: str, name: str) -> ModuleModes:
        return ModuleModes(
            path=path,
            name=name,
            class_name=type(module).__name__,
            training=mode_of(module),
            requires_grad=_GRADS.get(frozenset(self.asks[id(module)]), "some"),
            changes=what_mode_changes(module),
            set_by=_set_by(module),
            same_as=self.seen.get(id(module)),
        )


def _asks(model: nn.Module) -> dict[int, set[bool]]:
    """By id, what each module's parameters and those below have for requires_grad."""
    every = modules(model)
    asks = {id(module): {each.requires_grad for each in parameters(module)} for module in every}
    grows = True
    while grows:  # once more for shared modules and cycles only
        grows = False
        for module in reversed(every):
            mine = asks[id(module)]
            before = len(mine)
            mine.update(*(asks[id(child)] for _, child in children(module)))
            grows |= len(mine) > before
    return asks


_GRADS = {frozenset(): "-", frozenset({True}): "all", frozenset({False}): "none"}


def _set_by(module: nn.Module) -> str | None:
    change = OBSERVER.last_change.get(module)
    if change is None or (place := change.setter.stack.here) is None:
        return None
    return f"{_CALLS[change.setter.by]} at {place}"


_CALLS = {"train": "train()", "eval": "eval()", "write": "training ="}

Rule = Callable[[nn.Module, ModuleModes, nn.Module, nn.Module], "Finding | None"]
"""(module, what is told of it, its parent, the model) -> what is odd about this module, if anything."""


_APART = {
    "eval": "eval() was called on this part after train() on the model",
    "train": "train() was called on this part, or it was added after eval() on the model",
}


def _mixed(module: nn.Module, told: ModuleModes, parent: nn.Module, root: nn.Module) -> Finding | None:
    # Only the top of a part that differs: what lies below it in the same mode follows from it.
    model = mode_of(root)
    if None in (told.training, model) or told.training == model or mode_of(parent) != model:
        return None
    mine, roots = ("train", "eval") if told.training else ("eval", "train")
    apart = [each for _, each in named_modules(module) if mode_of(each) == told.training]
    moded = Counter(type(each).__name__ for each in apart if what_mode_changes(each))
    which = ", ".join(f"{n} {name}" if n > 1 else name for name, n in moded.most_common(3))
    return Finding(
        id="mode.mixed",
        severity=Severity.INFO,
        where=told.path,
        seen=f"in {mine} mode, the model in {roots} mode ({len(apart)} module{'s' * (len(apart) > 1)}; "
        f"matters in {which or 'none'})",
        cause=_APART[mine],
        remedy=f"nothing if on purpose (a frozen part), else {roots}() on the whole model before the forward",
    )


def _rnn_eval(module: nn.Module, told: ModuleModes, _parent: nn.Module, root: nn.Module) -> Finding | None:
    if told.training is not False or not isinstance(module, nn.RNNBase):
        return None
    return Finding(
        id="rnn.eval",
        severity=Severity.WARN if mode_of(root) else Severity.INFO,
        where=told.path,
        seen=f"{told.class_name} in eval mode: on cuDNN, backward through a forward run now will raise",
        cause="cuDNN keeps what backward needs only when the forward runs in train mode",
        remedy="nothing for inference; to train, train() before the forward; for gradients of eval outputs, "
        "modes.differentiable_eval(model) around the forward",
    )


def _frozen_batchnorm(
    module: nn.Module, told: ModuleModes, _parent: nn.Module, _root: nn.Module
) -> Finding | None:
    if (
        not (told.training and isinstance(module, _BatchNorm))
        or told.requires_grad != "none"
        or not told.changes
    ):
        return None
    return Finding(
        id="batchnorm.frozen",
        severity=Severity.WARN,
        where=told.path,
        seen=f"{told.class_name} in train mode, parameters frozen: running statistics move",
        cause="requires_grad=False freezes weight and bias; statistics follow the mode, also under no_grad",
        remedy="eval() on this module after each train() of the model",
    )


def _unreadable(module: nn.Module, told: ModuleModes, _parent: nn.Module, _root: nn.Module) -> Finding | None:
    if not is_made(module):
        seen, cause = (
            "it has no mode and no register of modules",
            "its __init__ has not called super().__init__()",
        )
        remedy = "super().__init__() first in its __init__"
    elif told.training is None and not isinstance(module, torch.jit.ScriptModule):  # a frozen one has none
        seen, cause = (
            "its training cannot be read",
            "the mode is that attribute: the model's own code reads it",
        )
        remedy = "no property of that name, or one that does not raise"
    elif told.changes.startswith("cannot be read"):
        seen, cause = f"{told.class_name} {told.changes}", "its forward computes with these attributes"
        remedy = "a number; 0 switches a dropout off"
    else:
        return None
    return Finding(
        id="module.unreadable",
        severity=Severity.ERROR,
        where=told.path,
        seen=seen,
        cause=cause,
        remedy=remedy,
    )


RULES: tuple[Rule, ...] = (_unreadable, _mixed, _rnn_eval, _frozen_batchnorm)
