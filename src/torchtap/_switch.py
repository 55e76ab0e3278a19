"""TORCHTAP_EMULATE_CUDNN, read by `import torchtap.modes` and by the pytest plugin. Imports nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "TORCHTAP_EMULATE_CUDNN"
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


def emulation_asked(environ: Mapping[str, str]) -> bool | None:
    """Whether the environment asks for `emulate_cudnn()` in the whole process; None where it says nothing.

    Upper or lower case; an empty value says nothing. Raises `ValueError` for any other word: to take it for either
    would hide a slip.

    >>> emulation_asked({VARIABLE: "1"}), emulation_asked({VARIABLE: "off"}), emulation_asked({VARIABLE: ""})
    (True, False, None)
    >>> emulation_asked({VARIABLE: "ja"})
    Traceback (most recent call last):
    ...
    ValueError: TORCHTAP_EMULATE_CUDNN is 'ja': set 1 to run CPU RNNs under cuDNN's rule, 0 to leave them as they are
    """
    value = environ.get(VARIABLE, "").strip()
    if not value:
        return None
    if value.lower() in _ON | _OFF:
        return value.lower() in _ON
    raise ValueError(
        f"{VARIABLE} is {value!r}: set 1 to run CPU RNNs under cuDNN's rule, 0 to leave them as they are"
    )
