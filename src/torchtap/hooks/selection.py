"""Which modules of a model to look at: `select(model, layers)`.

`layers` is one of these, or a sequence of them, each adding to what is there:

    None              what runs and is small enough to blame: modules without children, and those of torch.nn that never
                      call theirs (`MultiheadAttention` uses the weights of its `out_proj`, it does not call it)
    "all"             every module, the model itself ("") and containers too
    "encoder.*.attn"  names. `*` stands for any part of a name between dots, `**` for any number of whole parts, `?` for
                      one letter, `[0-3]` for one of these; all other letters stand for themselves
    "!decoder.**"     takes away what is there by then; standing first, it takes away from what None gives
    nn.Linear         modules of this class, or of one derived from it
    lambda name, module: ...
                      those for which it is true

Names are those of `model.named_modules()`, without what wrappers add: `module.` of DistributedDataParallel,
`_orig_mod.` of torch.compile and so on; with these they are understood, too. A module that is registered at several
places is one layer of several names, and any of them will do.

    "encoder.*"       encoder.0, encoder.norm; not encoder.0.attn
    "encoder.**"      all below encoder; not encoder itself
    "**.attn"         every attn, wherever it is
    "**.[0-3].**"     all below the blocks 0 to 3
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import nn

from torchtap.hooks.names import Place, kind, never_runs, places

One: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module], bool]
Layers: TypeAlias = One | Sequence[One] | None
Blocks: TypeAlias = Literal["first", "last", "each"]
_BLOCKS = ("first", "last", "each")
_NEAREST = 3  # names that an error shows
# Modules of torch.nn that have children and never call them.
_NEVER_CALL_CHILDREN = (nn.MultiheadAttention,)


class PatternError(ValueError):
    """What was asked for is not in the model: a pattern, class or predicate matches none of its modules."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A module to look at, with its names."""

    name: str
    """As its user knows it: that of `named_modules()` without wrappers; "" is the model itself."""
    names: tuple[str, ...]
    """All its names, `name` first: a module may be registered at several places."""
    module: nn.Module = field(repr=False)
    kind: str
    """The name of its class: "Linear"."""
    compiled: tuple[nn.Module, ...] = field(default=(), repr=False)
    """The modules at or above it whose call torch.compile has been asked to compile."""


def select(
    model: nn.Module, layers: Layers = None, *, depth: int | None = None, blocks: Blocks | None = None
) -> list[Layer]:
    """The modules of `model` that `layers` asks for, each once, in the order of `named_modules()`.

    `layers` is described at the head of this module. With `depth` nothing deeper than so many names is taken: 1 gives
    the model's own children, as wholes (those of a container that never runs, such as `nn.ModuleList`, in its place).
    `blocks` is about repeated blocks, the children of one class of an `nn.ModuleList` or `nn.Sequential`: the "first",
    the "last" or "each" of every such row. Without `layers` the blocks themselves are given, else what lies in them.

    Changes nothing in the model, and runs nothing of it. Raises PatternError where nothing is found, with what comes
    near; TypeError and ValueError for arguments that are none.

    >>> block = nn.TransformerEncoderLayer(8, 2)
    >>> model = nn.TransformerEncoder(block, num_layers=2, enable_nested_tensor=False)
    >>> [layer.name for layer in select(model, "layers.*.self_attn")]
    ['layers.0.self_attn', 'layers.1.self_attn']
    >>> [layer.name for layer in select(model, [nn.Linear, "!**.out_proj"], blocks="last")]
    ['layers.1.linear1', 'layers.1.linear2']
    >>> [layer.name for layer in select(model, depth=1)]
    ['layers.0', 'layers.1']
    >>> select(model, "layers.*.attn")
    Traceback (most recent call last):
    torchtap.hooks.PatternError: no module matches layers="layers.*.attn"
      TransformerEncoder has 22 modules; nearest: layers.*.self_attn, layers.*, layers.*.norm2
    """
    _check(model, layers, depth, blocks)
    every = places(model)
    chosen = _chosen(every, layers, depth, whole_blocks=blocks is not None and layers is None)
    if blocks is not None:
        rows = list(_rows(every[0], set()))
        if not rows:
            raise PatternError(
                f'blocks="{blocks}": {kind(every[0].module)} has no repeated blocks, that is, no nn.ModuleList or '
                "nn.Sequential with two or more children of one class"
            )
        wanted = [place for row in rows for place in _of_row(row, blocks)]
        inside = {id(each) for place in wanted for each in ([place] if layers is None else _below(place))}
        chosen = [place for place in chosen if id(place) in inside]
    if not chosen:
        raise PatternError(
            f"layers={_shown(layers)}, depth={depth}, blocks={blocks}: nothing is left of "
            f"{len(every)} modules of {kind(every[0].module)}"
        )
    return [_layer(place) for place in chosen]


