"""What `judge` is given, before it is looked at: an argument of another type gets an error that says what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def check_arguments(text: object, rc: object, command: object, kind: object, mig_enabled: object) -> None:
    """Raises `TypeError` for the first argument that `judge` cannot read.

    >>> check_arguments(b"", 0, "", None, ())
    Traceback (most recent call last):
        ...
    TypeError: text must be a str; it is bytes: decode it first, with .decode(errors="replace")
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str; it is {_type_of(text)}{_hint(text)}")
    if rc is not None and (not isinstance(rc, int) or isinstance(rc, bool)):
        hint = f": pass int({rc!r})" if isinstance(rc, str) and rc.lstrip("-").isdecimal() else ""
        raise TypeError(f"rc must be an int, or None where it is not known; it is {_type_of(rc)}{hint}")
    words = [command] if isinstance(command, str | bytes) or not isinstance(command, Sequence) else command
    for word in words:
        if not isinstance(word, str):
            raise TypeError(
                f"command must be a str or a sequence of str; it is or holds {_type_of(word)}{_hint(word)}"
            )
    if kind is not None and not isinstance(kind, str):
        raise TypeError(f"kind must be a Kind, its name, or None; it is {_type_of(kind)}{_hint(kind)}")
    if (
        isinstance(mig_enabled, str | bytes)
        or not isinstance(mig_enabled, Collection)
        or not all(isinstance(index, int) and not isinstance(index, bool) for index in mig_enabled)
    ):
        raise TypeError(
            f"mig_enabled must be a collection of int, the indexes of GPUs; it is {mig_enabled!r:.60}"
        )


def _type_of(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _hint(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return ': decode it first, with .decode(errors="replace")'
    return ": pass an empty str where there is none" if value is None else ""
