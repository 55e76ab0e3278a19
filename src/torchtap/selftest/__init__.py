"""The self-test: does the GPU work for PyTorch, and if not, what is the one thing to do?

`run` tests this machine and returns a `Report`; the command `torchtap selftest` prints it. `smi` reads and judges
outputs of nvidia-smi and can be used alone. Checks are data (`CHECKS`): the table in docs/selftest.md is made of them.

>>> from torchtap import selftest
>>> selftest.run("cpu", only=["cpu.matmul"]).verdict.value
'pass'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap.selftest import smi
    from torchtap.selftest.checks import CHECKS
    from torchtap.selftest.gather import SettingError
    from torchtap.selftest.result import Report, Result
    from torchtap.selftest.runner import UnknownCheckError, run
    from torchtap.selftest.status import Device, Remedy, Status

__all__ = [
    "CHECKS",
    "Device",
    "Remedy",
    "Report",
    "Result",
    "SettingError",
    "Status",
    "UnknownCheckError",
    "run",
    "smi",
]
# Where each name lives. Loaded at first use, because the test process and the health check need only a part.
_WHERE = {
    "CHECKS": "checks",
    "Device": "status",
    "Remedy": "status",
    "Report": "result",
    "Result": "result",
    "SettingError": "gather",
    "Status": "status",
    "UnknownCheckError": "runner",
    "run": "runner",
}


def __getattr__(name: str) -> object:
    if name == "smi":
        return import_module("torchtap.selftest.smi")
    if name not in _WHERE:
        raise AttributeError(f"module 'torchtap.selftest' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"torchtap.selftest.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
