"""cuDNN's refusal of backward, in all its wordings, and the same error with an explanation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtap.modes._blame import told
from torchtap.modes._findings import CallFinding
from torchtap.modes._kernels import EVAL_BACKWARD
from torchtap.modes._observer import RnnCall

_TEXTS = re.compile(
    r"(cudnn|miopen) RNN backward can only be called in training mode"
    r"|backward_(input|weight) can only be called in training mode"  # torch 0.4.0
)
_ONLY_HERE = "  Nothing raises by itself on this device: the guard did, as cuDNN on a GPU would."
_NOTHING_KNOWN = "  some RNN's forward ran in eval mode; which one cannot be read from the graph"


def refusal(call: RnnCall) -> RuntimeError:
    """What cuDNN would raise for this call, where nothing raises by itself."""
    error = RuntimeError(EVAL_BACKWARD)
    error.call = call  # type: ignore[attr-defined]
    return error


def refused_call(error: BaseException) -> RnnCall | None:
    """The call that `refusal` was made for; None for an error that came by itself."""
    return getattr(error, "call", None)


def is_refusal(error: BaseException) -> bool:
    """Whether it is cuDNN's, or MIOpen's, refusal; explained or not."""
    return isinstance(error, RuntimeError) and bool(_TEXTS.search(str(error)))


def is_explained(error: BaseException) -> bool:
    """Whether `explained` made it."""
    return isinstance(getattr(error, "findings", None), tuple)


def explained(error: RuntimeError, findings: Sequence[CallFinding]) -> RuntimeError:
    """The same error, its text first, then where, why and what to do; `findings` are attached to it."""
    text = f"{error}\n{told(findings) or _NOTHING_KNOWN}" + (f"\n{_ONLY_HERE}" if refused_call(error) else "")
    result = _like(error, text)
    result.findings = tuple(findings)  # type: ignore[attr-defined]
    return result


def _like(error: RuntimeError, text: str) -> RuntimeError:
    """An error of the same class, so that what catches the one catches the other."""
    try:
        result = type(error)(text)
    except Exception:
        return RuntimeError(text)
    return result if str(result) == text else RuntimeError(text)
