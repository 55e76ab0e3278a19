"""`make update`: the newest base that the registry has, the image built on it, and the container replaced.

The source is this checkout as it is. Volumes and workspace stay; the image before stays too, to go back to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from host import docker, engine, keys, pin, places, plan, proc, up, venv
from host.lock import held
from host.paths import Paths
from host.settings import Settings
from host.show import paste, say, warn

PULL_TIMEOUT_S = 1800.0
# What of the manifest a person knows, in this order, and what to call it.
SHOWN = {"torchtap": "torchtap", "torch": "PyTorch", "cuda": "CUDA", "python": "Python", "base": "base"}


def update(argv: Sequence[str]) -> int:
    """Fetch, build, replace, and say what changed."""
    up.no_arguments(argv)
    paths = Paths()
    with held(paths):
        situation = up.look(paths)
        chosen = plan.decide(situation.settings, situation.engine, situation.gpus)
        up.tell(situation, chosen)
        if chosen.place == plan.LOCAL:
            return update_local(situation)
        engine.demand(situation.engine)
        return update_docker(situation, chosen)


def update_local(situation: up.Situation) -> int:
    """Local mode has no base: .venv follows the locks of this checkout."""
    settings = situation.settings
    forced, index = settings.get("VARIANT"), settings.get("TORCH_INDEX")
    place, variant = venv.ensure(situation.paths, forced=forced, index=index, host=situation.gpus)
    say(
        "venv",
        f"{situation.paths.short(place.path)} is as the locks say: PyTorch {variant.torch} {variant.name}",
    )
    say("", "JupyterLab that runs goes on with what it has loaded:  make down && make up")
    return 0


def update_docker(situation: up.Situation, chosen: plan.Plan) -> int:
    paths, settings = situation.paths, situation.settings
    name = docker.image(settings, chosen)
    before, said_before = image_id(name), describe(name)
    runs = places.look(paths, settings)
    pulled = pull(base_of(paths, settings, chosen))
    up.built(situation, chosen, keys.Keys((), ""), pull=pulled)
    after = image_id(name)
    stale = runs.in_docker and (runs.container or {}).get("Image") != after
    if before == after and not stale:
        say("update", f"nothing changed: {name} is up to date{' and runs' if runs.in_docker else ''}")
        return 0
    if before and before != after:
        say("image", f"{name}, before -> now")
        differences(said_before, describe(name))
    if stale:
        up.up_docker(situation, chosen)
        say("kept", "workspace, home, keys and token")
    else:
        say("update", f"{name} is built; make up starts it. Workspace, home, keys and token are as they were")
    if before and before != after:
        say("back", "the image before is still here. To go back to it:")
        paste(f"docker tag {before.removeprefix('sha256:')[:12]} {name} && make up BUILD=no")
    return 0


def image_id(name: str) -> str:
    """The image's id, or nothing."""
    done = proc.ask(["docker", "image", "inspect", "--format", "{{.Id}}", name])
    return done.out.strip() if done.ok else ""


def describe(name: str) -> dict[str, str]:
    """The image's manifest, with torchtap's version; empty where there is no image, or it does not say."""
    program = "cat /opt/torchtap/manifest.json; echo; ls -d /opt/torchtap/venv/lib/python3*/site-packages/torchtap-*"
    words = ["run", "--rm", "--network", "none", "--entrypoint", "sh", name, "-c", program]
    done = proc.ask(["docker", *words], timeout_s=60) if image_id(name) else proc.Done(1)
    text, _, listing = done.out.partition("\n}\n")
    try:
        found: Any = json.loads(text + "\n}") if done.ok else {}
    except ValueError:
        found = {}
    version = Path(listing.strip()).name.removeprefix("torchtap-").removesuffix(".dist-info")
    return {**{key: str(value) for key, value in found.items()}, **({"torchtap": version} if version else {})}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """One line for each version that a person knows; what did not change is said too."""
    for key, title in SHOWN.items():
        old, new = before.get(key, "unknown"), after.get(key, "unknown")
        say("", f"{title:<9} {f'{old} -> {new}' if old != new else f'{new}, as before'}")


def base_of(paths: Paths, settings: Settings, chosen: plan.Plan) -> str:
    """The base image as the build names it: BASE_IMAGE, else what the Dockerfile says, digest included."""
    tags = pin.bases((paths.root / "Dockerfile").read_text())
    own = chosen.variant.base
    pinned = f"{own}@{tags[own]}" if tags.get(own) else own
    return settings.get("BASE_IMAGE") or pinned


def pull(base: str) -> bool:
    """Fetch the base anew. False, and said, where that cannot be: then the one that is here serves."""
    say("pull", base)
    if "@sha256:" in base:
        say("", "pinned by its digest, so there is no newer one. make pin asks the registry for it")
    done = proc.ask(["docker", "pull", "--quiet", base], timeout_s=PULL_TIMEOUT_S)
    if not done.ok:
        warn(f"the base could not be fetched: {done.said.removeprefix('Error response from daemon: ')}")
        say("", "The build goes on with the one that is here.")
    return done.ok
