"""The self-test of policy warn: after the services, at a lower priority, into the log and the state."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from entrypoint import paths

from .test_main import DOCKER, program


@pytest.fixture
def started(image: Path) -> dict[str, object]:
    return {"role": "jupyter", "services": [], "report": str(image / "var/lib/torchtap/selftest.json")}


def after_ready(
    image: Path, started: dict[str, object], patience_s: float = 5
) -> subprocess.CompletedProcess[str]:
    (image / "run/torchtap" / paths.STARTED).write_text(json.dumps(started))
    script = (
        f"import sys; sys.path.insert(0, {str(DOCKER)!r})\n"
        "from pathlib import Path\nfrom entrypoint import after_ready, paths\n"
        f"paths.RUN_CANDIDATES = (Path({str(image / 'run/torchtap')!r}),)\n"
        f"paths.VENV = Path({str(image / 'venv')!r})\nafter_ready.PATIENCE_S = {patience_s}\n"
        "sys.exit(after_ready.main())\n"
    )
    return subprocess.run(
        [sys.executable, "-IS", "-c", script], capture_output=True, text=True, timeout=30, check=False
    )


def test_the_selftest_runs_and_keeps_its_report(image: Path, started: dict[str, object]) -> None:
    program(image / "venv/bin/torchtap", 'echo "$@"; nice; exit 1')
    done = after_ready(image, started)
    words, nice = done.stdout.splitlines()
    assert words == f"selftest --output {image}/var/lib/torchtap/selftest.json"
    assert int(nice) == min(os.nice(0) + 10, 19), "what the user does in the first seconds comes first"
    assert done.returncode == 1, "the self-test's own"


def test_it_waits_for_the_services(image: Path, started: dict[str, object]) -> None:
    program(image / "venv/bin/torchtap", "echo tested")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet_later() -> None:
            time.sleep(0.8)
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n")
                connection.recv(100)

        threading.Thread(target=greet_later, daemon=True).start()
        began = time.monotonic()
        done = after_ready(image, {**started, "services": ["sshd"], "ssh_port": listener.getsockname()[1]})
    assert done.stdout == "tested\n"
    assert time.monotonic() - began >= 0.8


def test_services_that_never_answer_do_not_keep_it_from_telling_why(
    image: Path, started: dict[str, object]
) -> None:
    program(image / "venv/bin/torchtap", "echo tested")
    done = after_ready(image, {**started, "services": ["sshd"], "ssh_port": 1}, patience_s=0.5)
    assert done.stdout == "tested\n"


def test_without_torchtap_it_says_so(image: Path, started: dict[str, object]) -> None:
    done = after_ready(image, started)
    assert done.returncode == 1
    assert done.stderr == (
        f"ERROR   selftest: {image}/venv/bin/torchtap cannot be run: No such file or directory\n"
    )
