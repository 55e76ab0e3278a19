"""The Docker engine: is there one, may we use it, is Compose new enough, what says that it can hand out a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from host import proc
from host.show import Problem

COMPOSE_FLOOR = (
    2,
    26,
)  # `!reset` and `!override`, with which the GPU is taken away or chosen, work from here
INFO_TIMEOUT_S = 30.0
HOOK = "nvidia-container-runtime-hook"  # dockerd offers --gpus when it finds this on its PATH
KINDS: Mapping[str, type] = {
    "CDISpecDirs": list,
    "DiscoveredDevices": list,
    "DockerRootDir": str,
    "Name": str,
    "Runtimes": dict,
    "SecurityOptions": list,
    "ServerErrors": list,
    "ServerVersion": str,
}
OF_TEXTS = frozenset({"CDISpecDirs", "SecurityOptions", "ServerErrors"})
CDI_KIND = "nvidia.com/gpu"


class State(Enum):
    """How far one gets with Docker here."""

    READY = "ready"
    NO_CLIENT = "docker is not installed"
    UNREACHABLE = "no Docker engine answers"
    PODMAN = "docker is Podman here, with which Torchtap is not tested"
    NO_PERMISSION = "Docker is here, but this user may not use it"
    NO_COMPOSE = "Docker is here, but not its Compose plugin"
    OLD_COMPOSE = "Docker's Compose plugin is too old"


# Without these there is no Docker to speak of; the other states a user can mend in a minute, and has to decide.
ABSENT = frozenset({State.NO_CLIENT, State.UNREACHABLE, State.PODMAN})


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of the engine. `hints` say in words why it may be able to hand out a GPU; no proof."""

    state: State
    said: str = ""  # Docker's own words where something is wrong
    version: str = ""
    compose: str = ""
    root: Path | None = None  # where images lie, if that is a folder of this machine
    local: bool = True  # False: the engine runs on another machine
    hints: tuple[str, ...] = ()
    cdi: bool = False  # it knows CDI devices of NVIDIA
    info: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # all of `docker info`

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    def __str__(self) -> str:
        if not self.ready:
            return self.state.value + (f": {self.said}" if self.said else "")
        hints = f"; GPU by {', '.join(self.hints)}" if self.hints else "; no sign of GPU support"
        return f"Docker {self.version}, Compose {self.compose}{hints}"


def look(environ: Mapping[str, str] = os.environ, tick: proc.Tick | None = None) -> Engine:
    """Ask Docker. Never raises; an engine that gives no answer in 30 s counts as unreachable."""
    if shutil.which("docker", path=environ.get("PATH")) is None:
        return Engine(State.NO_CLIENT)
    answer = proc.ask(["docker", "info", "--format", "{{json .}}"], timeout_s=INFO_TIMEOUT_S, tick=tick)
    info = read_info(answer.out)
    errors = " ".join([*(info.get("ServerErrors") or []), answer.err]).strip()
    if "permission denied" in errors.lower():
        return Engine(State.NO_PERMISSION, first_sentence(errors), info=info)
    if not info.get("ServerVersion"):
        if "host" in info or "podman" in errors.lower():
            return Engine(State.PODMAN)
        return Engine(State.UNREACHABLE, first_sentence(errors or answer.said), info=info)
    local = is_local(environ)
    devices = cdi_devices(info, local)
    root = Path(info.get("DockerRootDir") or "/nonexistent")
    asked = proc.ask(["docker", "compose", "version", "--short"])
    compose = asked.out.strip().removeprefix("v")
    state, said = State.READY, ""
    if not asked.ok:
        state, compose = State.NO_COMPOSE, ""
    elif compose_number(compose) < COMPOSE_FLOOR:
        state, said = State.OLD_COMPOSE, f"{compose}, and {'.'.join(map(str, COMPOSE_FLOOR))} is needed"
    return Engine(
        state,
        said,
        version=str(info["ServerVersion"]),
        compose=compose,
        root=root if local and root.is_dir() else None,
        local=local,
        hints=hints(info, devices, shutil.which(HOOK) if local else None),
        cdi=bool(devices),
        info=info,
    )


