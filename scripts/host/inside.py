"""Commands that run a program of the image where the volumes are: reset-env, ssh-fingerprints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from host import access, consent, docker, engine, places, proc, project, up
from host.paths import Paths
from host.project import SERVICE
from host.show import FAILED, Problem, paste, say

NO_SUCH_PROGRAM = (126, 127)
HOME, STATE = "/home/dev", "/var/lib/torchtap"


@dataclass(frozen=True, slots=True)
class Service:
    """What Compose would make of this checkout: names as they are after every variable and `.env`."""

    project: str
    image: str
    environment: Mapping[str, str]
    volumes: Mapping[str, str]  # place in the container → name of the volume; binds are left out


def service(compose: project.Compose) -> Service:
    """Ask Compose itself: it alone knows what COMPOSE_PROJECT_NAME and an override file do to the names.

    With the files of the last `make up`, which stand in `.env`; with compose.yaml alone where one of them is gone.
    """
    as_up = project.Compose(compose.paths, os.environ)
    done = as_up.ask("config", "--format", "json")
    if not done.ok:
        done = compose.ask("config", "--format", "json")
    try:
        found: dict[str, Any] = json.loads(done.out)
    except ValueError:
        found = {}
    if not done.ok or SERVICE not in found.get("services", {}):
        raise project.failed("Compose cannot read its configuration", done, project.SEE)
    dev = found["services"][SERVICE]
    volumes = {
        mount["target"]: found["volumes"][mount["source"]]["name"]
        for mount in dev.get("volumes", [])
        if mount.get("type") == "volume" and mount.get("source") in found.get("volumes", {})
    }
    return Service(found["name"], dev["image"], dev.get("environment") or {}, volumes)


def reset_env(argv: Sequence[str]) -> int:
    """Remove the overlay in the home volume: what pip and uv installed. The base and all files stay."""
    yes = consent.said_yes(argv)
    paths = Paths()
    settings = places.settings(paths)
    found = places.look(paths, settings)
    if found.compose is None:
        raise Problem(
            "local mode has no overlay: .venv is all there is, and make's own",
            "To make it anew:  make down && make clean ARGS=--all && make up",
        )
    compose, container = found.compose, found.container
    what = service(compose)
    volume = what.volumes.get(HOME)
    alone = [] if found.in_docker else one_off(what)  # first: nothing to do it on, nothing to ask
    say("reset-env", f"removes what pip and uv installed into {volume or HOME}; your files and the base stay")
    if not yes and found.in_docker:
        say("", "Programs that run now keep what they have loaded, until they need more of it.")
    consent.demand(yes, "yes", "make reset-env")
    if found.in_docker:
        who = access.started(compose)
        words = ["exec", "-T", "--user", f"{who['uid']}:{who['gid']}", SERVICE]
        rc = compose.watch(*words, "torchtap-env", "reset", "--yes")
    else:
        rc = proc.watch(alone, env=os.environ)
    if rc in NO_SUCH_PROGRAM:
        raise too_old("torchtap-env")
    if rc != 0:
        raise Problem("the overlay was not removed (the program's own words are above)", code=FAILED)
    if found.in_docker and container:
        say("restart", "JupyterLab and its kernels still run on what was removed:")
        paste(f"docker restart {container['Name'].lstrip('/')}")
    else:
        say("start", "make up begins with a new, empty overlay")
    return 0


def too_old(program: str) -> Problem:
    return Problem(
        f"this image has no {program}: it is older than this checkout",
        "Build it anew:  make update",
        code=FAILED,
    )


def one_off(what: Service) -> list[str]:
    """A container for this alone: same ids, same home, none of the overlay, no port, no GPU, no network."""
    if not docker.has_image(what.image):
        raise Problem(f"there is no image {what.image} to do it with", "Build it:  make build")
    if HOME not in what.volumes:
        raise Problem(f"{HOME} is no volume here: a Compose file of yours mounts something else there")
    if not proc.ask(["docker", "volume", "inspect", what.volumes[HOME]]).ok:
        raise Problem(f"there is no volume {what.volumes[HOME]}: nothing was installed yet", code=FAILED)
    settled = {"TORCHTAP_SAFE": "1", "TORCHTAP_SELFTEST": "off", "TORCHTAP_DEVICE": "cpu"}
    ids = {name: what.environment.get(name) or "" for name in ("HOST_UID", "HOST_GID")}
    env = [word for name, value in (ids | settled).items() if value for word in ("--env", f"{name}={value}")]
    mounts = [
        word
        for place in (HOME, STATE)
        if place in what.volumes
        for word in ("--volume", f"{what.volumes[place]}:{place}")
    ]
    command = ["torchtap-env", "reset", "--yes"]
    return ["docker", "run", "--rm", "--network", "none", *env, *mounts, what.image, *command]


def fingerprints(argv: Sequence[str]) -> int:
    """The host keys' fingerprints, to compare with what ssh shows at the first login. Read through Docker."""
    up.no_arguments(argv)
    paths = Paths()
    settings = places.settings(paths)
    found = places.look(paths, settings)
    if found.compose is None and found.local is None and settings.get("MODE") != "local":
        engine.demand(engine.look())
    if not found.in_docker or not found.compose:
        if settings.get("MODE") == "local" or found.local:
            raise Problem("local mode has no SSH: it runs on this machine already")
        raise Problem("nothing runs here", "Start it:  make up")
    done = found.compose.ask("exec", "-T", SERVICE, "torchtap-fingerprints")
    if done.rc in NO_SUCH_PROGRAM:
        raise too_old("torchtap-fingerprints")
    if not done.ok:
        raise Problem(done.said.removeprefix("torchtap-fingerprints: "), code=FAILED)
    print(done.out, end="")
    return 0
