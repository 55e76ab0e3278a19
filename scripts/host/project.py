"""Docker Compose in this checkout: what it is told, and what runs of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host import env_file, proc
from host.handout import Way
from host.keys import Keys
from host.paths import Paths
from host.plan import Plan
from host.settings import Settings
from host.show import Problem, say

SERVICE = "dev"
DEFAULT_NAME = "torchtap"  # `name:` in compose.yaml
SEE = "To see it alone:  docker compose config --quiet"


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

        Raises `Problem` when it belongs to another checkout (compose.yaml names the project, so two share it),
        and when Compose or the engine gives no answer: that says nothing about a container.
        """
        listed = self.ask("ps", "--all", "--quiet", SERVICE)
        if not listed.ok:
            raise failed("Compose cannot say what runs", listed, SEE)
        if not listed.out.strip():
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

    def check(self) -> None:
        """Raises `Problem` with Compose's reason when it cannot read `.env` or the Compose files."""
        done = self.ask("config", "--quiet")
        if not done.ok:
            raise failed("Compose cannot read its configuration", done, SEE)


def failed(what: str, done: proc.Done, *do: str) -> Problem:
    """The reason in one line: the first one that is no warning."""
    lines = [line.strip() for line in done.err.splitlines() if line.strip() and "level=warning" not in line]
    return Problem(f"{what}: {lines[0] if lines else done.said}", *do)


def inspect(container: str) -> dict[str, Any] | None:
    """What `docker inspect` says; None for a container that is gone. Raises `Problem` without an answer."""
    answer = proc.ask(["docker", "inspect", container])
    if not answer.ok and "no such" not in answer.err.lower():
        raise failed(f"Docker cannot say how the container {container[:12]} is", answer)
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


def differences(
    container: Mapping[str, Any], paths: Paths, chosen: Mapping[str, str], mode: str, image: str
) -> list[str]:
    """What of a running container is not as chosen now, as `NAME old -> new`: what a person would care about.

    Compose compares more than this: an empty answer does not mean that it leaves the container alone.
    """
    config = container["Config"]
    jupyter, ssh = published(container, 8888), published(container, 22)
    mounts = {each.get("Destination"): each.get("Source", "") for each in container.get("Mounts", [])}
    folder = paths.root / Path(chosen.get("WORKSPACE", "./workspace")).expanduser()
    pairs = (
        ("MODE", "gpu" if container["HostConfig"].get("DeviceRequests") else "cpu", mode),
        ("image", config.get("Image"), image),
        ("JUPYTER_PORT", jupyter and str(jupyter[1]), chosen.get("JUPYTER_PORT", "8888")),
        ("SSH_PORT", ssh and str(ssh[1]), chosen.get("SSH_PORT", "2222")),
        ("BIND_ADDRESS", jupyter and jupyter[0], chosen.get("BIND_ADDRESS", "127.0.0.1").strip("[]")),
        ("WORKSPACE", os.path.realpath(mounts.get("/workspace") or folder), os.path.realpath(folder)),
    )
    found = [f"{name} {old} -> {new}" for name, old, new in pairs if old and old != new]
    env = dict(each.partition("=")[::2] for each in config.get("Env", []))
    if env.get("SSH_PUBLIC_KEY", "") != chosen.get("SSH_PUBLIC_KEY", ""):
        found.append("other SSH keys")
    return found


def renamed(paths: Paths, settings: Settings) -> str | None:
    """The project's name of the last `make up` here, when this call means another one; else None.

    Volumes carry the project's name: under another one home, token and keys are others.
    """
    if settings.where("COMPOSE_PROJECT_NAME").startswith(".env"):
        return None  # a line of the user's own: it held at the last `make up` as well
    own = env_file.load(paths.env_file, {}).own
    before = own.get("COMPOSE_PROJECT_NAME", DEFAULT_NAME)
    return before if own and before != settings.get("COMPOSE_PROJECT_NAME", DEFAULT_NAME) else None


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
    "TORCHTAP_SAFE",
    "JUPYTER_CULL_IDLE_S",
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
