"""For every test: skips are counted, and fail the run where TORCHTAP_TEST_FAIL_ON_SKIP is set, as in CI.

A skip may only say that a GPU is missing; its reason then begins with "gpu".
"""

from __future__ import annotations

import os

import pytest

SKIPPED = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # noqa: ANN201
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        item.config.stash[SKIPPED].append((item.nodeid, report.longrepr[2].removeprefix("Skipped: ")))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    unexpected = [
        (node, why) for node, why in session.config.stash[SKIPPED] if not why.lower().startswith("gpu")
    ]
    if unexpected and os.environ.get("TORCHTAP_TEST_FAIL_ON_SKIP"):
        print("\nTORCHTAP_TEST_FAIL_ON_SKIP: skipped for another reason than a missing GPU:")
        for node, why in unexpected:
            print(f"  {node}: {why}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
