"""The test process: everything that may crash, hang or abort happens here, step by step.

Started by `probe.py` as a process of its own: `python -m torchtap.selftest.child STEP...`. Each step writes a line of
JSON to standard output when it starts and when it ends, so that the parent knows how far it came. Whatever else is
printed, by torch or by a driver library, goes to standard error and becomes evidence.

A step is a function that computes and returns plain values; it never judges. torch is imported here and nowhere else
in the self-test.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import torch

from torchtap.selftest.limits import CONVOLUTION_TOLERANCE, LSTM_TOLERANCE, PRODUCTS

Values = dict[str, Any]
MARKER = "torchtap_simulated_gpu"


class LeaveOutError(Exception):
    """This step makes no sense after what an earlier one found; the text says why."""


# -- torch without a GPU -------------------------------------------------------------------------------------------
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
        "nccl_file": next(iter(_mapped("libnccl")), None),
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

    files = _mapped("libcudnn.so")
    if files:
        version: int | None = ctypes.CDLL(files[0]).cudnnGetVersion()
    else:
        version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {"version": version, "files": _mapped("libcudnn")}


def cpu_matmul(_: Reporter) -> Values:
    """A product whose exact result is known, on the CPU."""
    import torch

    return {"gpus": [{"index": -1, **_checked_product(torch.device("cpu"), torch.float32)}]}


def cpu_rnn(_: Reporter) -> Values:
    """An LSTM, forward and backward, against the formula written out."""
    import torch

    return {"gpus": [{"index": -1, **_compared(*_lstm_and_formula(torch.device("cpu")), LSTM_TOLERANCE)}]}


# -- The driver without torch ----------------------------------------------------------------------------------------
def open_nodes(_: Reporter) -> Values:
    """Open each device node for reading and writing: only that shows what a device cgroup or SELinux allows.

    They stay open: without persistence mode the driver would start the GPU again for each opening.
    """
    names = sorted(name for name in os.listdir("/dev") if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|dxg", name))  # noqa: PTH208
    nodes: dict[str, str] = {}
    for name in names:
        path = f"/dev/{name}"
        try:
            os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            nodes[path] = errno.errorcode.get(error.errno or 0, str(error.errno))
        else:
            nodes[path] = "ok"
    return {"nodes": nodes}


def cuda_library(reporter: Reporter) -> Values:
    """Load the driver's two libraries, and say which files that were."""
    values: Values = {"simulated": False, "error": None}
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {**values, "found": False, "error": str(error), "path": None, "nvml_path": None}
    try:
        values["simulated"] = ctypes.c_int.in_dll(library, MARKER).value != 0
    except ValueError:
        values["simulated"] = False
    reporter.cuda = library
    reporter.simulated = values["simulated"]
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        nvml = None
    else:
        nvml = next(iter(_mapped("libnvidia-ml.so")), None)
    return {**values, "found": True, "path": next(iter(_mapped("libcuda.so")), None), "nvml_path": nvml}


def cuda_init(reporter: Reporter) -> Values:
    """cuInit(0) as plain C: its code says more than torch, which often says nothing at all."""
    library = reporter.cuda
    if library is None:
        raise LeaveOutError("libcuda is not here")
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    has_version = library.cuDriverGetVersion(ctypes.byref(version)) == 0
    code = int(library.cuInit(0))
    reporter.cuda_code = code
    if code == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    return {
        "code": code,
        "name": _code_name(library, code),
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}" if has_version else None,
        "count": count.value,
    }


def _code_name(library: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    try:
        library.cuGetErrorName(code, ctypes.byref(name))
    except AttributeError:
        return ""
    return (name.value or b"").decode("ascii", "replace")


# -- torch with a GPU ------------------------------------------------------------------------------------------------
def torch_cuda(reporter: Reporter) -> Values:
    """torch's own start of CUDA, and the GPUs it sees."""
    import torch

    _need_cuda(reporter)
    torch.cuda.init()  # type: ignore[no-untyped-call]  # raises with a reason; is_available() only says False
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_mib": properties.total_memory >> 20,
            }
        )
    reporter.gpus = len(gpus)
    return {"gpus": gpus}


def gpu_matmul(reporter: Reporter) -> Values:
    """A product whose exact result is known, on every GPU: fp32, and bf16 where the GPU has it."""
    import torch

    gpus = []
    for device in _each_gpu(reporter):
        types = [torch.float32]
        if torch.cuda.get_device_capability(device)[0] >= 8:
            types.append(torch.bfloat16)
        parts = [_checked_product(device, dtype) for dtype in types]
        gpus.append(
            {"index": device.index, **{key: sum(part[key] for part in parts) for key in ("checked", "wrong")}}
        )
    return {"gpus": gpus}


