"""`pytest --emulate-cudnn`: someone else's test suite under cuDNN's rule, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEADER = "torchtap: CPU RNNs under cuDNN's rule"

SUITE = """\
import torch

AT_IMPORT = torch.nn.GRU(4, 3)(torch.zeros(5, 2, 4))[0].grad_fn.name()


def loss_of(rnn):
    return rnn(torch.zeros(5, 2, 4))[0].sum()


def test_trains():
    loss_of(torch.nn.LSTM(4, 3)).backward()


def test_forgets_train():
    rnn = torch.nn.LSTM(4, 3)
    rnn.eval()
    loss_of(rnn).backward()


def test_fails_by_itself():
    loss_of(torch.nn.LSTM(4, 3).eval())
    raise ValueError("not cuDNN")


def test_code_at_import_is_under_it_too():
    assert AT_IMPORT == "CudnnRnnBackward0"
"""
NO_TORCH = """\
import sys


def test_no_torch():
    assert "torch" not in sys.modules
"""


class Suite:
    """A folder with tests, and an installed Torchtap: its metadata alone, as pip would write it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        info = self.site / "torchtap-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchtap\nVersion: 0\n")
        (info / "entry_points.txt").write_text(entry_points())

    def run(
        self, text: str, *arguments: str, ini: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        tests = self.folder / "tests"
        tests.mkdir(exist_ok=True)
        (tests / "test_it.py").write_text(text)
        (tests / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TORCHTAP"))}
        path = os.pathsep.join([str(self.site), str(REPOSITORY / "src")])
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=tests,
            env={**kept, "PYTHONPATH": path, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )


def entry_points() -> str:
    """As in pyproject.toml (Python 3.10 has no tomllib)."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    found = re.search(r"^\[project\.entry-points\.pytest11\]\n((?:\w+ = .+\n)+)", text, re.MULTILINE)
    assert found is not None
    return "[pytest11]\n" + found[1].replace('"', "")


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_pyproject_installs_it() -> None:
    assert entry_points() == "[pytest11]\ntorchtap = torchtap.pytest_plugin\n"


def test_a_suite_fails_as_on_a_gpu_and_is_told_where(suite: Suite) -> None:
    done = suite.run(SUITE, "--emulate-cudnn")
    assert f"{HEADER} (--emulate-cudnn)" in done.stdout
    assert "2 failed, 2 passed" in done.stdout
    assert "RuntimeError: cudnn RNN backward can only be called in training mode" in done.stdout
    (section,) = re.findall(r"- torchtap: RNN calls in eval mode -+\n((?:  .+\n)+)", done.stdout)
    assert (
        "LSTM, call 1: its forward at test_it.py:7 ran in eval mode, set by LSTM.eval() at test_it.py:16"
        in section
    )
    assert "do: " in section


def test_unasked_it_does_nothing_and_imports_no_torch(suite: Suite) -> None:
    done = suite.run(NO_TORCH)
    assert "plugins: " in done.stdout
    assert "torchtap" in done.stdout.split("plugins: ")[1].splitlines()[0]
    assert "1 passed" in done.stdout
    assert HEADER not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "ini", "variable", "asked_by"),
    [
        ([], "", "1", "TORCHTAP_EMULATE_CUDNN=1"),
        ([], "emulate_cudnn = true", "", "emulate_cudnn in pytest's configuration"),
        (["--emulate-cudnn"], "emulate_cudnn = false", "0", "--emulate-cudnn"),
        (["--no-emulate-cudnn"], "emulate_cudnn = true", "1", None),
        ([], "emulate_cudnn = true", "0", None),
    ],
)
def test_who_asks_and_who_wins(
    suite: Suite, arguments: list[str], ini: str, variable: str, asked_by: str | None
) -> None:
    done = suite.run("", *arguments, "--collect-only", ini=ini, TORCHTAP_EMULATE_CUDNN=variable)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert re.findall(rf"^{HEADER} \((.*)\)$", done.stdout, re.MULTILINE) == ([asked_by] if asked_by else [])


def test_nonsense_in_the_variable_is_a_usage_error(suite: Suite) -> None:
    done = suite.run(NO_TORCH, TORCHTAP_EMULATE_CUDNN="maybe")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "TORCHTAP_EMULATE_CUDNN is 'maybe': set 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("option", "opened"), [("--emulate-cudnn", True), ("--no-emulate-cudnn", False)])
@pytest.mark.parametrize("variable", ["ja", "1", "0"])
def test_the_option_wins_over_the_variable_for_torchtap_too(
    suite: Suite, option: str, opened: bool, variable: str
) -> None:
    """`import torchtap.modes` reads the variable, nonsense or not, and opens the emulation by itself."""
    text = f"import torch, torchtap.modes\n\n\ndef test_it():\n    assert ('lstm' in vars(torch._VF)) is {opened}\n"
    done = suite.run(text, option, ini="emulate_cudnn = nonsense", TORCHTAP_EMULATE_CUDNN=variable)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_nonsense_in_the_configuration_names_the_setting(suite: Suite) -> None:
    done = suite.run(NO_TORCH, ini="emulate_cudnn = ja")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [each for each in done.stderr.splitlines() if "emulate_cudnn" in each]
    assert re.search(r"emulate_cudnn in pytest's configuration: .*'ja'.*\. Write true or false$", line)
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_collected_is_told_where(suite: Suite) -> None:
    done = suite.run(
        "import torch\n\nrnn = torch.nn.GRU(4, 3)\nrnn.eval()\nloss = rnn(torch.zeros(5, 2, 4))[0].sum()\n"
        "loss.backward()\n",
        "--emulate-cudnn",
    )
    assert "1 error" in done.stdout
    (section,) = re.findall(r"- torchtap: RNN calls in eval mode -+\n((?:  .+\n)+)", done.stdout)
    assert (
        "GRU, call 1: its forward at test_it.py:5 ran in eval mode, set by GRU.eval() at test_it.py:4"
        in section
    )


def test_it_can_be_left_out(suite: Suite) -> None:
    assert "1 passed" in suite.run(NO_TORCH, "-p", "no:torchtap", TORCHTAP_EMULATE_CUDNN="1").stdout
    refused = suite.run(NO_TORCH, "-p", "no:torchtap", "--emulate-cudnn")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR


def test_kernels_of_somebody_else_are_a_usage_error(suite: Suite) -> None:
    (suite.site / "rival.py").write_text(
        "import torch\nlibrary = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('_cudnn_rnn', lambda *_: None, 'CPU')\n"
    )
    done = suite.run(NO_TORCH, "-p", "rival", "--emulate-cudnn")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--emulate-cudnn: aten::_cudnn_rnn has a CPU kernel already" in done.stderr


def test_in_one_process_with_other_runs_it_leaves_no_trace(suite: Suite) -> None:
    """pytest.main() twice, as tools that embed pytest do."""
    (suite.site / "twice.py").write_text(
        "import pytest, torch\n"
        "codes = [pytest.main(['-q', '-k', 'trains', *a]) for a in (['--emulate-cudnn'], [])]\n"
        "print('codes', *map(int, codes), 'lstm' in vars(torch._VF))\n"
    )
    suite.run(SUITE, "--version")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TORCHTAP"))}
    done = subprocess.run(
        [sys.executable, "-m", "twice"],
        cwd=suite.folder / "tests",
        env={**kept, "PYTHONPATH": os.pathsep.join([str(suite.site), str(REPOSITORY / "src")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1] == "codes 0 0 False"
