"""The driver's part: device nodes, and a libcuda made for the test in a real process."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from torchtap.selftest.child.driver import open_nodes
from torchtap.selftest.child.running import Reporter
from torchtap.selftest.facts import StepState
from torchtap.selftest.probe import run_child

DRIVER_STEPS = ["cuda.library", "cuda.init", "torch.cuda", "gpu.matmul"]


@pytest.fixture
def reporter() -> Reporter:
    """Writes into a text that nobody reads."""
    return Reporter(io.StringIO())


def test_nodes_are_opened_and_refusals_told_by_name(reporter: Reporter, monkeypatch: pytest.MonkeyPatch):
    """Only NVIDIA's nodes; each with "ok" or the error's name."""
    answers = {"/dev/nvidia0": None, "/dev/nvidia1": 1, "/dev/nvidiactl": 13, "/dev/nvidia-uvm": 6}

    def opened(path: str, _: int) -> int:
        if answers[path] is not None:
            raise OSError(answers[path], "no")
        return 99

    listing = ["null", "nvidia-caps", "nvidia-modeset", *(path.removeprefix("/dev/") for path in answers)]
    monkeypatch.setattr("torchtap.selftest.child.driver.os.listdir", lambda _: listing)
    monkeypatch.setattr("torchtap.selftest.child.driver.os.open", opened)
    said = open_nodes(reporter)
    monkeypatch.undo()
    assert said == {
        "nodes": {
            "/dev/nvidia-uvm": "ENXIO",
            "/dev/nvidia0": "ok",
            "/dev/nvidia1": "EPERM",
            "/dev/nvidiactl": "EACCES",
        }
    }


# -- A libcuda made for the test, in a real process ---------------------------------------------------------------
SOURCE = """
#include <stdlib.h>
#include <unistd.h>
{marker}
int cuInit(unsigned flags) {{ (void)flags; {init} }}
int cuDriverGetVersion(int *version) {{ *version = 13010; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = 0; return 0; }}
int cuGetErrorName(int code, const char **name) {{ (void)code; *name = "CUDA_ERROR_OF_THE_TEST"; return 0; }}
"""


@pytest.fixture
def stub_libcuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compile a libcuda.so.1 whose cuInit does what is said, and put it first on the loader path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def make(init: str, *, simulated: bool = False) -> None:
        source = tmp_path / "libcuda.c"
        marker = "const int torchtap_simulated_gpu = 1;" if simulated else ""
        source.write_text(SOURCE.format(marker=marker, init=init))
        library = tmp_path / "libcuda.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    return make


@pytest.mark.parametrize("code", [0, 3, 34, 46, 100, 101, 304, 802, 803, 804, 999, 12345])
def test_cuinits_code_comes_back_as_it_is(stub_libcuda, code: int):
    """With its name, the CUDA version of the driver and the file that was loaded."""
    stub_libcuda(f"return {code};")
    said = run_child(["cuda.library", "cuda.init"])
    init = said.done("cuda.init")
    assert (init.whole("code"), init.text("name"), init.text("cuda")) == (
        code,
        "CUDA_ERROR_OF_THE_TEST",
        "13.1",
    )
    assert said.done("cuda.library").text("path").endswith("/libcuda.so.1")
    assert said.done("cuda.library").value["simulated"] is False


@pytest.mark.parametrize(
    ("init", "state"), [("abort();", StepState.CRASHED), ("_exit(0);", StepState.SILENT)]
)
def test_a_driver_that_crashes_or_ends_the_process(stub_libcuda, init: str, state: StepState):
    """The step is named, and what torch said before is kept."""
    stub_libcuda(init)
    said = run_child(["torch.import", "cpu.matmul", *DRIVER_STEPS])
    assert said.step("cuda.init").state is state
    assert said.done("cpu.matmul").records("gpus")[0].whole("wrong") == 0
    if state is StepState.CRASHED:
        assert "cuda_init" in said.answer.errors  # faulthandler's lines: where in Python it was


def test_a_driver_that_hangs(stub_libcuda):
    """The answer comes at the time-out, with the steps before it."""
    stub_libcuda("for (;;) pause();")
    said = run_child(["nodes", "cuda.library", "cuda.init"], timeout_s=3)
    assert said.step("cuda.init").state is StepState.HUNG
    assert said.done("cuda.library").value["found"] is True
    assert said.answer.seconds < 6


def test_behind_a_simulated_libcuda_nothing_computes(stub_libcuda):
    """The marker is seen, and every later step says why it was left out."""
    stub_libcuda("return 0;", simulated=True)
    said = run_child(["torch.import", *DRIVER_STEPS])
    assert said.done("cuda.library").value["simulated"] is True
    assert said.step("torch.cuda").state is StepState.LEFT_OUT
    assert said.step("torch.cuda").error == "libcuda is simulated"


def test_without_libcuda_the_loaders_words_are_kept(monkeypatch: pytest.MonkeyPatch):
    """On a machine with a driver this cannot be shown."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    said = run_child(["cuda.library", "cuda.init"])
    assert said.done("cuda.library").value["found"] is False
    assert "libcuda.so.1" in said.done("cuda.library").text("error")
    assert said.step("cuda.init").state is StepState.LEFT_OUT
