"""`make purge`: remove everything that this project made on this host, except what people wrote.

What is there is listed first, with sizes, and exactly that is removed. The workspace and `.env` are never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from host import consent, engine, inside, local, places, proc, project
from host.lock import held
from host.paths import Paths
from host.settings import Settings
from host.show import FAILED, Problem, gigabytes, listing, say

PROJECT_LABEL = "com.docker.compose.project"
SIZES_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Thing:
    """Something to remove: its kind, its name, and what to say of it."""

    kind: str  # container, volume, network, image, folder
    name: str
    note: str = ""


def lines(*words: str) -> list[str]:
    """What a docker command lists, one a line; empty where it says nothing. Raises `Problem` without an answer."""
    done = proc.ask(["docker", *words])
    if not done.ok:
        raise project.failed(f"docker {' '.join(words[:2])} gives no list", done)
    return [line for line in done.out.splitlines() if line.strip()]


def in_docker(name: str, image: str) -> list[Thing]:
    """Containers, volumes and networks with the project's label, and the images that compose.yaml names."""
    label = ("--filter", f"label={PROJECT_LABEL}={name}")
    things = [
        Thing("container", *row.split("\t", 1))
        for row in lines("ps", "--all", *label, "--format", "{{.Names}}\t{{.Status}}")
    ]
    volumes = lines("volume", "ls", *label, "--format", "{{.Name}}")
    sizes = volume_sizes() if volumes else {}
    things += [Thing("volume", each, sizes.get(each, "size unknown")) for each in volumes]
    things += [Thing("network", each) for each in lines("network", "ls", *label, "--format", "{{.Name}}")]
    named = ("--filter", f"reference={image}:*", "--format", "{{.Repository}}:{{.Tag}}\t{{.Size}}")
    things += [Thing("image", *row.split("\t", 1)) for row in lines("image", "ls", *named)]
    # Compose gives what it builds the project's label: what `make update` has left without a name is known by it.
    unnamed = ("--filter", "dangling=true", "--format", "{{.ID}}\t{{.Size}}, of before an update")
    return things + [Thing("image", *row.split("\t", 1)) for row in lines("image", "ls", *label, *unnamed)]


def volume_sizes() -> dict[str, str]:
    """Each volume's size as Docker counts it; empty where that takes too long."""
    done = proc.ask(
        ["docker", "system", "df", "-v", "--format", "{{json .Volumes}}"], timeout_s=SIZES_TIMEOUT_S
    )
    try:
        found = json.loads(done.out) if done.ok else []
    except ValueError:
        found = []
    return {
        each["Name"]: each["Size"] for each in found if isinstance(each, dict) and {"Name", "Size"} <= {*each}
    }


def on_disk(paths: Paths) -> list[Thing]:
    """The virtual environment, where it is one, and what make keeps for this host."""
    things = []
    if paths.venv.is_symlink():
        things.append(Thing("folder", str(paths.venv), "the link alone; what it leads to stays"))
    elif (paths.venv / "pyvenv.cfg").exists():
        things.append(
            Thing("folder", str(paths.venv), f"{gigabytes(tree_bytes(paths.venv))}, made from the locks")
        )
    things += [
        Thing("folder", str(each), f"{gigabytes(tree_bytes(each))}, of make test-torch")
        for each in sorted(paths.private.glob("torch-*"))
    ]
    if paths.local.exists():
        things.append(
            Thing("folder", str(paths.local), "what make keeps for this host; the token of local mode")
        )
    return things


def tree_bytes(top: Path) -> int:
    return sum(each.lstat().st_size for each in top.rglob("*") if not each.is_dir())


def keep_workspace_out(things: Iterable[Thing], workspace: Path) -> None:
    """Raises `Problem` when the user's code lies in a folder that would go."""
    for thing in things:
        if thing.kind == "folder" and workspace.is_relative_to(Path(thing.name).resolve()):
            raise Problem(
                f"WORKSPACE={workspace} lies in {thing.name}, which would be removed", "Move it first"
            )


def remove(thing: Thing) -> proc.Done:
    """Remove one thing."""
    commands: Mapping[str, Sequence[str]] = {
        "container": ("rm", "--force"),
        "volume": ("volume", "rm"),
        "network": ("network", "rm"),
        "image": ("image", "rm"),
    }
    if thing.kind == "folder":
        try:
            Path(thing.name).unlink() if Path(thing.name).is_symlink() else shutil.rmtree(thing.name)
        except OSError as error:
            return proc.Done(1, "", f"{error.strerror}: {error.filename}")
        return proc.Done(0)
    return proc.ask(["docker", *commands[thing.kind], thing.name], timeout_s=300)


def purge(argv: Sequence[str]) -> int:
    """List, ask for the project's name, remove. Exit code 1: something is left; 2: not confirmed, nothing removed."""
    yes = consent.said_yes(argv)
    paths = Paths()
    with held(paths):
        settings = places.settings(paths)
        name, things, stop = survey(paths, settings)
        workspace = local.workspace_path(paths, settings)
        keep_workspace_out(things, workspace.resolve())
        show(paths, name, things)
        kept = [workspace, *([paths.env_file] if paths.env_file.exists() else [])]
        say("kept", f"{listing(paths.short(each) for each in kept)}, and this checkout")
        if not any(thing.kind != "folder" or Path(thing.name) != paths.local for thing in things):
            say("purge", "there is nothing else to remove")
            return 0
        consent.demand(yes, name, "make purge")
        stop()
        left = [(thing, done) for thing in things if not (done := remove(thing)).ok]
    for thing, done in left:
        say("left", f"{thing.kind} {thing.name}: {done.said}")
    if left:
        raise Problem(f"{len(left)} of {len(things)} could not be removed (see above)", code=FAILED)
    say("purge", f"{len(things)} removed; make up begins anew")
    return 0


def survey(paths: Paths, settings: Settings) -> tuple[str, list[Thing], Callable[[], None]]:
    """The project's name, what there is of it, and how to stop what runs. Without an engine: the folders alone."""
    found = places.look(paths, settings)

    def stop() -> None:
        if found.local:
            local.stop(paths, found.local, float(settings.get("STOP_GRACE", "30")))
        if found.in_docker and found.compose:
            found.compose.watch("stop")

    if found.compose is None:
        if settings.get("MODE") != "local":
            say("docker", f"{engine.look()}: nothing is looked for there")
        return paths.root.name, on_disk(paths), stop
    what = inside.service(found.compose)
    return what.project, [*in_docker(what.project, what.image.rpartition(":")[0]), *on_disk(paths)], stop


def show(paths: Paths, name: str, things: Sequence[Thing]) -> None:
    """What is going to be removed, a line each."""
    say("project", name)
    for thing in things:
        shown = paths.short(Path(thing.name)) if thing.kind == "folder" else thing.name
        say("", f"{thing.kind:<10} {shown}{f' ({thing.note})' if thing.note else ''}")
    volumes = [thing.name for thing in things if thing.kind == "volume"]
    if volumes:
        say(
            "",
            f"{listing(volumes)}: home, keys and token. Every checkout with the project name {name} uses them.",
        )
