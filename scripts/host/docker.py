"""Docker mode: build, prove the GPU, start, wait, stop. What is decided elsewhere (plan) is carried out here."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from host import disk, env_file, proc, verdict
from host.engine import CDI_KIND, Engine
from host.keys import Keys
from host.paths import Paths
from host.plan import Plan
from host.settings import Settings
from host.show import Problem, gigabytes, say, ticking

SERVICE = "dev"
PROOF_TIMEOUT_S = 60.0
REPORT_PATIENCE_S = 120.0
# As compose.yaml gives it to the service, for a container that only runs the self-test.
SHARED_MEMORY = "--shm-size=8g"


def image(settings: Settings, plan: Plan) -> str:
    """The image's name, as compose.yaml builds it."""
    return f"{settings.get('TORCHTAP_IMAGE', 'torchtap')}:{plan.variant.name}"


def has_image(name: str) -> bool:
    return proc.ask(["docker", "image", "inspect", "--format", "{{.Id}}", name]).ok


# ---- how GPUs are asked for --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask the engine for GPUs: on docker's command line, and as Compose files."""

    name: str
    run: tuple[str, ...]
    files: tuple[str, ...]
    override: str = ""  # content of .torchtap/compose.gpus.yaml, where the files alone cannot say it


OVERRIDE = """\
# Written by make from GPUS={gpus}. Do not edit.
services:
  dev:
    deploy:
      resources:
        reservations:
          devices: !override
            - driver: {driver}
              {which}
              capabilities: [gpu]
"""


def ways(gpus: str) -> tuple[Way, Way]:
    """The two ways, for the value of GPUS ("" is all): `--gpus`, then CDI.

    >>> [" ".join(way.run) for way in ways("0,1")]
    ['--gpus "device=0,1"', '--device nvidia.com/gpu=0 --device nvidia.com/gpu=1']
    """
    base, cdi = ("compose.yaml",), ("compose.yaml", "compose.cdi.yaml")
    if gpus in {"", "all"}:
        return Way("--gpus", ("--gpus", "all"), base), Way("CDI", ("--device", f"{CDI_KIND}=all"), cdi)
    number = int(gpus.removeprefix("count=")) if gpus.startswith("count=") else None
    ids = [str(each) for each in range(number)] if number else gpus.split(",")
    which = f"count: {number}" if number else f"device_ids: {json.dumps(ids)}"
    devices = [f"{CDI_KIND}={each}" for each in ids]
    return (
        Way(
            "--gpus",
            ("--gpus", str(number) if number else f'"device={",".join(ids)}"'),
            base,
            OVERRIDE.format(gpus=gpus, driver="nvidia", which=which),
        ),
        Way(
            "CDI",
            tuple(word for device in devices for word in ("--device", device)),
            cdi,
            OVERRIDE.format(gpus=gpus, driver="cdi", which=f"device_ids: {json.dumps(devices)}"),
        ),
    )


@dataclass(frozen=True, slots=True)
class Proof:
    """What a container said when it was started with a GPU. `way` None: the engine refused, `words` is why."""

    way: Way | None
    words: str


def prove(name: str, gpus: str) -> Proof:
    """Start the image with GPUs and let nvidia-smi list them. An engine that starts it has handed them out."""
    refusals = []
    for way in ways(gpus):
        container = f"torchtap-proof-{os.getpid()}"
        command = ["docker", "run", "--rm", "--name", container, "--network", "none", *way.run]
        answer = proc.ask([*command, "--entrypoint", "nvidia-smi", name, "-L"], timeout_s=PROOF_TIMEOUT_S)
        if answer.rc == proc.TIMED_OUT:
            proc.ask(["docker", "rm", "--force", container])
            return Proof(None, f"a container with {way.name} gave no answer in {PROOF_TIMEOUT_S:g} s")
        if answer.ok:
            return Proof(
                way, "; ".join(line.split(" (UUID")[0] for line in answer.out.splitlines() if line.strip())
            )
        if "executable file not found" in answer.err:  # given, but without the utility capability
            return Proof(way, "given, but without nvidia-smi")
        if answer.rc != 125 and "Error response from daemon" not in answer.err:
            return Proof(way, f"nvidia-smi: {answer.said}")
        refusals.append(refusal(answer.err))
    return Proof(None, refusals[0])


