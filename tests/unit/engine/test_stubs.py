"""The stub libraries load into a process and return the chosen codes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.simulate import stubs
from tests.engine.simulate.hosts import load

# A child process: a library once loaded stays loaded. torch alone tells whether it can start CUDA with the library.
INIT_IN_TORCH = """
import torch, warnings
warnings.simplefilter("ignore")
print(torch.cuda.is_available())
try:
    torch.cuda.init()
except Exception as error:
    print(type(error).__name__, error)
"""


def load_library(content: bytes, folder: Path, name: str) -> ctypes.CDLL:
    path = folder / name
    path.write_bytes(content)
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("code", [0, 3, 100, 802, 999])
def test_libcuda_returns_the_chosen_codes(libraries: Path, tmp_path: Path, code: int) -> None:
    content = stubs.libcuda(libraries, replace(load("h200-good"), cuda_init=code))
    library = load_library(content, tmp_path, f"libcuda-{code}.so")
    version, count = ctypes.c_int(-1), ctypes.c_int(-1)
    assert library.cuInit(0) == code
    assert library.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 13010
    library.cuDeviceGetCount(ctypes.byref(count))
    assert count.value == 0, "nothing may compute on a GPU that is not there"
    assert ctypes.c_int.in_dll(library, "torchtap_simulated_gpu").value != 0


@pytest.mark.parametrize(
    ("said", "code"),
    [("804", 804), ("0", 0), ("", 46), ("x", 46)],
    ids=["a code", "success", "empty", "none"],
)
def test_a_process_can_choose_another_code(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int
) -> None:
    """So that one container can stand for many hosts."""
    monkeypatch.setenv("TORCHTAP_SIMULATED_CUINIT", said)
    content = stubs.libcuda(libraries, replace(load("h200-good"), cuda_init=46))
    assert load_library(content, tmp_path, f"libcuda-{said}-{code}.so").cuInit(0) == code


def test_libnvidia_ml_returns_the_chosen_codes(libraries: Path, tmp_path: Path) -> None:
    good = load_library(stubs.libnvidia_ml(libraries, load("h100x8"), 8), tmp_path, "good.so")
    count, text = ctypes.c_uint(0), ctypes.create_string_buffer(80)
    assert good.nvmlInit_v2() == 0
    assert good.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    assert count.value == 8
    assert good.nvmlSystemGetDriverVersion(text, 80) == 0
    assert text.value == b"590.48.01"
    assert good.nvmlSystemGetDriverVersion(text, 4) == 7, "too small a buffer is said, not overrun"

    broken = load_library(stubs.libnvidia_ml(libraries, load("nvml-unknown-error"), 1), tmp_path, "broken.so")
    assert broken.nvmlInit_v2() == 999
    assert broken.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 1


def test_libraries_need_no_other_library(libraries: Path) -> None:
    for library in stubs.LIBRARIES:
        said = subprocess.run(["objdump", "-p", libraries / f"{library}.so"], capture_output=True, text=True)
        assert f"SONAME               {library}.so.1" in said.stdout
        assert "NEEDED" not in said.stdout


def test_libraries_are_compiled_once(libraries: Path) -> None:
    before = (libraries / "libcuda.so").stat().st_mtime_ns
    stubs.build(libraries)
    assert (libraries / "libcuda.so").stat().st_mtime_ns == before
    (libraries / "libcuda.made-from").write_text("other sources")
    stubs.build(libraries)
    assert (libraries / "libcuda.so").stat().st_mtime_ns != before


def test_an_init_that_never_returns_can_be_killed(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(stubs.libcuda(libraries, load("hang")))
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'libcuda.so.1')!r}).cuInit(0)"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code], timeout=1)


@pytest.mark.parametrize(
    ("host", "init", "says"),
    [
        ("h200-good", 0, "RuntimeError No CUDA GPUs are available"),
        ("h200-good", 100, "RuntimeError No CUDA GPUs are available"),
        ("h200-good", 3, "RuntimeError CUDA driver initialization failed, you might not have a CUDA gpu."),
        ("h200-good", 802, "Error 802: system not yet initialized"),
        ("h200-good", 803, "Error 803: system has unsupported display driver / cuda driver combination"),
        ("h200-good", 999, "CUDA unknown error - this may be due to an incorrectly set up environment"),
        ("t4-old-driver-550", 0, "The NVIDIA driver on your system is too old (found version 12040)"),
    ],
)
def test_torch_says_what_it_says_on_a_real_host(
    libraries: Path, tmp_path: Path, host: str, init: int, says: str
) -> None:
    """The texts of torch 2.14.1 (CUDA 13.0) for these codes; is_available() stays False with every one."""
    import torch

    assert torch.version.cuda is not None, "needs a torch built for CUDA"
    if says.startswith("The NVIDIA driver") and int(torch.version.cuda.split(".")[0]) < 13:
        says = "No CUDA GPUs are available"
    (tmp_path / "libcuda.so.1").write_bytes(stubs.libcuda(libraries, replace(load(host), cuda_init=init)))
    env = {"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", INIT_IN_TORCH]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    available, _, error = done.stdout.partition("\n")
    assert available == "False"
    assert says in error, done.stderr
