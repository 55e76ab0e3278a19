"""Compiles kernel.c. Of the standard library alone: the build of the wheel runs this file where there is no torch.

The library's name holds a hash of its source and of the options, so one of an older source is not loaded. Its last 32
bytes are the SHA-256 of all before: a library that was cut short would end the process when it is mapped.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.c")
COMPILERS = ("cc", "gcc", "clang")
# gnu11, not c11: gcc fuses multiplications and additions only in its own dialect. No -march: it runs elsewhere too.
FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
TIMEOUT_S = 120


class BuildError(Exception):
    """The kernel could not be compiled: no compiler, or one that fails."""


def library_name() -> str:
    """Where this source, compiled for this processor, lies beside it."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:12]
    return f"_kernel.{digest}.{platform.system().lower()}-{platform.machine()}.so"


def seal(content: bytes) -> bytes:
    """`content` with its hash behind it. Linkers and loaders ignore what follows a library."""
    return content + hashlib.sha256(content).digest()


def is_sealed(content: bytes) -> bool:
    """Whether all of a library is there.

    >>> is_sealed(seal(b"library")), is_sealed(seal(b"library")[:-1])
    (True, False)
    """
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]


def compiler() -> list[str]:
    """The C compiler's command: CC where it is set, else the first there is. Raises BuildError where there is none."""
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise BuildError(f"no C compiler found (looked for {', '.join(COMPILERS)}, and CC is not set)")


def existing(folder: Path = SOURCE.parent) -> Path | None:
    """The whole library of this very source in `folder`, if there is one. Raises OSError where it cannot be read."""
    library = folder / library_name()
    return library if library.exists() and is_sealed(library.read_bytes()) else None


def build(folder: Path = SOURCE.parent) -> Path:
    """Compile into `folder`; gives the library. Raises BuildError.

    Whole or not at all: made beside it and renamed. Libraries of older sources are removed; a process that has one
    loaded keeps it.
    """
    library = folder / library_name()
    try:
        with tempfile.TemporaryDirectory(prefix=".kernel-", dir=folder) as draft:
            output = Path(draft, "kernel.so")
            _compile(output)
            output.write_bytes(seal(output.read_bytes()))
            output.chmod(0o644)
            output.replace(library)
        for other in folder.glob("_kernel.*.so"):
            if other.name.split(".", 2)[2] == library.name.split(".", 2)[2] and other != library:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise BuildError(f"cannot write into {folder}: {error.strerror}") from error
    return library


def _compile(output: Path) -> None:
    command = [*compiler(), *FLAGS, str(SOURCE), "-o", str(output), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"the compiler {command[0]} is not there") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler {command[0]} did not end in {TIMEOUT_S} s") from error
    if done.returncode != 0 or not output.exists():
        said = done.stderr.strip().splitlines()[-3:] or [f"exit code {done.returncode}"]
        raise BuildError(f"{command[0]} failed: {' / '.join(said)}")


def main() -> int:
    """Compile the kernel into the source tree; without a compiler say so. A step of the image's build."""
    try:
        sys.stdout.write(f"torchtap: compiled {build().name}\n")
    except BuildError as error:
        sys.stderr.write(f"torchtap: no C kernel for the statistics: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
