"""What a row of statistics is of: a tensor that some call of some layer gave, or the gradient that came back to it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Direction = Literal["input", "output", "gradient"]
MOST_CALLS = 8
"""Calls of one layer in one forward that have rows of their own; those beyond share the last one's."""


class Key(NamedTuple):
    """Of one row."""

    layer: int
    """Its place in `Watch.layers`; -1 is the model itself, where it is none of them."""
    call: int
    """0 for the layer's first call in a forward of the model."""
    path: str
    """Where in the output the tensor stands: "" is the output itself, "1.0" the first of the second."""
    direction: Direction


class KeyTable:
    """Keys numbered in the order in which they are first met, so that arrays can hold them."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._are_gradients: list[bool] = []
        self._numbers: dict[Key, int] = {}

    def number(self, key: Key) -> int:
        """The key's number; a new one for a new key."""
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
            self._are_gradients.append(key.direction == "gradient")
        return number

    def are_gradients(self, numbers: np.ndarray) -> np.ndarray:
        """Which of the keys with these numbers [n] are gradients', [n] bool."""
        chosen: np.ndarray = np.array(self._are_gradients, dtype=bool)[numbers]
        return chosen

    def __getitem__(self, number: int) -> Key:
        return self.keys[number]

    def __len__(self) -> int:
        return len(self.keys)


def input_name(path: str) -> str:
    """The input at this place of `(args, kwargs)`, as its user would say.

    >>> input_name("0.0"), input_name("1.input_ids"), input_name("0.2.mask.0")
    ('input 0', 'input input_ids', 'input 2[mask.0]')
    """
    _, _, rest = path.partition(".")
    name, _, inner = rest.partition(".")
    return f"input {name}" + (f"[{inner}]" if inner else "")
