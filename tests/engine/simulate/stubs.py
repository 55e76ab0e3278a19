"""Stub driver libraries: compiled once by the machine's gcc, then given each host's values.

The values are written into the compiled file, so that the hook, which runs where there is no compiler, can make a
library for any host.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
from pathlib import Path

from tests.engine.simulate.hosts import Host

SOURCES = Path(__file__).with_name("stubs")
LIBRARIES = ("libcuda", "libnvidia-ml")
MARK = b"torchtap-values\0"  # stands before the values in both libraries (struct settings)
NEVER = -1  # of settings.cu_init
FLAGS = (
    *("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"),
    *("-ffreestanding", "-nostdlib", "-fno-stack-protector"),  # no libc: loads into any process
    "-Wl,--hash-style=both",
)


class StubError(RuntimeError):
    """The stub libraries could not be compiled."""


def build(folder: Path) -> None:
    """Compile both libraries into `folder`, unless they are there and made from these sources.

    Raises `StubError` with what gcc said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        source = SOURCES / f"{library}.c"
        made_from = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
        mark, target = folder / f"{library}.made-from", folder / f"{library}.so"
        if target.exists() and mark.exists() and mark.read_text() == made_from:
            continue
        beside = target.with_suffix(".new")
        command = ["gcc", *FLAGS, f"-Wl,-soname,{library}.so.1", "-o", str(beside), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StubError(f"{' '.join(command)}: {done.stderr.strip()}")
        beside.replace(target)
        mark.write_text(made_from)


def libcuda(folder: Path, host: Host) -> bytes:
    """libcuda.so.1 for a host; `folder` is where `build` has put the libraries."""
    init = NEVER if host.cuda_init is None else host.cuda_init
    return _with_values(folder / "libcuda.so", struct.pack("ii", init, host.cuda_driver_version))


def libnvidia_ml(folder: Path, host: Host, devices: int) -> bytes:
    """libnvidia-ml.so.1 for a host of which `devices` GPUs are visible."""
    numbers = (host.nvml_init, devices, host.cuda_driver_version)
    return _with_values(folder / "libnvidia-ml.so", struct.pack("iii32s", *numbers, host.driver.encode()))


def _with_values(library: Path, values: bytes) -> bytes:
    compiled = library.read_bytes()
    if compiled.count(MARK) != 1:
        raise StubError(
            f"{library}: the place for its values is there {compiled.count(MARK)} times, not once"
        )
    start = compiled.index(MARK) + len(MARK)
    return compiled[:start] + values + compiled[start + len(values) :]
