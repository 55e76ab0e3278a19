"""Which tensors are found in what a module gives."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torchtap.hooks.nested import Nested, tensors

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: Tensor
    states: tuple[Tensor, ...] = ()
    never: Tensor = field(init=False)


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As in transformers: a dict of the fields of a dataclass that are not None."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            if (value := getattr(self, each.name)) is not None:
                self[each.name] = value


@dataclass
class EncoderOutput(ModelOutput):
    last: Tensor | None = None
    pooled: Tensor | None = None
    states: tuple[Tensor, ...] | None = None


def t(n: int = 1) -> Tensor:
    return torch.full((n,), float(n))


def packed() -> PackedSequence:
    return pack_sequence([t(3), t(2)])


def replaced(value: Any, new: Callable[[Tensor], object]) -> Any:
    return Nested(value, new).built()


CASES: list[tuple[Any, list[str]]] = [
    (t(), [""]),
    (torch.nn.Parameter(t()), [""]),
    ((t(), t()), ["0", "1"]),
    ([t(), (t(), [t()])], ["0", "1.0", "1.1.0"]),
    ({"a": t(), 3: t()}, ["a", "3"]),
    (Pair(t(), (t(), None)), ["left", "right.0"]),
    (Output(t(), (t(), t())), ["logits", "states.0", "states.1"]),
    (EncoderOutput(last=t(), states=(t(), t())), ["last", "states.0", "states.1"]),
    (UserDict(a=t()), ["a"]),
    (packed(), ["data"]),
    ((packed(), (t(), t())), ["0.data", "1.0", "1.1"]),
    (None, []),
    ("text", []),
    (3, []),
    (object(), []),
    ((None, "x", t(), Output), ["2"]),
    ({}, []),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_pitfall_05_tensors_of_every_kind_of_output_are_found(value: Any, expected: list[str]) -> None:
    assert [name for name, _ in tensors(value)] == expected


def test_a_tensor_is_given_once() -> None:
    one = t()
    assert [name for name, _ in tensors({"a": one, "b": [one], "c": t()})] == ["a", "c"]


def test_what_holds_itself_ends() -> None:
    loop: list[Any] = [t()]
    loop.append(loop)
    assert [name for name, _ in tensors(loop)] == ["0"]
    assert len(replaced(loop, lambda x: x)) == 2


def test_deeply_nested_is_no_recursion_error() -> None:
    deep: Any = t()
    for _ in range(5000):
        deep = [deep]
    assert len(list(tensors(deep))) == 1


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_replaced_keeps_the_structure(value: Any, expected: list[str]) -> None:
    new = replaced(value, lambda x: x + 1)
    assert type(new) is type(value) or isinstance(value, Tensor)
    assert [name for name, _ in tensors(new)] == expected
    for (_, old), (_, now) in zip(tensors(value), tensors(new), strict=True):
        assert torch.equal(old + 1, now)


def test_replaced_gives_a_plain_dict_where_a_container_cannot_be_made_anew() -> None:
    class Odd(OrderedDict):  # type: ignore[type-arg]
        def __init__(self, one: int, two: int) -> None:
            super().__init__()

    odd = Odd(1, 2)
    odd["a"] = t()
    assert replaced(odd, lambda x: 1) == {"a": 1}


def test_replaced_keeps_what_is_the_same_the_same() -> None:
    one = t()
    new = replaced([one, {"x": one}], torch.clone)
    assert new[0] is new[1]["x"] is not one


def test_a_dataclass_is_made_without_its_constructor() -> None:
    """Which may check its tensors, or compute."""

    @dataclass
    class Checked:
        values: Tensor

        def __post_init__(self) -> None:
            raise RuntimeError

    made = object.__new__(Checked)
    made.values = t()
    assert isinstance(replaced(made, torch.clone), Checked)


def test_leaves_are_in_the_order_of_tensors_each_once() -> None:
    one = t()
    parts = Nested({"a": [one, t(2)], "b": one, "c": t(3)}, lambda x: [x.numel()])
    assert parts.leaves() == [[1], [2], [3]]
    assert [leaf[0] for leaf in Nested([t(2), (t(3), t(1))], lambda x: [x.numel()]).leaves()] == [2, 3, 1]


def test_a_model_output_has_its_attributes_again() -> None:
    again = replaced(EncoderOutput(last=t(), states=(t(2),)), torch.clone)
    assert torch.equal(again.last, t())
    assert again.pooled is None
    assert torch.equal(again["states"][0], t(2))
