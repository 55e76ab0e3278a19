"""Compiling, finding and loading the kernel, and what happens where that cannot be."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.monitor.stats.conftest import LEVELS
from tests.unit.monitor.stats.reference import agree, measured
from torchtap.monitor import stats
from torchtap.monitor.stats import build, kernel

ROOT = Path(__file__).parents[4]
HATCHLING = (
    find_spec("hatchling") is not None
)  # of the tools that build wheels: not beside every torch we test with
needs_compiler = pytest.mark.parametrize("library_is_made", [True] if LEVELS else [])


@pytest.fixture
def folder(tmp_path: Path, library: Path) -> Path:
    """A folder with the library of this source."""
    shutil.copy(library, tmp_path / build.library_name())
    return tmp_path


def fake_compiler(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my-cc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))


# What the compilers below make is no library; only the steps around them are tried.
WRITES = 'while [ "$1" != -o ]; do shift; done; printf library > "$2"'


def test_it_compiles_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, WRITES, monkeypatch)
    folder = tmp_path / "there"
    folder.mkdir()
    library = build.build(folder)
    assert [path.name for path in folder.iterdir()] == [library.name]
    assert library.read_bytes() == build.seal(b"library")
    assert build.existing(folder) == library
    fake_compiler(tmp_path, f"{WRITES}; echo no room >&2; exit 1", monkeypatch)
    with pytest.raises(build.BuildError, match=r"my-cc failed: no room$"):
        build.build(folder)
    assert library.read_bytes() == build.seal(b"library")
    assert list(folder.iterdir()) == [library]


def test_another_source_has_another_name_and_replaces_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, WRITES, monkeypatch)
    folder = tmp_path / "there"
    folder.mkdir()
    older = build.build(folder)
    of_another_machine = folder / "_kernel.0123456789ab.linux-other64.so"
    of_another_machine.touch()
    source = tmp_path / "kernel.c"
    source.write_text(build.SOURCE.read_text() + "\n")
    monkeypatch.setattr(build, "SOURCE", source)
    assert build.existing(folder) is None
    found = kernel.find(folder)
    assert found.kernel is None
    assert (
        "is of another source or processor; to compile it: python -m torchtap.monitor.stats --build"
        in found.why
    )
    newer = build.build(folder)
    assert newer != older
    assert sorted(folder.iterdir()) == sorted([newer, of_another_machine])


def test_without_a_compiler_it_says_what_it_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        build.BuildError, match="no C compiler found \\(looked for cc, gcc, clang, and CC is not set\\)"
    ):
        build.build(tmp_path)
    monkeypatch.setenv("CC", "/no/such/cc")
    with pytest.raises(build.BuildError, match="the compiler /no/such/cc is not there"):
        build.build(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, WRITES, monkeypatch)
    with pytest.raises(build.BuildError, match=r"cannot write into .*absent: No such file"):
        build.build(tmp_path / "absent")


def test_nothing_compiled_is_no_reason_to_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel.find(tmp_path)
    assert found == kernel.Found(
        None, "it was not compiled; to compile it: python -m torchtap.monitor.stats --build"
    )


def test_without_a_kernel_the_operators_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "found", lambda: kernel.Found(None, "for a test"))
    tensor = torch.tensor([1.0, 0.0, float("inf")])
    agree(measured(stats.host_row, tensor), tensor)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "a byte changed": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "a sealed text": lambda content: build.seal(b"not a library"),
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_said_once_and_not_used(
    folder: Path, damage: str, library_is_made: bool
) -> None:
    library = folder / build.library_name()
    library.write_bytes(DAMAGES[damage](library.read_bytes()))
    with pytest.warns(kernel.KernelWarning, match=r"cannot be used: .*--build$") as said:
        found = kernel.find(folder)
    assert found.kernel is None
    assert len(said) == 1


@needs_compiler
@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ("int nothing;", "torchtap_abi"),
        ("int torchtap_abi(void) { return 99; }", "its interface is 99, not 1"),
        (
            "int torchtap_abi(void) { return 1; } int torchtap_level(int x) { return x; }"
            'const char *torchtap_level_name(void) { return "x"; } void torchtap_row(void) {}',
            "it measures wrongly",
        ),
    ],
    ids=["of something else", "of another interface", "measuring wrongly"],
)
def test_another_library_in_its_place_is_not_used(
    tmp_path: Path, source: str, trouble: str, library_is_made: bool
) -> None:
    (tmp_path / "other.c").write_text(source)
    output = tmp_path / build.library_name()
    subprocess.run([*build.compiler(), *build.FLAGS, tmp_path / "other.c", "-o", output], check=True)
    output.write_bytes(build.seal(output.read_bytes()))
    with pytest.warns(kernel.KernelWarning, match=trouble):
        assert kernel.find(tmp_path).kernel is None


@needs_compiler
def test_the_library_leaves_denormals_of_the_process_alone(library: Path, library_is_made: bool) -> None:
    """Linked with -ffast-math it would switch them off for everybody."""
    program = f"import ctypes; ctypes.CDLL({str(library)!r}); print(5e-324 * 1.0, 1e-310 / 10)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5e-324", "1e-311"]


@needs_compiler
def test_it_runs_without_the_compilers_own_libraries(library: Path, library_is_made: bool) -> None:
    """Only libc and libm: what a compiler brings (libgcc_s, libgomp) is not on every machine."""
    content = library.read_bytes()
    assert b"libgomp" not in content
    assert b"libgcc_s" not in content


@needs_compiler
def test_large_tensors_leave_the_gil_to_others(
    compiled: kernel.Kernel, monkeypatch: pytest.MonkeyPatch, library_is_made: bool
) -> None:
    used = []
    spy = kernel.Kernel(
        holding=lambda *_: used.append("holding"),
        releasing=lambda *_: used.append("releasing"),
        level=compiled.level,
        set_level=compiled.set_level,
    )
    monkeypatch.setattr(kernel, "found", lambda: kernel.Found(spy, "for a test"))
    row = np.zeros(8)
    for size in (64, 1_000_000):
        stats.host_row(torch.zeros(size), row.ctypes.data, True)
    assert used == ["holding", "releasing"]


@pytest.mark.slow
def test_the_process_says_which_way_it_goes(tmp_path: Path) -> None:
    """In a copy, where nothing is compiled; then with --build, as a user would."""
    shutil.copytree(
        ROOT / "src" / "torchtap",
        tmp_path / "torchtap",
        ignore=shutil.ignore_patterns("_kernel.*", "__pycache__"),
    )

    def said(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "torchtap.monitor.stats", *options],
            env={**os.environ, "PYTHONPATH": str(tmp_path), **environ},
            capture_output=True,
            text=True,
        )

    plain = said()
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.startswith("CPU tensors: PyTorch's operators (it was not compiled; to compile it: ")
    failed = said("--build", CC="/no/such/cc")
    assert failed.returncode == 1
    assert failed.stderr == "torchtap: not compiled: the compiler /no/such/cc is not there\n"
    if LEVELS:
        assert said("--build").stdout.startswith("CPU tensors: C kernel (_kernel.")


@pytest.mark.slow
@pytest.mark.parametrize("with_compiler", ([True, False] if LEVELS else [False]) if HATCHLING else [])
def test_the_wheel_holds_the_kernel_where_there_is_a_compiler(tmp_path: Path, with_compiler: bool) -> None:
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__", *([] if with_compiler else ["_kernel.*"]))
    shutil.copytree(ROOT / "src", source / "src", ignore=ignore)
    stale = source / "src/torchtap/monitor/stats/_kernel.0123456789ab.linux-x86_64.so"
    stale.touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    environ = {key: value for key, value in os.environ.items() if key != "CC"}
    environ |= {} if with_compiler else {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheel"],
        cwd=source,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    kernels = [name for name in names if "_kernel." in name]
    assert "torchtap/monitor/stats/kernel.c" in names
    assert not [name for name in names if name.startswith("build/")]
    if with_compiler:
        assert kernels == [f"torchtap/monitor/stats/{build.library_name()}"]
        assert "-py3-none-linux_" in wheel.name
    else:
        assert kernels == []
        assert wheel.name.endswith("-py3-none-any.whl")
        assert "no C kernel for the statistics: no C compiler found" in done.stdout + done.stderr


def test_both_ends_know_the_same_types() -> None:
    source = build.SOURCE.read_text()
    assert "enum { FLOAT, DOUBLE, BFLOAT16, HALF };" in source
    assert [kernel.TYPES[t] for t in (torch.float32, torch.float64, torch.bfloat16, torch.float16)] == [
        0,
        1,
        2,
        3,
    ]
    assert f"#define ABI {kernel.ABI} " in source
    assert ctypes.sizeof(ctypes.c_double) * stats.ROW == 64
