"""torch as it is installed, and the libraries that go with it: what leaves the driver alone."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util

from torchtap.selftest.child.mapped import mapped
from torchtap.selftest.child.running import Reporter, Values


def import_torch(_: Reporter) -> Values:
    """Import torch and say which one it is."""
    import torch

    return {"version": torch.__version__, "cuda": torch.version.cuda, "file": torch.__file__}


def torch_build(_: Reporter) -> Values:
    """The architectures this torch has code for, and the NCCL and Triton that go with it, by version and file.

    Not torch.cuda.get_arch_list(): until torch 2.9 it asks the driver first, which may hang.
    """
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    nccl = getattr(torch._C, "_nccl_version", None)
    triton = importlib.util.find_spec("triton")
    return {
        "arch_list": (flags() or "").split() if flags is not None else [],
        "nccl": ".".join(map(str, torch.cuda.nccl.version()[:3])) if nccl is not None else None,  # type: ignore[no-untyped-call]
        "nccl_file": next(iter(mapped("libnccl")), None),
        "triton": _version_of("triton") if triton is not None else None,
        "triton_file": triton.origin if triton is not None else None,
    }


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cudnn(_: Reporter) -> Values:
    """cuDNN's version as the loaded library says it, and the files that are mapped.

    torch.backends.cudnn.version() says the same, but starts CUDA for it, which may hang or crash: seen with a libcuda
    that aborts. It is asked only where cuDNN is no library of its own (a static build).
    """
    import torch

    files = mapped("libcudnn.so")
    if files:
        version: int | None = ctypes.CDLL(files[0]).cudnnGetVersion()
    else:
        version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {"version": version, "files": mapped("libcudnn")}
