"""Run a test suite under cuDNN's rule on a machine without a GPU: `pytest --emulate-cudnn`.

Installed with Torchtap (entry point `torchtap`; `-p no:torchtap` leaves it out). Asked for by, strongest first,
`--emulate-cudnn` or `--no-emulate-cudnn`, TORCHTAP_EMULATE_CUDNN=1 or =0 in the environment, or `emulate_cudnn = true`
in pytest's configuration. Unasked it does nothing and imports nothing, torch neither.

Open from before collection to the end of the run, so code that runs at import is under the rule too; only what
conftest files do while they are imported comes before it. A test that fails with cuDNN's error, or a file that
cannot be collected because of it, gets a section in its report: which of its RNN calls ran their forward in eval mode,
at which line, and who had set that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from torchtap._switch import VARIABLE, emulation_asked

if TYPE_CHECKING:
    from torchtap.modes._session import Session

_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_ASKED_BY = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("torchtap", "modes of PyTorch")
    group.addoption(
        "--emulate-cudnn",
        action="store_const",
        const=True,
        default=None,
        help="run RNNs on CPU tensors under cuDNN's rule: backward raises as on an NVIDIA GPU",
    )
    group.addoption(
        "--no-emulate-cudnn",
        dest="emulate_cudnn",
        action="store_const",
        const=False,
        help=f"do not, whatever {VARIABLE} or the configuration says",
    )
    parser.addini("emulate_cudnn", "run RNNs on CPU tensors under cuDNN's rule", type="bool", default=False)


def _asked_by(config: pytest.Config) -> str | None:
    """Who asks for it; None: nobody. What a stronger one overrules is not read, so it may be nonsense."""
    option = config.getoption("emulate_cudnn")
    if option is not None:
        return "--emulate-cudnn" if option else None
    try:
        variable = emulation_asked(os.environ)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if variable is not None:
        return f"{VARIABLE}={os.environ[VARIABLE]}" if variable else None
    try:
        setting = config.getini("emulate_cudnn")
    except (ValueError, TypeError, pytest.UsageError) as error:
        raise pytest.UsageError(f"{_SETTING}: {error}. Write true or false") from None
    return _SETTING if setting else None


_SETTING = "emulate_cudnn in pytest's configuration"


def pytest_configure(config: pytest.Config) -> None:
    """Open the emulation, where it is asked for."""
    asked_by = _asked_by(config)
    if os.environ.get(VARIABLE) and config.getoption("emulate_cudnn") is not None:
        _overrule_variable(config)
    if asked_by is None:
        return
    from torchtap.modes._session import Session  # imports torch

    try:
        session = Session()
    except RuntimeError as error:  # another package has kernels of its own
        raise pytest.UsageError(f"{asked_by}: {error}") from None
    config.stash[_SESSION], config.stash[_ASKED_BY] = session, asked_by
    config.add_cleanup(session.close)


def _overrule_variable(config: pytest.Config) -> None:
    """`import torchtap.modes`, in this process and in those that tests start, reads the variable too."""
    before = os.environ[VARIABLE]
    os.environ[VARIABLE] = "1" if config.getoption("emulate_cudnn") else "0"
    config.add_cleanup(lambda: os.environ.update({VARIABLE: before}))


def pytest_report_header(config: pytest.Config) -> str | None:
    """One line at the top of the run."""
    asked_by = config.stash.get(_ASKED_BY, None)
    return asked_by and f"torchtap: CPU RNNs under cuDNN's rule ({asked_by})"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """An error at import names the calls of this file only."""
    if session := collector.config.stash.get(_SESSION, None):
        session.begin()


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[object],
    report: pytest.CollectReport | pytest.TestReport,
) -> None:
    """Say more where a file cannot be collected because of cuDNN's error."""
    session = node.config.stash.get(_SESSION, None)
    if session and isinstance(report, pytest.CollectReport) and call.excinfo:
        _explain(session, call.excinfo.value, report)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test's report names the calls of this test only."""
    if session := item.config.stash.get(_SESSION, None):
        session.begin()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Say more where a test failed with cuDNN's error."""
    report: pytest.TestReport = yield
    session = item.config.stash.get(_SESSION, None)
    if session and report.failed and call.excinfo:
        _explain(session, call.excinfo.value, report)
    return report


def _explain(
    session: Session, error: BaseException, report: pytest.CollectReport | pytest.TestReport
) -> None:
    if text := session.explain(error):
        report.sections.append(("torchtap: RNN calls in eval mode", text))
