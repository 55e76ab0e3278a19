"""For every test: skips are counted, and fail the run where TORCHTAP_TEST_FAIL_ON_SKIP is set, as in CI.

A skip may only say that a GPU is missing; its reason then begins with "gpu".

Property tests try the same examples in every run, so that a change is judged by what it changes; new ones are looked
for with TORCHTAP_TEST_EXPLORE=1.

PyTorch works on one thread: these models are too small for more, and with other work on the machine threads wait for
each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

SKIPPED = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = []
    settings.register_profile("same", derandomize=True)
    if not os.environ.get("TORCHTAP_TEST_EXPLORE"):
        settings.load_profile("same")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Where a test uses PyTorch. Its own number is put back."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        item.config.stash[SKIPPED].append((item.nodeid, report.longrepr[2].removeprefix("Skipped: ")))
    return report


def unexpected(config: pytest.Config) -> list[tuple[str, str]]:
    """Skips that may not be, where they may not."""
    if not os.environ.get("TORCHTAP_TEST_FAIL_ON_SKIP"):
        return []
    return [(node, why) for node, why in config.stash[SKIPPED] if not why.lower().startswith("gpu")]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if unexpected(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := unexpected(config):
        terminalreporter.section("skipped for another reason than a missing GPU (TORCHTAP_TEST_FAIL_ON_SKIP)")
        for node, why in found:
            terminalreporter.line(f"{node}: {why}")
