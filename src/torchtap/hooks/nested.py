"""The tensors in what a module takes or gives: a tensor, or containers of tensors however nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.utils.rnn import PackedSequence


def tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in `value` once, with the way to it: "" for a tensor itself, else "0", "hidden_states.2", ...

    Looks into tuples, lists, named tuples, mappings (a `ModelOutput` of transformers is one), dataclasses, and the data
    of a `PackedSequence`: its batch sizes and indices are no activations. Other objects hold nothing for it. Gives
    tensors of any dtype, device and layout as they are: neither detached nor copied.

    >>> import torch
    >>> [name for name, _ in tensors(torch.ones(2))]
    ['']
    >>> h = torch.zeros(1)
    >>> [name for name, _ in tensors({"last": torch.ones(2), "states": (h, h, None, [torch.ones(1)])})]
    ['last', 'states.0', 'states.3.0']
    """
    if isinstance(value, Tensor):
        yield "", value
        return
    if is_compiling():  # which would compile anew for each tensor whose identity it is asked for
        yield from _traced(value, "")
        return
    seen: set[int] = set()  # all that is looked at is held by `value`, so no number is given twice
    todo: list[tuple[str, object]] = [("", value)]
    while todo:
        path, each = todo.pop()
        if isinstance(each, Tensor):
            if id(each) not in seen:
                seen.add(id(each))
                yield path, each
            continue
        parts = _parts(each)
        if parts is None or id(each) in seen:
            continue
        seen.add(id(each))
        todo.extend(reversed([(f"{path}.{name}" if path else name, part) for name, part in parts]))


def _traced(value: object, path: str) -> Iterator[tuple[str, Tensor]]:
    """As `tensors`, but what stands at two places is given twice."""
    if isinstance(value, Tensor):
        yield path, value
        return
    for name, part in _parts(value) or ():
        yield from _traced(part, f"{path}.{name}" if path else name)


class Nested:
    """The structure of a value without its tensors: containers, with other things in place of what they held."""

    __slots__ = ("_root",)

    def __init__(
        self,
        value: object,
        new: Callable[[Tensor], object],
        other: Callable[[Any], object] = lambda value: value,
    ) -> None:
        """Take `value` apart, with `new(tensor)` for each tensor and `other(thing)` for all that is no container.

        What is met twice is replaced once. The batch sizes and indices of a `PackedSequence` stay as they are.
        """
        self._root = _apart(value, _once(new), other, frozenset())

    def built(self, change: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """A value of the same structure with `change(leaf)` in place of each leaf, once for each.

        Containers that cannot be made anew from their parts (a mapping or dataclass with a constructor of its own)
        become a plain dict.

        >>> import torch
        >>> Nested((torch.ones(2), [torch.ones(3)], "x"), lambda tensor: tuple(tensor.shape)).built()
        ((2,), [(3,)], 'x')
        """
        return _built(self._root, _once(change))

    def leaves(self) -> list[Any]:
        """What stands in it, in the order of `tensors`, each once."""
        found: dict[int, Any] = {}
        todo = [self._root]
        while todo:
            each = todo.pop()
            if isinstance(each, _Node):
                todo.extend(reversed(each.parts.values()))
            else:
                found.setdefault(id(each), each)
        return list(found.values())


class _Node(NamedTuple):
    """A container taken apart."""

    make: Callable[[dict[str, Any]], Any]
    """Makes one of the same kind from its parts. Holds none of them."""
    parts: dict[str, Any]


def _once(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[int, tuple[Any, Any]] = {}  # with the thing itself, so that its number is not given again

    def one(thing: Any) -> Any:
        if id(thing) not in known:
            known[id(thing)] = thing, change(thing)
        return known[id(thing)][1]

    return one


def _apart(
    value: Any, new: Callable[[Tensor], object], other: Callable[[Any], object], above: frozenset[int]
) -> Any:
    if isinstance(value, Tensor):
        return new(value)
    if (parts := _parts(value)) is None:
        return other(value)
    if id(value) in above:
        return None  # it holds itself
    above |= {id(value)}
    return _Node(_maker(value), {name: _apart(part, new, other, above) for name, part in parts})


def _built(part: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(part, _Node):
        return part.make({name: _built(each, change) for name, each in part.parts.items()})
    return change(part)


def _maker(value: Any) -> Callable[[dict[str, Any]], Any]:
    """What makes a container of the same kind as `value` from parts by name."""
    of = type(value)
    if isinstance(value, PackedSequence):
        rest = tuple(value)[1:]
        return lambda parts: of._make((parts["data"], *rest))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return lambda parts: of._make(parts.values())
    if isinstance(value, tuple):
        return lambda parts: tuple(parts.values())
    if isinstance(value, list):
        return lambda parts: list(parts.values())
    if isinstance(value, Mapping):
        keys = tuple(value)
        named = dataclasses.is_dataclass(value)  # a ModelOutput is both
        return lambda parts: _mapping(of, dict(zip(keys, parts.values(), strict=True)), named)
    return lambda parts: _or(lambda: _dataclass(of, parts), parts)


def _mapping(of: Any, items: dict[Any, Any], named: bool) -> Any:
    if of is dict:
        return items
    return _or(lambda: of(**items) if named else of(items), items)


def _dataclass(of: Any, parts: dict[str, Any]) -> Any:
    """One of this class with these fields, set as they were: its own constructor may ask for something else."""
    made = object.__new__(of)
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    return made


def _or(make: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return make()
    except Exception:  # a constructor of the user's: it may ask for anything
        return otherwise


def _parts(value: object) -> Iterable[tuple[str, object]] | None:
    """What this container holds, each with its name; None for what is no container."""
    if isinstance(value, PackedSequence):
        return [("data", value.data)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=False)
    if isinstance(value, (tuple, list)):
        return ((str(index), each) for index, each in enumerate(value))
    if isinstance(value, Mapping):
        return ((str(key), each) for key, each in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        each = (field.name for field in dataclasses.fields(value))
        return [(name, getattr(value, name)) for name in each if hasattr(value, name)]
    return None
