"""Arguments of other types than `judge` reads."""

from __future__ import annotations

from typing import Any

import pytest

from torchtap.selftest.smi import judge

QUERY = "nvidia-smi --query-gpu=index,memory.total --format=csv,noheader"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"text": None}, "text must be a str; it is None: pass an empty str where there is none"),
        ({"text": b"0, 81559"}, r"text must be a str; it is bytes: decode it first, with \.decode\("),
        ({"text": bytearray(b"0")}, "it is bytearray: decode it first"),
        ({"text": ["0, 81559"]}, "text must be a str; it is list"),
        ({"rc": "255"}, r"rc must be an int, or None where it is not known; it is str: pass int\('255'\)"),
        ({"rc": "failed"}, "it is str$"),
        ({"rc": True}, "rc must be an int.*; it is bool"),
        ({"rc": 0.0}, "rc must be an int.*; it is float"),
        ({"command": None}, "command must be a str or a sequence of str; it is or holds None"),
        ({"command": b"nvidia-smi"}, "it is or holds bytes: decode it first"),
        ({"command": ["nvidia-smi", 7]}, "it is or holds int"),
        ({"command": 7}, "it is or holds int"),
        ({"kind": 7}, "kind must be a Kind, its name, or None; it is int"),
        ({"mig_enabled": None}, "mig_enabled must be a collection of int"),
        ({"mig_enabled": "0"}, "mig_enabled must be a collection of int"),
        ({"mig_enabled": ["0"]}, "mig_enabled must be a collection of int"),
    ],
)
def test_an_argument_of_another_type_is_refused_with_what_to_do(arguments: dict[str, Any], says: str):
    """Before anything is judged: neither a pass nor an AttributeError of the inside."""
    given: dict[str, Any] = {"text": "0, 81559\n", "rc": 0, "command": QUERY, **arguments}
    with pytest.raises(TypeError, match=says):
        judge(**given)


@pytest.mark.parametrize("command", [QUERY, QUERY.split(), tuple(QUERY.split())])
@pytest.mark.parametrize("mig", [(), [0], {0}, frozenset({0}), range(1)])
def test_arguments_of_the_right_types_are_taken(command: Any, mig: Any):
    """Lists, tuples and sets alike."""
    assert judge("0, 81559\n", 0, command, mig_enabled=mig).verdict.value == "pass"


def test_a_kind_that_does_not_exist_is_named():
    """The error of the enum, as before."""
    with pytest.raises(ValueError, match="'jpeg'"):
        judge("", 0, "", "jpeg")