def _layer(place: Place) -> Layer:
    names = tuple(dict.fromkeys(place.names))
    return Layer(place.name, names, place.module, kind(place.module), place.compiled)


def _check(model: object, layers: object, depth: object, blocks: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected an nn.Module, got {_named(type(model))}")
    every = layers if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
    for each in every:
        allowed = isinstance(each, str) or (callable(each) and not isinstance(each, nn.Module))
        if each is None and layers is None:
            continue
        if not allowed or (isinstance(each, type) and not issubclass(each, nn.Module)):
            what = each.__name__ if isinstance(each, type) else _named(type(each))
            raise TypeError(
                "layers: expected None, a pattern of names, a class of modules, a function (name, module) -> bool or a "
                f"sequence of these, got {what}"
            )
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 0):
        raise ValueError(f"depth: expected None or a number of names, 0 or more, got {depth!r}")
    if blocks is not None and blocks not in _BLOCKS:
        raise ValueError(f"blocks: expected None or one of {', '.join(_BLOCKS)}, got {blocks!r}")


def _chosen(every: list[Place], layers: Layers, depth: int | None, *, whole_blocks: bool) -> list[Place]:
    """What `layers` asks for, in the model's order."""
    if whole_blocks:
        return [place for place in every if depth is None or _depth(place) <= depth]
    if layers is None:
        return _blamable(every, depth)
    wanted = [layers] if isinstance(layers, str) or not isinstance(layers, Sequence) else list(layers)
    taken: dict[int, Place] = {}
    for number, one in enumerate(wanted):
        if isinstance(one, str) and one.startswith("!"):
            if number == 0:
                taken = {id(place): place for place in _blamable(every, depth)}
            gone = {id(place) for place in _matching(every, one[1:], layers=one)}
            taken = {key: place for key, place in taken.items() if key not in gone}
        else:
            taken |= {id(place): place for place in _matching(every, one, layers=one)}
    return [place for place in every if id(place) in taken and (depth is None or _depth(place) <= depth)]


def _blamable(every: list[Place], depth: int | None) -> list[Place]:
    """What runs and is small enough to blame."""
    taken: dict[int, Place] = {}
    todo = [every[0]]
    looked_at: set[int] = set()
    while todo:
        place = todo.pop()
        if id(place) in looked_at:
            continue
        looked_at.add(id(place))
        whole = isinstance(place.module, _NEVER_CALL_CHILDREN) or not place.children
        if (whole or (depth is not None and _depth(place) >= depth)) and not never_runs(place.module):
            taken[id(place)] = place
        else:
            todo.extend(place.children.values())
    return [place for place in every if id(place) in taken]


def _matching(every: list[Place], one: One, *, layers: One) -> list[Place]:
    """The modules that one item of `layers` means; PatternError where there is none."""
    if isinstance(one, str):
        pattern = _compiled("**" if one == "all" else one)
        found = [place for place in every if any(pattern(name) for name in place.names)]
        found = found or [place for place in every if any(pattern(name) for name in place.raw)]
        why = _nearest(every, one)
    elif isinstance(one, type):
        found = [place for place in every if isinstance(place.module, one)]
        why = f" of these classes: {_classes(every)}"
    else:
        found = [place for place in every if one(place.name, place.module)]
        why = "; it is true for none"
    if not found:
        raise PatternError(
            f"no module matches layers={_shown(layers)}\n"
            f"  {kind(every[0].module)} has {len(every)} module{'s' * (len(every) > 1)}{why}"
        )
    return found


