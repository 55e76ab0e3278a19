"""Why an operation makes NaN or Inf, and what to do: a row each."""

from __future__ import annotations

from typing import NamedTuple

from torchtap.monitor._ops import Origin


class _Row(NamedTuple):
    operators: tuple[str, ...]
    """Names of operators, or parts of names of backward nodes."""
    cause: str
    remedy: str


_HALF = ("float16",)
_BACKWARD = (
    _Row(
        ("Sqrt", "Pow"),
        "the derivative of a root is infinite at 0",
        "add a small number under the root: (x + 1e-8).sqrt()",
    ),
    _Row(
        ("Norm", "Cdist", "Dist"),
        "the derivative of a norm has 0 / 0 at a vector of zeros",
        "add a small number under the root: (x.square().sum(-1) + 1e-12).sqrt(), or F.normalize(x, eps=1e-6)",
    ),
    _Row(
        ("Log",),
        "the derivative of log is 1 / x, and x was 0 or near it",
        "clamp before it: x.clamp_min(1e-8).log()",
    ),
    _Row(
        ("Where", "Masked"),
        "torch.where takes the gradient of both branches, and 0 times an infinite one is NaN",
        "make the input of the branch that is left out harmless before the operation: f(torch.where(mask, x, 1.0))",
    ),
    _Row(
        ("Std", "Var"),
        "the derivative of std is 0 / 0 where all values are equal",
        "use var, or add eps under the root",
    ),
    _Row(
        ("Div", "Reciprocal", "Rsqrt"),
        "its derivative divides by a value that is 0 or near it",
        "clamp the divisor away from 0",
    ),
    _Row(
        ("Acos", "Asin", "Atanh", "Acosh"),
        "its derivative is infinite at the end of its range",
        "clamp inside: x.clamp(-1 + 1e-6, 1 - 1e-6)",
    ),
)
_FORWARD = (
    _Row(
        ("log", "log2", "log10", "log1p"),
        "log of 0 is -Inf, of a negative number NaN",
        "clamp before it: x.clamp_min(1e-8).log(); of a softmax: log_softmax",
    ),
    _Row(
        ("exp", "expm1", "sinh", "cosh"),
        "exp overflows: above 88 in float32, above 11 in float16",
        "subtract the maximum first (logsumexp, softmax), or clamp the exponent",
    ),
    _Row(
        ("div", "reciprocal", "remainder", "fmod"),
        "a division by 0, or by a number so small that the result overflows",
        "add a small number to the divisor, or clamp it away from 0",
    ),
    _Row(
        ("sqrt", "rsqrt", "pow"),
        "a root of a negative number is NaN, 1 / sqrt(0) is Inf, and powers overflow",
        "clamp what is under the root: x.clamp_min(1e-8)",
    ),
    _Row(
        ("acos", "asin", "atanh", "acosh"),
        "the input is outside of the function's range",
        "clamp it: x.clamp(-1 + 1e-6, 1 - 1e-6)",
    ),
    _Row(
        ("_softmax", "_log_softmax", "softmax", "_safe_softmax"),
        "a row in which everything is masked with -Inf has no softmax",
        "leave one position of each row unmasked, or mask with torch.finfo(x.dtype).min",
    ),
    _Row(
        ("native_batch_norm", "_native_batch_norm_legit", "native_layer_norm", "native_group_norm"),
        "the variance overflowed, or is 0 with an eps that is too small for this dtype",
        "eps=1e-5 or more, and the norm in float32",
    ),
    _Row(
        ("mm", "addmm", "bmm", "baddbmm", "convolution", "sum", "mul", "add", "mean", "cumsum"),
        "the result is larger than this dtype can hold",
        "find out why its inputs are so large (learning rate, initialisation, no normalisation)",
    ),
)
_OVERFLOW_16 = "float16 ends at 65,504"
_REMEDY_16 = (
    "torch.bfloat16, or this operation in float32: with torch.autocast(device, enabled=False): f(x.float())"
)


_GIVEN_INFINITY = (
    "it was given an infinity: Inf - Inf and 0 * Inf are NaN",
    "find out where the Inf comes from: the batch holds it, or a mask of -inf that leaves nothing",
)


def cause_of(origin: Origin) -> tuple[str, str]:
    """(cause, remedy), in words."""
    half = any(each.dtype in _HALF for each in origin.outputs)
    if origin.node:
        for row in _BACKWARD:
            if any(name in origin.node for name in row.operators):
                return row.cause, row.remedy
    name = (
        origin.operator.rpartition(".")[2].rstrip("_")
        if not origin.operator.endswith("__")
        else origin.operator
    )
    if any(each.infinities for each in origin.inputs) and not origin.node and "softmax" not in name:
        return _GIVEN_INFINITY
    for row in _FORWARD:
        if name in row.operators or f"_{name}" in row.operators:
            if half and not any(each.nans for each in origin.outputs):
                return f"{row.cause}; {_OVERFLOW_16}", _REMEDY_16
            return row.cause, row.remedy
    if half:
        return f"the result is larger than its dtype holds: {_OVERFLOW_16}", _REMEDY_16
    return (
        "this operation gives NaN or Inf for these inputs",
        "look at the inputs shown above; torchtap.watch tells how they came about",
    )
