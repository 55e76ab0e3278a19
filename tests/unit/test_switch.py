"""TORCHTAP_EMULATE_CUDNN: what it may be, and what `import torchtap.modes` does with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchtap._switch import VARIABLE, emulation_asked

SOURCE = Path(__file__).parents[2] / "src"
REPORT = """
import torch
before = "lstm" in vars(torch._VF)
from torchtap import modes
with modes.emulate_cudnn():
    pass
out, _ = torch.nn.LSTM(4, 3).eval()(torch.zeros(5, 2, 4))
print(before, "lstm" in vars(torch._VF), out.grad_fn.name())
"""


CHILDREN = """
import multiprocessing, os

def node(queue):
    import torch, torchtap.modes
    queue.put(torch.nn.GRU(4, 3)(torch.zeros(5, 2, 4))[0].grad_fn.name())

if __name__ == "__main__":
    from torchtap import modes
    spawning = multiprocessing.get_context("spawn")
    queue = spawning.Queue()
    with modes.emulate_cudnn():
        for value in ("", "1"):
            os.environ["TORCHTAP_EMULATE_CUDNN"] = value
            child = spawning.Process(target=node, args=(queue,))
            child.start()
            print(queue.get(timeout=200))
            child.join()
"""


def imported(value: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REPORT],
        env={**os.environ, "PYTHONPATH": "src", VARIABLE: value},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        *((each, True) for each in ("1", "TRUE", "yes", "on", " 1 ")),
        *((each, False) for each in ("0", "false", "No", "off")),
        *((each, None) for each in ("", " ")),
    ],
)
def test_values_that_are_understood(value: str, asked: bool | None) -> None:
    assert emulation_asked({VARIABLE: value}) is asked


def test_unset_says_nothing() -> None:
    assert emulation_asked({}) is None


@pytest.mark.parametrize("value", ["2", "maybe", "cudnn", "-1"])
def test_any_other_word_is_an_error(value: str) -> None:
    with pytest.raises(ValueError, match=f"^TORCHTAP_EMULATE_CUDNN is '{value}': set 1 to run"):
        emulation_asked({VARIABLE: value})


def test_set_it_opens_at_import_and_stays_open() -> None:
    assert imported("1").stdout == "False True CudnnRnnBackward0\n"


def test_off_nothing_is_opened() -> None:
    out = imported("0").stdout
    assert out.startswith("False False ")
    assert "CudnnRnn" not in out


def test_nonsense_stops_the_import_with_a_clear_error() -> None:
    assert "ValueError: TORCHTAP_EMULATE_CUDNN is 'maybe': set 1" in imported("maybe").stderr


def test_children_that_are_spawned_are_under_it_by_the_variable_alone(tmp_path: Path) -> None:
    """A new process inherits the environment and nothing that is open."""
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    inherited, asked = done.stdout.split()
    assert (inherited.startswith("CudnnRnn"), asked) == (False, "CudnnRnnBackward0"), done.stderr