def _nearest(every: list[Place], pattern: str) -> str:
    """What comes near a pattern that matches nothing, in words."""
    of_class = [place for place in every if kind(place.module) == pattern]
    if of_class:
        return f"; {pattern} is the class of {len(of_class)} of them: give the class, not its name"
    names = [name for place in every for name in place.names if name]
    if "*" in pattern:  # compare like with like: the numbers of blocks are what a user writes * for
        names = [re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names]
    names = list(dict.fromkeys(names))
    near = difflib.get_close_matches(pattern, names, n=_NEAREST, cutoff=0.5)
    if not near:
        near = [name for name in names if name.rpartition(".")[2] == pattern.rpartition(".")[2]][:_NEAREST]
    return (
        f"; nearest: {', '.join(near)}"
        if near
        else f"; the first are {', '.join(names[:_NEAREST])}" * bool(names)
    )


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> Callable[[str], object]:
    """Whether a name matches. `**` stands for whole parts: with its dot where one stands beside it."""
    words = {"**.": r"(?:[^.]+\.)*", ".**": r"(?:\.[^.]+)+", "**": r".*", "*": r"[^.]*", "?": r"[^.]"}
    parts = re.split(r"(\*\*\.|\.\*\*$|\*\*|\*|\?|\[[^]]+\])", pattern)
    text = "".join(
        words.get(part) or (f"[{_set(part[1:-1])}]" if re.fullmatch(r"\[[^]]+\]", part) else re.escape(part))
        for part in parts
    )
    match = re.compile(text).fullmatch
    if pattern in ("", "**"):
        return match
    return lambda name: bool(name) and match(name)  # only these two mean the model itself


def _set(letters: str) -> str:
    """What stands between brackets: `!` at its head means none of these."""
    no = "^." if letters.startswith("!") else ""
    return no + re.sub(r"([\\^\]\[])", r"\\\1", letters[bool(no) :])


def _rows(place: Place, seen: set[int]) -> Iterator[list[Place]]:
    """The rows of repeated blocks, the outermost ones: what repeats within a block is part of it."""
    if id(place) in seen:
        return
    seen.add(id(place))
    kinds = {kind(child.module) for child in place.children.values()}
    if (
        isinstance(place.module, (nn.ModuleList, nn.Sequential))
        and len(place.children) > 1
        and len(kinds) == 1
    ):
        yield list(place.children.values())
        return
    for child in place.children.values():
        yield from _rows(child, seen)


def _of_row(row: list[Place], blocks: Blocks) -> list[Place]:
    return {"first": row[:1], "last": row[-1:], "each": row}[blocks]


def _below(place: Place) -> list[Place]:
    """This and all below it."""
    found: dict[int, Place] = {}
    todo = [place]
    while todo:
        each = todo.pop()
        if id(each) not in found:
            found[id(each)] = each
            todo.extend(each.children.values())
    return list(found.values())


def _depth(place: Place) -> int:
    return place.name.count(".") + 1 if place.name else 0


def _classes(every: list[Place]) -> str:
    counted = Counter(kind(place.module) for place in every).most_common()
    return ", ".join(f"{name} ({number})" for name, number in counted[:10]) + ", ..." * (len(counted) > 10)


def _named(of: type) -> str:
    return f"an instance of {of.__name__}" if inspect.isclass(of) else str(of)


def _shown(layers: Layers) -> str:
    """As its user wrote it, as far as that can be told."""
    if isinstance(layers, str):
        return f'"{layers}"'
    if isinstance(layers, Sequence):
        return f"[{', '.join(_shown(each) for each in layers)}]"
    return getattr(layers, "__name__", None) or repr(layers)