def gpu_cudnn(reporter: Reporter) -> Values:
    """A convolution through cuDNN on every GPU against the same on the CPU."""
    gpus = [
        {"index": device.index, **_compared(*_convolutions(device), CONVOLUTION_TOLERANCE)}
        for device in _each_gpu(reporter)
    ]
    return {"gpus": gpus}


def gpu_rnn(reporter: Reporter) -> Values:
    """An LSTM through cuDNN on every GPU, forward and backward, against the same with cuDNN off."""
    gpus = [
        {"index": device.index, **_compared(*_lstm_with_and_without_cudnn(device), LSTM_TOLERANCE)}
        for device in _each_gpu(reporter)
    ]
    return {"gpus": gpus}


def _need_cuda(reporter: Reporter) -> None:
    if reporter.simulated:
        raise LeaveOutError("libcuda is simulated")
    if reporter.cuda_code != 0:
        raise LeaveOutError("CUDA did not start")


def _each_gpu(reporter: Reporter) -> Iterator[torch.device]:
    import torch

    _need_cuda(reporter)
    if not reporter.gpus:
        raise LeaveOutError("torch sees no GPU")
    for index in range(reporter.gpus):
        reporter.say_where(f"GPU {index}")
        yield torch.device("cuda", index)


# -- Computations ----------------------------------------------------------------------------------------------------
def _checked_product(device: torch.device, dtype: torch.dtype) -> Values:
    """A product of whole numbers, small enough that floating point must give it exactly (see limits.py).

    The reference is computed in 64-bit integers on the CPU, which no BLAS has a part in.
    """
    import torch

    size, terms, entry = PRODUCTS[str(dtype).removeprefix("torch.")]
    torch.manual_seed(0)
    left = torch.randint(-entry, entry + 1, (size, terms))
    right = torch.randint(-entry, entry + 1, (terms, size))
    expected = (left @ right).to(dtype)
    got = (left.to(device, dtype) @ right.to(device, dtype)).cpu()
    return {"checked": expected.numel(), "wrong": int((got != expected).sum().item())}