def read_info(text: str) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(info, dict):
        return {}
    # What is of another kind than Docker writes is as good as not there.
    known: dict[str, Any] = {
        key: value for key, value in info.items() if isinstance(value, KINDS.get(key, object))
    }
    return {
        key: [each for each in value if isinstance(each, str)] if key in OF_TEXTS else value
        for key, value in known.items()
    }


def first_sentence(text: str) -> str:
    """Docker's message without its second half of advice: one line.

    >>> first_sentence("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?")
    'Cannot connect to the Docker daemon at unix:///x'
    """
    line = text.strip().splitlines()[0] if text.strip() else ""
    line = line.removeprefix("ERROR: ").removeprefix("error during connect: ")
    return re.split(r"\. (?=[A-Z])|: (?:Get|Head) \"", line)[0].rstrip(".")


def compose_number(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; (0, 0) when there are none.

    >>> compose_number("2.26.1-4"), compose_number("v5.0.0-desktop.1"), compose_number("dev")
    ((2, 26), (5, 0), (0, 0))
    """
    match = re.search(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def is_local(environ: Mapping[str, str]) -> bool:
    """Whether the engine runs on this machine: reached through a socket file, not over the network."""
    address = environ.get("DOCKER_HOST") or ""
    if not address:
        asked = proc.ask(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
        address = asked.out.strip() if asked.ok else "unix://"
    return address.startswith(("unix:", "npipe:"))


def cdi_devices(info: Mapping[str, Any], local: bool) -> list[str]:
    """NVIDIA's CDI devices: as the engine lists them (from 28.3), or by the files in its folders."""
    found = [
        str(each.get("ID", "")) for each in info.get("DiscoveredDevices") or [] if isinstance(each, dict)
    ]
    if not found and local:
        for folder in info.get("CDISpecDirs") or []:
            for spec in sorted(Path(folder).glob("*.[yj]*")):
                try:
                    if CDI_KIND in spec.read_text(errors="replace"):
                        found.append(f"{CDI_KIND} ({spec})")
                except OSError:
                    continue
    return [each for each in found if each.startswith(CDI_KIND)]


def hints(info: Mapping[str, Any], devices: list[str], hook: str | None) -> tuple[str, ...]:
    """In words, what suggests that this engine hands out GPUs."""
    runtimes = info.get("Runtimes") or {}
    found = ["its runtime nvidia"] if "nvidia" in runtimes else []
    found += ["CDI devices"] if devices else []
    found += [HOOK] if hook and not found else []
    return tuple(found)


WITHOUT = "Or go on without Docker:  make up MODE=local"
REMEDIES: dict[State, tuple[str, ...]] = {
    State.NO_CLIENT: (
        "Install Docker Engine with its Compose plugin: https://docs.docker.com/engine/install",
        WITHOUT,
    ),
    State.UNREACHABLE: (
        "Start it:  sudo systemctl start docker     (Docker Desktop: start the application)",
        WITHOUT,
    ),
    State.PODMAN: ("Install Docker Engine: https://docs.docker.com/engine/install", WITHOUT),
    State.NO_PERMISSION: (
        "Let this user in:  sudo usermod -aG docker $USER     then log in anew (the group docker is as good as root)",
        WITHOUT,
    ),
    State.NO_COMPOSE: (
        "Install it:  sudo apt install docker-compose-plugin     (Debian's own packages: docker-compose)",
        WITHOUT,
    ),
    State.OLD_COMPOSE: ("Update it:  sudo apt install docker-compose-plugin", WITHOUT),
}


def demand(engine: Engine) -> None:
    """Raises `Problem` with the remedy unless the engine is ready."""
    if not engine.ready:
        raise Problem(str(engine), *REMEDIES[engine.state])
