"""The self-test of policy `warn`: begins once the services answer, so that it never delays them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from entrypoint import health, log, paths, verdict
from entrypoint.execute import execute

PATIENCE_S = 120.0  # then the services have failed in their own way; the self-test may still tell why


def main() -> int:
    """Wait for the services, then become the self-test; its report goes to the log and into the state volume."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not ((started := paths.started()) and health.services(started)[0]):
        time.sleep(0.2)
    started = paths.started() or {"report": str(paths.STATE / paths.REPORT)}
    report = Path(str(started["report"]))
    verdict.make_room(report)
    torchtap = str(paths.VENV / "bin" / "torchtap")
    try:
        os.nice(10)  # what the user does in the first seconds comes first
        words = [torchtap, "selftest", "--output", str(report)]
        execute(torchtap, words, os.environ)
    except OSError as error:
        log.error("selftest", f"{torchtap} cannot be run: {error.strerror}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
