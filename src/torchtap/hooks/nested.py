"""The tensors in what a module takes or gives: a tensor, or containers of tensors however nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
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


def replaced(value: Any, new: Callable[[Tensor], object]) -> Any:
    """`value` with `new(tensor)` in place of each tensor: the same structure in containers of its own.

    Containers that cannot be made anew from their parts (a mapping or dataclass with a constructor of its own) become a
    plain dict. The batch sizes and indices of a `PackedSequence` stay as they are. A tensor that is met twice is
    replaced once. What holds no tensor is handed on as it is.

    >>> import torch
    >>> replaced((torch.ones(2), [torch.ones(3)], "x"), lambda t: tuple(t.shape))
    ((2,), [(3,)], 'x')
    """
    known: dict[int, object] = {}

    def one(tensor: Tensor) -> object:
        if id(tensor) not in known:
            known[id(tensor)] = new(tensor)
        return known[id(tensor)]

    return _replaced(value, one, set())


def _replaced(value: Any, new: Callable[[Tensor], object], above: set[int]) -> Any:
    if isinstance(value, Tensor):
        return new(value)
    if (parts := _parts(value)) is None or id(value) in above:
        return value
    above = {*above, id(value)}
    return _rebuilt(value, {name: _replaced(part, new, above) for name, part in parts})


def _rebuilt(value: Any, parts: dict[str, Any]) -> Any:
    """A container like `value` of these parts."""
    if isinstance(value, PackedSequence):
        return value._replace(**parts)
    if isinstance(value, tuple):
        return type(value)(*parts.values()) if hasattr(value, "_fields") else tuple(parts.values())
    if isinstance(value, list):
        return list(parts.values())
    if isinstance(value, Mapping):
        made = dict(zip(value, parts.values(), strict=True))
        return made if type(value) is dict else _or(lambda: type(value)(made), made)  # type: ignore[call-arg]
    return _or(lambda: dataclasses.replace(value, **parts), parts)


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
