"""`make test-torch TORCH=2.9.1`: the tests of modes on another PyTorch, in an environment of its own.

What `torchtap.modes` stands on is private to PyTorch in part, so each version is tried and not trusted. The environment
is not made from locks: its torch is named, and the rest is what goes with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from host import disk, proc, venv
from host.paths import Paths
from host.settings import settle
from host.show import Problem, say
from torchtap.variants import VARIANTS

TESTS = ("tests/unit/modes", "src/torchtap/modes")


def version(text: str) -> tuple[int, ...]:
    """A version as numbers, to be compared.

    >>> version("2.14.1") > version("2.9.1")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", text))


OLDEST = min((variant.torch for variant in VARIANTS.values()), key=version)


def asked() -> str:
    """The version that TORCH names; the oldest of the variants where it names none."""
    text = os.environ.get("TORCH", "").strip() or OLDEST
    if not re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", text):
        raise Problem(f"TORCH={text!r} is no version of PyTorch", f"As in:  make test-torch TORCH={OLDEST}")
    return text


def place(paths: Paths, torch: str) -> Path:
    """Where the environment for this version lies."""
    return paths.private / f"torch-{torch}"


def ensure(paths: Paths, torch: str, index: str) -> venv.Venv:
    """The environment, made where it is missing, moved, or older than pyproject.toml."""
    there = venv.Venv(place(paths, torch))
    whole = {
        "place": str(there.path),
        "pyproject.toml": hashlib.sha256((paths.root / "pyproject.toml").read_bytes()).hexdigest(),
    }
    try:
        if json.loads(there.stamp.read_text()) == whole and there.python.exists():
            return there
    except (OSError, ValueError):
        pass
    venv.check_python()
    there.stamp.unlink(missing_ok=True)
    if not venv.usable(there):
        disk.need(there.path, disk.CUDA_VENV_BYTES, f"PyTorch {torch} with what its tests need", "Free some")
        there.path.parent.mkdir(exist_ok=True)
        venv.begin(paths, there)
    indexes = ["--extra-index-url", index] if index else []
    venv.pip(
        there,
        f"PyTorch {torch} and what its tests need, in {paths.short(there.path)}",
        [*indexes, f"torch=={torch}", "--editable", f"{paths.root}[test]"],
    )
    there.stamp.write_text(json.dumps(whole) + "\n")
    return there


def main(argv: Sequence[str]) -> int:
    """Run the tests there. Arguments go to pytest, in place of all tests of modes."""
    paths = Paths()
    torch = asked()
    there = ensure(paths, torch, settle(os.environ, {}).get("TORCH_INDEX"))
    say("test-torch", f"PyTorch {torch}: {' '.join(argv or TESTS)}")
    command: list[str | Path] = [there.python, "-m", "pytest", *(argv or TESTS)]
    return proc.become(command, env=there.environment(os.environ), cwd=paths.root)