def refusal(text: str) -> str:
    """The engine's reason, out of the several lines around it.

    >>> refusal("docker: Error response from daemon: could not select device driver.\\n\\nRun 'docker run --help'")
    'could not select device driver'
    """
    tail = next((text.rpartition(marker)[2] for marker in REASON_FOLLOWS if marker in text), text)
    line = tail.splitlines()[0] if tail else ""
    return re.sub(r"(: unknown)?\.?$", "", line.strip())


# Where the engine's reason begins, most telling first.
REASON_FOLLOWS = ("nvidia-container-cli: ", "CDI device injection failed: ", "Error response from daemon: ")

# What a refusal says, and what then to do; the first that fits.
REFUSALS = (
    ("rlimit type 8", "This engine may not raise the limit of pinned memory:  make up MEMLOCK={memlock}"),
    ("port is already allocated", "Another program was faster:  make up JUPYTER_PORT=… SSH_PORT=…"),
    (
        "requirement error",
        "The host's driver is too old for this image:  make up VARIANT=cu128     (driver 525 or newer)",
    ),
    ("device error", "GPUS names a GPU that is not there; on the host:  nvidia-smi -L"),
    (
        "could not select device driver",
        "Install the NVIDIA Container Toolkit, then:  "
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    ),
    ("nvml error", "The driver does not answer; on the host:  nvidia-smi"),
    ("driver error", "The driver does not answer; on the host:  nvidia-smi"),
)


def remedies(words: str) -> list[str]:
    """What to do about a refusal, by the engine's words; nothing where we know nothing.

    >>> remedies("device error: 5: unknown device")
    ['GPUS names a GPU that is not there; on the host:  nvidia-smi -L']
    """
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return [do.format(memlock=limit) for marker, do in REFUSALS if marker in words][:1]


# ---- Compose -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compose:
    """`docker compose` in this checkout, with one environment."""

    paths: Paths
    env: Mapping[str, str]

    def ask(self, *words: str, timeout_s: float = 60.0) -> proc.Done:
        return proc.ask(["docker", "compose", *words], env=self.env, cwd=self.paths.root, timeout_s=timeout_s)

    def watch(self, *words: str) -> int:
        return proc.watch(["docker", "compose", *words], env=self.env, cwd=self.paths.root)

    def container(self) -> dict[str, Any] | None:
        """What `docker inspect` says of the service's container, running or not; None when there is none.

        Raises `Problem` when it belongs to another checkout: compose.yaml names the project, so two share it.
        """
        listed = self.ask("ps", "--all", "--quiet", SERVICE)
        if not listed.ok or not listed.out.strip():
            return None
        found = inspect(listed.out.split()[0])
        other = checkout_of(found)
        if other and other.exists() and other.resolve() != self.paths.root.resolve():
            raise Problem(
                f"a container of another checkout has this project's name: {other}",
                "Stop it there (make down), or run both:  "
                "make up COMPOSE_PROJECT_NAME=another JUPYTER_PORT=… SSH_PORT=…",
            )
        return found


def inspect(container: str) -> dict[str, Any] | None:
    answer = proc.ask(["docker", "inspect", container])
    try:
        found = json.loads(answer.out)
    except ValueError:
        return None
    return found[0] if answer.ok and found else None


def checkout_of(container: Mapping[str, Any] | None) -> Path | None:
    """The folder from which Compose started a container, by its label."""
    labels = (container or {}).get("Config", {}).get("Labels") or {}
    folder = labels.get("com.docker.compose.project.working_dir")
    return Path(folder) if folder else None


def is_running(container: Mapping[str, Any] | None) -> bool:
    return bool(container and container["State"].get("Running"))


