"""The Triton kernels in Triton's interpreter against numpy, and compiled for the GPUs that we support."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchtap.monitor.stats import by_triton

ROOT = Path(__file__).parents[4]
# A torch for CPUs brings no Triton: then there is nothing to try.
TRITON = [True] if by_triton.AVAILABLE else []


@pytest.mark.slow
@pytest.mark.parametrize("available", TRITON)
def test_the_interpreter_gives_the_numbers_of_numpy(available: bool) -> None:
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.monitor.stats.interpreted"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 120


@pytest.mark.slow
@pytest.mark.parametrize("capability", [75, 90] if TRITON else [])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_the_compiler_takes_both_kernels(capability: int, dtype: str) -> None:
    """The interpreter takes much that the compiler does not. No GPU is needed to compile for one."""
    program = f"""
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from torchtap.monitor.stats import by_triton as ours
def compiled(kernel, signature, constants):
    names = dict(signature, **{{name: "constexpr" for name in constants}})
    source = ASTSource(kernel, signature=names, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", {capability}, 32), options={{"num_warps": ours.WARPS}})
    assert ".local" not in made.asm["ptx"], "registers do not suffice"
real = tl.float64 if "{dtype}" == "fp64" else tl.float32
sizes = dict(count="i64", programs="i32")
compiled(ours._partials, dict(values="*{dtype}", parts="*fp64", **sizes), dict(real=real, tile=ours.TILE))
combine = dict(parts="*fp64", row="*fp64", times="i32", **sizes)
for zeros in (True, False):
    compiled(ours._combine, combine, dict(zeros=zeros, width=ours.PROGRAMS))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_ALWAYS_COMPILE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
