"""The ways of measuring: the C kernel with each set of instructions of this processor, and PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from tests.unit.monitor.stats.reference import Row, measured, measured_there
from torchtap.monitor import stats
from torchtap.monitor.stats import build, host, kernel

Way = Callable[..., Row]


def _compiler_is_there() -> bool:
    try:
        build.compiler()
    except build.BuildError:
        return False
    return True


LEVELS = (0, 1, 2) if _compiler_is_there() else ()
WAYS = ("operators on the host", "operators on the device", *(f"C kernel, level {level}" for level in LEVELS))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel, of the source tree or compiled for these tests; asked for only where there is a compiler."""
    return build.existing() or build.build(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="session")
def compiled(library: Path) -> kernel.Kernel:
    return kernel.load(library)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """A function (tensor, zeros=True) -> row."""
    name: str = request.param
    if name == "operators on the host":
        yield partial(measured, host.row_by_torch)
    elif name == "operators on the device":
        yield partial(measured_there, stats.device_row)
    else:
        compiled: kernel.Kernel = request.getfixturevalue("compiled")
        # A level that the processor does not have is its best one, tried again.
        compiled.set_level(int(name[-1]))
        monkeypatch.setattr(kernel, "found", lambda: kernel.Found(compiled, "for a test"))

        def by_kernel(tensor: Tensor, zeros: bool = True) -> Row:
            return measured(stats.host_row, tensor, zeros)

        yield by_kernel
        compiled.set_level(-1)
