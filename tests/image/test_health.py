"""Health of real containers: what is said when something ends, is lost or is missing, and how it recovers."""

from __future__ import annotations

import re

from .conftest import Container, Run, wait_until

OFF = {"TORCHTAP_SELFTEST": "off"}
KILLED = r"WARNING {}: ended \(signal 9, SIGKILL\) after \d+ s; starts again in \d s"


def health(container: Container, *, root: bool = True) -> tuple[bool, str]:
    """What the HEALTHCHECK would say now."""
    done = container.exec("/opt/torchtap/bin/health", root=root, check=False)
    return done.returncode == 0, done.stdout.strip()


def is_healthy(container: Container) -> bool:
    return health(container)[0]


def kill(container: Container, name: str) -> float:
    """kill -9 of the process that s6 keeps; seconds until it has a successor that is past its wait."""
    script = f"""
        cd /run/torchtap/services/{name}
        pkill -KILL -P "$(pgrep -f '^s6-supervise {name}$')"
        killed=$(date +%s%N)
        until [ -e ended.json ]; do sleep 0.01; done
        until [ -e began ]; do sleep 0.01; done
        echo $((($(date +%s%N) - killed) / 1000000))
    """
    return int(container.exec("sh", "-c", script, root=True).stdout) / 1000


def test_services_that_are_killed_start_again_after_a_second(run: Run) -> None:
    """jupyter and sshd killed -9: said, mended, and a tmux session goes on meanwhile."""
    container = run(key=True, env=OFF, allow=(KILLED.format("jupyter"), KILLED.format("sshd")))
    container.wait_healthy()
    container.ssh("tmux new-session -d -s work 'sleep 1000'")
    took_s = [kill(container, "jupyter"), kill(container, "sshd")]
    well, said = health(container)
    assert max(took_s) < 5, f"{took_s}: a second, and what a busy machine adds"
    assert (well, said) == (
        False,
        "sshd: answers; jupyter: does not run: ended (signal 9, SIGKILL); starts again now",
    )
    wait_until(lambda: is_healthy(container), 30, lambda: health(container)[1])
    assert "work" in container.ssh("tmux list-sessions").stdout


def test_a_container_stops_at_once_while_a_service_waits_for_its_next_start(run: Run) -> None:
    """And what ends again and again is said with how often, and when it is tried again."""
    ends = r"WARNING jupyter: ended \(exit code 1\) after \d+ s; starts again in 2 s"
    broken = ("-e", "JUPYTER_RUNTIME_DIR=/proc/nowhere")
    container = run(
        "jupyter", key=True, env=OFF, options=broken, allow=(r"WARNING jupyter: ended", r"Traceback")
    )
    container.wait_log(ends, limit_s=120)
    well, said = health(container)
    assert not well
    assert re.search(
        r"does not run: ended \(exit code 1\), 2 times in a row; starts again (in \d s|now)", said
    ), said
    code, took_s = container.stop()
    assert code in (0, 143)
    assert took_s < 1
