"""Run the steps, and write down how far they come.

Each step writes a line of JSON to standard output when it starts and when it ends, so that the parent knows how far it
came. Whatever else is printed, by torch or by a driver library, goes to standard error and becomes evidence.
`python -m torchtap.selftest.child.running STEP...` shows the lines.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from torchtap.selftest.child.steps import STEPS, StepPlan, with_needed
from torchtap.selftest.status import Level

Values = dict[str, Any]
BEGAN = time.monotonic()


class LeaveOutError(Exception):
    """This step makes no sense after what an earlier one found; the text says why."""


class Reporter:
    """Writes the lines, and remembers what later steps need to know."""

    def __init__(self, out: TextIO, options: Mapping[str, str] | None = None) -> None:
        self._out = out
        self.options = options or {}
        self._step = ""
        self.failed: set[str] = set()
        self.cuda: ctypes.CDLL | None = None
        self.simulated = False
        self.cuda_code: int | None = None
        self.gpus = 0
        self.lost = False  # CUDA cannot be used in this process any more

    def run(self, name: str) -> None:
        """One step: a line before it, a line after it, whatever it does short of ending the process."""
        self._step = name
        began = time.monotonic()
        self._write({"step": name, "state": "start", "at": _now()})
        try:
            before = [each for each in STEPS[name].after if each in self.failed]
            if before:
                raise LeaveOutError(f"{before[0]} failed")
            end: Values = {"state": "done", "value": load(STEPS[name])(self)}
        except LeaveOutError as reason:
            self.failed.add(name)
            end = {"state": "left out", "error": str(reason)}
        except Exception as error:  # any library may raise anything; the text is the finding
            self.failed.add(name)
            end = {"state": "error", "error": f"{type(error).__name__}: {error}"}
            # After an error of a kernel, CUDA gives the same error to every later call of this process. Quick steps
            # rest on each other and say so; longer ones do not, and go on in a new process.
            kernel = type(error).__name__ == "AcceleratorError" and STEPS[name].level is not Level.QUICK
            self.lost = self.lost or kernel
        self._write({"step": name, **end, "seconds": round(time.monotonic() - began, 4)})

    def say_where(self, text: str) -> None:
        """What the step is doing now, for the report of a crash."""
        self._write({"step": self._step, "state": "where", "where": text, "at": _now()})

    def progress(self, value: Values) -> None:
        """What a long step has found so far: the report has it, whatever happens next."""
        self._write({"step": self._step, "state": "progress", "value": value})

    def finish(self) -> None:
        """The last line: without it, the process did not come to its own end."""
        self._write({"state": "end"})

    def _write(self, line: Values) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def _now() -> float:
    """Seconds since this process began."""
    return round(time.monotonic() - BEGAN, 3)


def load(plan: StepPlan) -> Callable[[Reporter], Values]:
    """The function that does a step. Imported here, so that a step costs only what it needs itself."""
    module, _, function = plan.does.rpartition(".")
    found: Callable[[Reporter], Values] = getattr(
        importlib.import_module(f"torchtap.selftest.child.{module}"), function
    )
    return found


def main(words: list[str]) -> None:
    """Run the steps of these names; "name=value" among them is an option of a step.

    The results go to what was standard output; from here on nobody else writes there."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        faulthandler.enable()  # a crash leaves the Python lines it happened in
        _die_with_parent()
        names = [word for word in words if "=" not in word]
        reporter = Reporter(out, dict(word.split("=", 1) for word in words if "=" in word))
        for name in with_needed(names):
            if not reporter.lost:
                reporter.run(name)
        reporter.finish()
        # Tearing CUDA down may hang or crash on a bad driver, after everything has been said.
        out.flush()
        sys.stderr.flush()
        os._exit(0)


def _die_with_parent() -> None:
    """Ask Linux to end this process when the self-test itself is ended: a hung driver call must not stay behind."""
    pr_set_pdeathsig = 1
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return


if __name__ == "__main__":
    # Steps import this module by its name: run that one, so that there is one LeaveOutError and not two.
    importlib.import_module("torchtap.selftest.child.running").main(sys.argv[1:])
