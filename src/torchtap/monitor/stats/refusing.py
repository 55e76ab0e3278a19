"""Which tensors are measured, and what lies under those that wrap another one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

_FLOAT8 = tuple(
    dtype
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
)
MEASURED = frozenset(
    (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128, *_FLOAT8)
)
# What is a tensor of plain memory by its type alone; other types are looked at.
PLAIN = (Tensor, nn.Parameter)
_WITHOUT_VALUES = frozenset(
    ("FakeTensor", "FunctionalTensor", "UninitializedParameter", "UninitializedBuffer")
)


def refusal(tensor: Tensor) -> str | None:
    """Why `tensor` is not measured, in a few words; None where it is.

    Measured: float64, float32, bfloat16, float16, float8, complex64 and complex128 (as twice as many real numbers), of
    any shape and strides, also Parameters, and of a DTensor the local part. Reads attributes only.

    >>> refusal(torch.zeros(3)), refusal(torch.zeros(3, dtype=torch.int64))
    (None, 'int64 values')
    """
    if type(tensor) not in PLAIN:
        if isinstance(local := local_part(tensor), str):
            return local
        tensor = local
    if tensor.dtype not in MEASURED:
        return f"{str(tensor.dtype).removeprefix('torch.')} values"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return (
            "a nested tensor" if tensor.is_nested else f"layout {str(tensor.layout).removeprefix('torch.')}"
        )
    if tensor.is_meta:
        return "a meta tensor: it has no values"
    if is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return "a tensor inside a torch.func transform: it stands for many"
    if in_cuda_graph(tensor):
        return "a CUDA graph was being recorded: its replays run no hooks. Watch some steps without the graph"
    return None


def in_cuda_graph(tensor: Tensor) -> bool:
    """Whether what is done with it now is recorded, to be done again without Python."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def local_part(tensor: Tensor) -> Tensor | str:
    """The plain tensor that a subclass holds on this rank, or why it has none to measure."""
    kind = type(tensor)
    if kind in PLAIN:
        return tensor
    name = kind.__name__
    if name == "DTensor":
        local = getattr(tensor, "_local_tensor", None)
        return local_part(local) if isinstance(local, Tensor) else "a DTensor without a local part"
    if name in _WITHOUT_VALUES:
        return f"a {name}: it has no values"
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a {name}: only its own code knows what lies in its memory"
    # It changes functions, not memory (nn.Buffer, named or annotated tensors): theirs must not run here.
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)
