"""docker stop: everything gets its chance, and nothing is killed."""

from __future__ import annotations

import time
from pathlib import Path

from .conftest import NO_KEY, Container, Run, wait_until

BUSY = """
try:
    open("/workspace/kernel-busy", "w").close()
    while True:
        sum(range(10_000))
finally:
    open("/workspace/kernel-finally", "w").close()
"""
TRAIN = """
import signal, sys, time

def save(*_):
    time.sleep(1.5)
    open("/workspace/train-saved", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
open("/workspace/train-started", "w").close()
while True:
    time.sleep(0.1)
"""


def exists(container: Container, path: str) -> bool:
    return container.exec("test", "-e", path, check=False).returncode == 0


def left_behind(container: Container, path: str, tmp_path: Path) -> bool:
    return (
        container.engine.docker("cp", f"{container.id}:{path}", tmp_path / "copy", check=False).returncode
        == 0
    )


def test_a_busy_kernel_runs_its_finally(run: Run, tmp_path: Path) -> None:
    # An interrupted kernel may say that its socket is gone.
    container = run(env={"TORCHTAP_SELFTEST": "off"}, allow=(NO_KEY, r"(?s).*")).wait_healthy()
    container.kernel(BUSY, wait=False)
    wait_until(lambda: exists(container, "/workspace/kernel-busy"), 30, lambda: container.logs)
    code, seconds = container.stop()
    assert code == 0
    assert left_behind(container, "/workspace/kernel-finally", tmp_path)
    assert seconds < 8, "the engine's grace period must not be what ends it"


def test_a_training_run_in_tmux_saves_on_sigterm(run: Run, tmp_path: Path) -> None:
    """Over SSH, then disconnected: tmux must not take its terminal away while it saves."""
    container = run(key=True, env={"TORCHTAP_SELFTEST": "off"}).wait_healthy()
    container.ssh("cat > /workspace/train.py", input=TRAIN)
    container.ssh("tmux new-session -d 'python /workspace/train.py'")
    wait_until(lambda: exists(container, "/workspace/train-started"), 30, lambda: container.logs)
    code, seconds = container.stop()
    assert code == 0
    assert left_behind(container, "/workspace/train-saved", tmp_path)
    assert 1.5 < seconds < 8


def test_dockers_own_init_above_ours_does_not_slow_the_stop(run: Run) -> None:
    container = run(env={"TORCHTAP_SELFTEST": "off"}, options=("--init",), allow=(NO_KEY,)).wait_healthy()
    code, seconds = container.stop()
    assert code in (0, 143)
    assert seconds < 5


def test_a_process_that_will_not_end_is_named_within_the_grace_period(run: Run) -> None:
    container = run(
        env={"TORCHTAP_SELFTEST": "off", "TORCHTAP_STOP_GRACE": "3"},
        options=("--stop-timeout", "3"),
        allow=(NO_KEY, r"WARNING stop: python \(pid \d+\) did not end in 3 s and will be killed"),
    ).wait_healthy()
    stubborn = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; time.sleep(1000)"
    container.engine.docker("exec", "-d", "-u", "dev", container.id, "python", "-c", stubborn)
    time.sleep(1)
    code, seconds = container.stop()
    assert code == 0, "our own warning, not the engine's kill, is the end"
    assert seconds < 3.5


def test_a_command_gets_its_sigterm(run: Run, tmp_path: Path) -> None:
    container = run("python", "-c", TRAIN)
    wait_until(lambda: exists(container, "/workspace/train-started"), 30, lambda: container.logs)
    code, _ = container.stop()
    assert code == 0
    assert left_behind(container, "/workspace/train-saved", tmp_path)
