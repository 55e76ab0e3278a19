"""The steps themselves, with the CPU where a GPU would be; the driver's part with a libcuda made for the test."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from torchtap.selftest import child
from torchtap.selftest.facts import StepState
from torchtap.selftest.limits import LSTM_TOLERANCE, PRODUCTS
from torchtap.selftest.probe import run_child

CPU = torch.device("cpu")
DRIVER_STEPS = ["cuda.library", "cuda.init", "torch.cuda", "gpu.matmul"]


@pytest.fixture
def reporter() -> child.Reporter:
    """Writes into a text that nobody reads."""
    return child.Reporter(io.StringIO())


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_product_is_exact_in_every_type(name: str):
    """No tolerance: its numbers are whole, and every partial sum can be written in the type."""
    dtype = getattr(torch, name)
    size, terms, entry = PRODUCTS[name]
    assert child._checked_product(CPU, dtype) == {"checked": size * size, "wrong": 0}
    largest = torch.tensor(float(terms * entry * entry))
    assert torch.tensor([largest - 1, largest]).to(dtype).diff().item() == 1  # neighbours are told apart


def test_one_wrong_value_in_a_product_is_found(monkeypatch: pytest.MonkeyPatch):
    """A multiplier that is off by one in one place."""
    real = torch.Tensor.__matmul__

    def broken(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = real(self, other)
        if self.is_floating_point():
            result[3, 5] += 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", broken)
    assert child._checked_product(CPU, torch.float32)["wrong"] == 1


def test_the_lstm_agrees_with_its_formula_far_below_the_tolerance():
    """Outputs and all gradients: of the input and of four weights."""
    got, expected = child._lstm_and_formula(CPU)
    assert len(got) == 6
    assert child._compared(got, expected, LSTM_TOLERANCE / 100)["wrong"] == 0


def test_a_wrong_gradient_is_found():
    """Only one value of one gradient."""
    got, expected = child._lstm_and_formula(CPU)
    got[1][0, 0, 0] += 1
    assert child._compared(got, expected, LSTM_TOLERANCE)["wrong"] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_wrong(value: float):
    """NaN compares as different from everything, on either side."""
    good = torch.ones(3)
    bad = torch.tensor([1.0, value, 1.0])
    assert child._compared([bad], [good], 1.0)["wrong"] >= 1
    assert child._compared([good], [bad], 1.0)["wrong"] >= 1
    assert child._compared([bad], [bad], 1.0)["wrong"] >= 1


def test_the_gpus_computations_run_here_on_the_cpu():
    """The same code with another device: both sides agree, and cuDNN's switches are put back."""
    before = (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32)
    assert child._compared(*child._convolutions(CPU), 1e-6)["wrong"] == 0
    assert child._compared(*child._lstm_with_and_without_cudnn(CPU), 1e-6)["wrong"] == 0
    assert (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32) == before


def test_steps_run_after_what_they_need():
    """Any selection is completed, in the order of the table."""
    order = list(child.STEPS)
    for name in child.STEPS:
        steps = child.with_needed([name])
        assert steps == sorted(steps, key=order.index)
        assert all(need in steps for step in steps for need in child.AFTER.get(step, ()))
    assert child.with_needed([]) == []


def test_a_failing_step_stops_those_after_it_and_no_others(monkeypatch: pytest.MonkeyPatch):
    """An exception becomes a line; what needs the step is left out, the rest runs."""
    out = io.StringIO()
    reporter = child.Reporter(out)

    def fail(_: child.Reporter) -> dict[str, object]:
        raise ImportError("libcudnn.so.9: cannot open shared object file")

    monkeypatch.setitem(child.STEPS, "torch.import", fail)
    monkeypatch.setitem(child.STEPS, "nodes", lambda _: {"nodes": {}})
    for name in ("torch.import", "torch.build", "nodes"):
        reporter.run(name)
    ends = [line for line in map(json.loads, out.getvalue().splitlines()) if line["state"] != "start"]
    assert [(line["step"], line["state"]) for line in ends] == [
        ("torch.import", "error"),
        ("torch.build", "left out"),
        ("nodes", "done"),
    ]
    assert ends[0]["error"] == "ImportError: libcudnn.so.9: cannot open shared object file"


def test_nodes_are_opened_and_refusals_told_by_name(
    reporter: child.Reporter, monkeypatch: pytest.MonkeyPatch
):
    """Only NVIDIA's nodes; each with "ok" or the error's name."""
    answers = {"/dev/nvidia0": None, "/dev/nvidia1": 1, "/dev/nvidiactl": 13, "/dev/nvidia-uvm": 6}

    def opened(path: str, _: int) -> int:
        if answers[path] is not None:
            raise OSError(answers[path], "no")
        return 99

    listing = ["null", "nvidia-caps", "nvidia-modeset", *(path.removeprefix("/dev/") for path in answers)]
    monkeypatch.setattr("torchtap.selftest.child.os.listdir", lambda _: listing)
    monkeypatch.setattr("torchtap.selftest.child.os.open", opened)
    said = child.open_nodes(reporter)
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


def test_what_libraries_print_does_not_disturb_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sitecustomize that prints, and a library that writes to descriptor 1: both go to the evidence."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, os, time\n"
        "def babble():\n"
        "    for _ in range(200):\n        os.write(1, b'noise\\n'); time.sleep(0.005)\n"
        "threading.Thread(target=babble, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = run_child(["torch.import"])
    assert said.done("torch.import").text("version")
    assert "noise" in said.answer.errors
