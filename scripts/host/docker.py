"""The image and its container: build, start, wait until healthy, read the self-test's report."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from host import disk, proc, verdict
from host.engine import Engine
from host.handout import remedies
from host.plan import Plan
from host.project import SERVICE, Compose
from host.settings import Settings
from host.show import Problem, gigabytes, say, ticking

REPORT_PATIENCE_S = 120.0


def image(settings: Settings, plan: Plan) -> str:
    """The image's name, as compose.yaml builds it."""
    return f"{settings.get('TORCHTAP_IMAGE', 'torchtap')}:{plan.variant.name}"


def has_image(name: str) -> bool:
    return proc.ask(["docker", "image", "inspect", "--format", "{{.Id}}", name]).ok


def build(
    compose: Compose, engine: Engine, name: str, floor_bytes: int = disk.IMAGE_BYTES, *, pull: bool = False
) -> None:
    """Build the image; seconds when nothing changed. Raises `Problem` after BuildKit's own words."""
    there = has_image(name)
    if not there and engine.root:
        disk.need(engine.root, floor_bytes, f"building {name}", "See what Docker holds:  docker system df")
    size = "" if there else f", the first time (about 3 GB to download, {gigabytes(floor_bytes)} of disk)"
    say("build", f"{name}{size}")
    if compose.watch("build", *(["--pull"] if pull else []), SERVICE) != 0:
        advice = ["Start the image as it was built before:  make up BUILD=no"] if there else []
        raise Problem(f"the image {name} could not be built (its own words are above)", *advice, code=1)


def start(compose: Compose) -> None:
    """Create and start the container. Raises `Problem` after Docker's own words."""
    command = ["docker", "compose", "up", "--detach", "--no-build", SERVICE]
    with ticking("start") as ticker:
        done = proc.follow(
            command,
            lambda elapsed, _: ticker.tick(elapsed, "the container"),
            env=compose.env,
            cwd=compose.paths.root,
        )
    if not done.ok:
        print("\n".join(done.err.splitlines()[-8:]), file=sys.stderr)
        raise Problem(
            "the container could not be started (Docker's own words are above)", *remedies(done.err), code=1
        )


def wait_healthy(compose: Compose, patience_s: float) -> dict[str, Any]:
    """Wait until the container says that it is healthy, and show that something happens.

    Raises `Problem` when it exits, is unhealthy, or takes longer than `patience_s`; its last words are shown first.
    """
    began = time.monotonic()
    with ticking("wait") as ticker:
        while True:
            found = compose.container()
            elapsed = time.monotonic() - began
            state = found["State"] if found else {"Status": "gone"}
            health, last = health_of(state)
            if found and state["Status"] == "running" and health in {"healthy", ""}:
                return found
            trouble = ended(state, found) or (f"is unhealthy: {last}" if health == "unhealthy" else None)
            if trouble is None and elapsed > patience_s:
                trouble = f"was not healthy after {patience_s:g} s: {last or 'no health check has ended yet'}"
            if trouble:
                ticker.done()
                if found:  # not `docker compose logs`: 2.26 puts control characters into files
                    proc.watch(["docker", "logs", "--tail", "30", found["Id"]])
                raise Problem(f"the container {trouble} (its last words are above)", code=1)
            ticker.tick(elapsed, last or health or str(state["Status"]))
            time.sleep(0.3)


def health_of(state: Mapping[str, Any]) -> tuple[str, str]:
    """The health check's state and its last line; both empty where the image has no health check.

    >>> health_of({"Health": {"Status": "starting", "Log": [{"Output": "jupyter: no answer yet\\n"}]}})
    ('starting', 'jupyter: no answer yet')
    """
    health = state.get("Health") or {}
    log = health.get("Log") or [{}]
    return str(health.get("Status", "")), str(log[-1].get("Output", "")).strip()


def ended(state: Mapping[str, Any], container: Mapping[str, Any] | None) -> str | None:
    """In words, that a container is not running any more, or keeps falling over."""
    if state["Status"] in {"exited", "dead", "gone", "removing"}:
        return f"ended with exit code {state.get('ExitCode', 'unknown')}"
    if container and container.get("RestartCount", 0) >= 1:
        return f"ended with exit code {state.get('ExitCode', 'unknown')} and was started again by Docker"
    return None


def report(compose: Compose, container: Mapping[str, Any], patience_s: float) -> dict[str, Any] | None:
    """The self-test's report of this start. It runs after the services are ready, so wait for it."""
    start_s = parse_time(container["State"]["StartedAt"])
    program = "stat -c %Y /var/lib/torchtap/selftest.json && cat /var/lib/torchtap/selftest.json"
    began = time.monotonic()
    with ticking("selftest") as ticker:
        while True:
            answer = compose.ask("exec", "-T", SERVICE, "/bin/sh", "-c", program)
            written, _, text = answer.out.partition("\n")
            if answer.ok and written.isdigit() and int(written) >= int(start_s):
                found = verdict.read(text)
                if found:
                    return found
            elapsed = time.monotonic() - began
            if elapsed > patience_s:
                return None
            ticker.tick(elapsed, "checking GPU, driver, CUDA and PyTorch in the container")
            time.sleep(0.5)


def parse_time(text: str) -> float:
    """Docker's time stamp (nanoseconds, UTC) as seconds since 1970.

    >>> parse_time("1970-01-01T00:01:00.123456789Z")
    60.0
    """
    return datetime.fromisoformat(text[:19] + "+00:00").timestamp()