def published(container: Mapping[str, Any], inside: int) -> tuple[str, int] | None:
    """Address and port of this host at which a port of the container is published."""
    bound = (container["NetworkSettings"].get("Ports") or {}).get(f"{inside}/tcp") or []
    return (bound[0]["HostIp"], int(bound[0]["HostPort"])) if bound else None


def plain(paths: Paths, settings: Settings, environ: Mapping[str, str]) -> Compose:
    """Compose for looking and stopping, whatever mode was started: only the service's name matters then."""
    own = settings.get("COMPOSE_FILE") or "compose.yaml"
    return Compose(paths, {**environ, "COMPOSE_FILE": own})


def owner(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Whose ids the user in the container gets: ours; behind sudo the caller's; root itself leaves it to the image."""
    if os.getuid() != 0:
        return os.getuid(), os.getgid()
    if environ.get("SUDO_UID", "").isdigit():
        return int(environ["SUDO_UID"]), int(environ.get("SUDO_GID", environ["SUDO_UID"]))
    return None


# What Compose has to know beside make's own choices, so that a plain `docker compose up` later means the same.
PASSED_ON = (
    "JUPYTER_PORT",
    "SSH_PORT",
    "BIND_ADDRESS",
    "WORKSPACE",
    "SHM_SIZE",
    "STOP_GRACE",
    "MEMLOCK",
    "TORCHTAP_IMAGE",
    "COMPOSE_PROJECT_NAME",
    "BASE_IMAGE",
    "TORCH_INDEX",
    "TORCHTAP_CA_BUNDLE",
    "TORCHTAP_SELFTEST",
)


def compose_variables(
    paths: Paths, settings: Settings, plan: Plan, way: Way | None, keys: Keys, environ: Mapping[str, str]
) -> dict[str, str]:
    """Every variable that compose.yaml reads, as decided; what the user's own `.env` lines say stays theirs."""
    files = list(way.files if way else ("compose.yaml", "compose.cpu.yaml"))
    if way and way.override:
        files.append(str(paths.gpus_file.relative_to(paths.root)))
    if settings.get("TORCHTAP_CA_BUNDLE"):
        files.append("compose.ca.yaml")
    files += [
        name for name in ("compose.override.yaml", "compose.override.yml") if (paths.root / name).exists()
    ]
    chosen = {"COMPOSE_FILE": settings.get("COMPOSE_FILE") or ":".join(files), "VARIANT": plan.variant.name}
    ids = owner(environ)
    if ids:
        chosen.update(HOST_UID=str(ids[0]), HOST_GID=str(ids[1]))
    chosen.update({name: settings.get(name) for name in PASSED_ON if settings.get(name)})
    if keys.text:
        chosen["SSH_PUBLIC_KEY"] = keys.text
    if ":" in chosen.get("BIND_ADDRESS", "") and "[" not in chosen["BIND_ADDRESS"]:
        chosen["BIND_ADDRESS"] = f"[{chosen['BIND_ADDRESS']}]"
    return chosen


def environment(environ: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """`environ` with what was chosen. What stands for a choice that was not made is taken out."""
    dropped = {"SSH_PUBLIC_KEY", "COMPOSE_FILE", "GPUS", *PASSED_ON}
    kept = {key: value for key, value in environ.items() if key not in dropped}
    return {**kept, **chosen}


def remember(paths: Paths, settings: Settings, chosen: Mapping[str, str], way: Way | None) -> None:
    """Write the override file and make's block in `.env`; say so when that changed something."""
    if way and way.override:
        write_override(paths, way)
    users = {name for name, origin in settings.origins.items() if origin.startswith(".env")}
    own = {name: value for name, value in chosen.items() if name not in users}
    if env_file.store(paths.env_file, own):
        shown = ", ".join(
            name if name == "SSH_PUBLIC_KEY" else f"{name}={value}" for name, value in own.items()
        )
        say(".env", f"make's block now says {shown}")


def write_override(paths: Paths, way: Way) -> None:
    paths.gpus_file.parent.mkdir(mode=0o700, exist_ok=True)
    draft = paths.gpus_file.with_suffix(".tmp")
    draft.write_text(way.override)
    draft.replace(paths.gpus_file)


# ---- steps -------------------------------------------------------------------------------------------------------


def build(compose: Compose, engine: Engine, name: str, floor_bytes: int = disk.IMAGE_BYTES) -> None:
    """Build the image; seconds when nothing changed. Raises `Problem` after BuildKit's own words."""
    there = has_image(name)
    if not there and engine.root:
        disk.need(engine.root, floor_bytes, f"building {name}", "See what Docker holds:  docker system df")
    size = "" if there else f", the first time (about 3 GB to download, {gigabytes(floor_bytes)} of disk)"
    say("build", f"{name}{size}")
    if compose.watch("build", SERVICE) != 0:
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
            answer = compose.ask("exec", "-T", SERVICE, "sh", "-c", program)
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


def url(compose: Compose, container: Mapping[str, Any]) -> str:
    """The link with its token, with the address at which this host publishes it. Raises `Problem`."""
    answer = compose.ask("exec", "-T", SERVICE, "torchtap-url")
    if not answer.ok:
        raise Problem(answer.said.removeprefix("torchtap-url: "), "See:  make logs", code=1)
    where = published(container, 8888)
    _, _, rest = answer.out.strip().partition("/lab")
    return f"http://{reachable(where[0])}:{where[1]}/lab{rest}" if where else answer.out.strip()


def reachable(address: str) -> str:
    """An address to connect to, for one to listen at.

    >>> reachable("0.0.0.0"), reachable("::1")
    ('127.0.0.1', '[::1]')
    """
    if address in {"", "0.0.0.0", "::"}:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address


def ssh_command(container: Mapping[str, Any], identity: Path | None, *options: str) -> list[str] | None:
    """How to log in, or None when sshd's port is not published."""
    where = published(container, 22)
    if where is None:
        return None
    key = ["-i", str(identity)] if identity else []
    port = ["-p", str(where[1])] if where[1] != 22 else []
    return ["ssh", *options, *key, *port, f"dev@{reachable(where[0]).strip('[]')}"]


def known_hosts(compose: Compose, paths: Paths) -> list[str]:
    """Options with which ssh knows the container's host key: read through Docker, so there is nothing to trust blindly.

    Without an answer there are no options, and ssh asks as usual.
    """
    answer = compose.ask("exec", "-T", SERVICE, "cat", "/var/lib/torchtap/ssh/ssh_host_ed25519_key.pub")
    words = answer.out.split()
    if not answer.ok or len(words) < 2:
        return []
    paths.local.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = paths.local / "known_hosts"
    file.write_text(f"torchtap {words[0]} {words[1]}\n")
    return [
        "-o",
        "HostKeyAlias=torchtap",
        "-o",
        f"UserKnownHostsFile={file}",
        "-o",
        "StrictHostKeyChecking=yes",
    ]


def started(compose: Compose) -> dict[str, Any]:
    """What start decided in the container: uid, gid, services (docker/entrypoint/paths.py). Raises `Problem`."""
    answer = compose.ask("exec", "-T", SERVICE, "cat", "/run/torchtap/started.json")
    try:
        found = json.loads(answer.out)
    except ValueError:
        found = None
    if not answer.ok or not isinstance(found, dict):
        raise Problem(f"the container does not answer: {answer.said}", "See:  make status", code=1)
    return found


def shell_command(compose: Compose, words: Sequence[str], *, terminal: bool) -> list[str]:
    """A shell as the container's user with the environment of its sessions; `words` is a command instead."""
    who = started(compose)
    options = ["--user", f"{who['uid']}:{who['gid']}", *([] if terminal else ["-T"])]
    if words:
        options += ["--env", f"SSH_ORIGINAL_COMMAND={shlex.join(words)}"]
    return ["docker", "compose", "exec", *options, SERVICE, "/opt/torchtap/bin/session"]