def _convolutions(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    import torch

    torch.manual_seed(0)
    image = torch.randint(-4, 5, (2, 8, 24, 24)).float()
    weight = torch.randint(-4, 5, (16, 8, 3, 3)).float()
    convolve = torch.nn.functional.conv2d
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        got = convolve(image.to(device), weight.to(device), padding=1)
    return [got], [convolve(image, weight, padding=1)]


def _lstm(device: torch.device) -> tuple[torch.nn.LSTM, torch.Tensor]:
    import torch

    torch.manual_seed(0)
    lstm = torch.nn.LSTM(16, 32).to(device)
    return lstm, torch.randn(10, 4, 16).to(device)


def _forward_backward(
    lstm: torch.nn.LSTM, batch: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs, then the gradients of the input and of every weight. Clears gradients that were there."""
    lstm.zero_grad(set_to_none=True)
    inputs = batch.detach().clone().requires_grad_()
    outputs = run(inputs)
    outputs.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [inputs.grad, *(weight.grad for weight in lstm.parameters())]
    return [outputs.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _lstm_and_formula(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    lstm, batch = _lstm(device)
    return (
        _forward_backward(lstm, batch, lambda inputs: lstm(inputs)[0]),
        _forward_backward(lstm, batch, lambda inputs: _formula(lstm, inputs)),
    )


def _formula(lstm: torch.nn.LSTM, inputs: torch.Tensor) -> torch.Tensor:
    """A one-layer LSTM as in its definition (torch.nn.LSTM's page)."""
    import torch

    weight_in, weight_hidden, bias_in, bias_hidden = lstm.parameters()
    hidden = cell = inputs.new_zeros(inputs.shape[1], lstm.hidden_size)
    outputs = []
    for step in inputs:
        gates = step @ weight_in.T + bias_in + hidden @ weight_hidden.T + bias_hidden
        enter, forget, new, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs)


def _lstm_with_and_without_cudnn(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    import torch

    lstm, batch = _lstm(device)
    both = []
    for enabled in (True, False):
        # TF32 off: with it, the two would differ by rounding alone.
        with torch.backends.cudnn.flags(enabled=enabled, allow_tf32=False):
            both.append(_forward_backward(lstm, batch, lambda inputs: lstm(inputs)[0]))
    return both[0], both[1]


def _compared(got: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> Values:
    """How many values differ by more than `tolerance` of the largest expected one; NaN and infinity always do."""
    checked = wrong = 0
    for one, other in zip(got, expected, strict=True):
        one, other = one.cpu().double(), other.cpu().double()  # noqa: PLW2901
        finite = one.isfinite() & other.isfinite()
        near = finite & ((one - other).abs() <= tolerance * other.abs().max())
        checked += near.numel()
        wrong += int((~near).sum().item())
    return {"checked": checked, "wrong": wrong}


def _mapped(name: str) -> list[str]:
    """Files of this process whose name begins so, by their real paths."""
    found = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and os.path.basename(path).startswith(name):  # noqa: PTH119
                found[path] = True
    return sorted(found)


# -- Running the steps -----------------------------------------------------------------------------------------------
# In this order: what leaves the driver alone comes first, so that a crash of the driver does not take it away. An LSTM
# on the CPU is not among it: the first backward() makes autograd count the devices of every backend, so it starts CUDA.
STEPS: dict[str, Callable[[Reporter], Values]] = {
    "torch.import": import_torch,
    "torch.build": torch_build,
    "torch.cudnn": torch_cudnn,
    "cpu.matmul": cpu_matmul,
    "nodes": open_nodes,
    "cuda.library": cuda_library,
    "cuda.init": cuda_init,
    "cpu.rnn": cpu_rnn,
    "torch.cuda": torch_cuda,
    "gpu.matmul": gpu_matmul,
    "gpu.cudnn": gpu_cudnn,
    "gpu.rnn": gpu_rnn,
}
# What must have run before, so that any selection of steps works.
AFTER: dict[str, tuple[str, ...]] = {
    "torch.build": ("torch.import",),
    "torch.cudnn": ("torch.import",),
    "cpu.matmul": ("torch.import",),
    "cpu.rnn": ("torch.import",),
    "cuda.init": ("cuda.library",),
    "torch.cuda": ("torch.import", "cuda.init"),
    "gpu.matmul": ("torch.cuda",),
    "gpu.cudnn": ("torch.cuda",),
    "gpu.rnn": ("torch.cuda",),
}


class Reporter:
    """Writes the lines, and remembers what later steps need to know."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._step = ""
        self.failed: set[str] = set()
        self.cuda: ctypes.CDLL | None = None
        self.simulated = False
        self.cuda_code: int | None = None
        self.gpus = 0

    def run(self, name: str) -> None:
        """One step: a line before it, a line after it, whatever it does short of ending the process."""
        self._step = name
        self._write({"step": name, "state": "start"})
        began = time.monotonic()
        try:
            before = [each for each in AFTER.get(name, ()) if each in self.failed]
            if before:
                raise LeaveOutError(f"{before[0]} failed")
            end: Values = {"state": "done", "value": STEPS[name](self)}
        except LeaveOutError as reason:
            self.failed.add(name)
            end = {"state": "left out", "error": str(reason)}
        except Exception as error:  # any library may raise anything; the text is the finding
            self.failed.add(name)
            end = {"state": "error", "error": f"{type(error).__name__}: {error}"}
        self._write({"step": name, **end, "seconds": round(time.monotonic() - began, 4)})

    def say_where(self, text: str) -> None:
        """What the step is doing now, for the report of a crash."""
        self._write({"step": self._step, "state": "where", "where": text})

    def finish(self) -> None:
        """The last line: without it, the process did not come to its own end."""
        self._write({"state": "end"})

    def _write(self, line: Values) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def with_needed(names: list[str]) -> list[str]:
    """The steps and all that must run before them, in the order of `STEPS`.

    >>> with_needed(["cpu.rnn"])
    ['torch.import', 'cpu.rnn']
    """
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += AFTER.get(name, ())
    return [name for name in STEPS if name in wanted]


def main(names: list[str]) -> None:
    """Run the steps. The results go to what was standard output; from here on nobody else writes there."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        faulthandler.enable()  # a crash leaves the Python lines it happened in
        _die_with_parent()
        reporter = Reporter(out)
        for name in with_needed(names):
            reporter.run(name)
        reporter.finish()
        # Tearing CUDA down may hang or crash on a bad driver, after everything has been said.
        out.flush()
        sys.stderr.flush()
        os._exit(0)


def _die_with_parent() -> None:
    """Ask Linux to end this process when the self-test itself is ended: a hung driver call must not stay behind."""
    pr_set_pdeathsig = 1
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return


if __name__ == "__main__":
    main(sys.argv[1:])
