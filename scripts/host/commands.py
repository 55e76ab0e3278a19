"""The small commands about what runs: down, url, logs, status, shell, ssh, clean."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from host import access, docker, keys, local, places, proc, project, purge, up, venv, verdict
from host.lock import held
from host.paths import Paths
from host.show import Problem, say


def down(argv: Sequence[str]) -> int:
    """Stop whatever of this checkout runs on this host. Nothing running is fine too."""
    up.no_arguments(argv)
    paths = Paths()
    with held(paths):
        settings = places.settings(paths)
        found = places.look(paths, settings)
        if found.local:
            began = time.monotonic()
            local.stop(paths, found.local, float(settings.get("STOP_GRACE", "30")))
            say(
                "stopped",
                f"JupyterLab (pid {found.local.pid}) after {time.monotonic() - began:.1f} s; your files stay",
            )
        if found.compose and found.container:
            if found.compose.watch("down") != 0:
                raise Problem("Docker could not stop it (its own words are above)", code=1)
            say("stopped", "the container is removed; workspace, home, keys and token stay")
        if not found.local and not found.container:
            say("stopped", "nothing ran here")
    return 0


def url(argv: Sequence[str]) -> int:
    """The link to JupyterLab, alone on stdout."""
    up.no_arguments(argv)
    paths = Paths()
    found = places.one(paths, places.settings(paths))
    if found.local:
        print(local.url(paths, found.local))
    elif found.compose and found.container:
        print(access.url(found.compose, found.container))
    return 0


def logs(argv: Sequence[str]) -> int:
    """The last 200 lines, followed on a terminal until Ctrl-C. Also of what has ended already."""
    up.no_arguments(argv)
    paths = Paths()
    found = places.look(paths, places.settings(paths))
    follow = sys.stdout.isatty()
    if found.compose and found.container and (found.in_docker or not found.local):
        more = ["--follow"] if follow else []
        # Not `docker compose logs`: 2.26 puts control characters into files.
        return proc.become(["docker", "logs", "--tail", "200", *more, found.container["Id"]], env=os.environ)
    log = paths.local / "jupyter.log"
    if not log.exists():
        raise Problem("there is no log: nothing was started here", "Start it:  make up")
    print("\n".join(local.tail(log, 200)), flush=True)
    if follow and found.local:
        return proc.become(["tail", "-n", "0", "-F", str(log)], env=os.environ)
    return 0


def status(argv: Sequence[str]) -> int:
    """What runs, how it is, how its self-test ended. Exit code 0 in any case: the answer is the text."""
    up.no_arguments(argv)
    paths = Paths()
    found = places.look(paths, places.settings(paths))
    if found.local:
        instance = found.local
        well = local.answers(instance, local.token(paths))
        say("local", f"JupyterLab {'answers' if well else 'does NOT answer: make logs'} (pid {instance.pid})")
        say("", f"at {instance.base} since {time.strftime('%Y-%m-%d %H:%M', time.localtime(instance.began))}")
        say("workspace", paths.short(paths.root / instance.workspace))
        report = paths.local / "selftest.json"
        if report.exists():
            verdict.show(verdict.read(report.read_text()), "All of it:  make selftest MODE=local")
    if found.compose and found.container:
        docker_status(found.compose, found.container)
    if not found.local and not found.container:
        say("status", "nothing runs here. Start it:  make up")
    return 0


def docker_status(compose: project.Compose, container: Mapping[str, Any]) -> None:
    """What `docker inspect` says, in the words of `make up`."""
    state = container["State"]
    health, last = docker.health_of(state)
    name = container["Name"].lstrip("/")
    say("docker", f"{name}: {state['Status']}" + (f", {health}" if health else ""))
    if not project.is_running(container):
        say("", f"exit code {state.get('ExitCode')}. Its log:  make logs")
        return
    if last:
        say("", last)
    say("image", f"{container['Config']['Image']}, {'with' if has_gpu(container) else 'without'} GPU")
    for label, inside in (("jupyter", 8888), ("ssh", 22)):
        where = project.published(container, inside)
        if where:
            say(label, f"port {where[1]} on {where[0]}")
    for mount in container.get("Mounts", []):
        if mount.get("Destination") == "/workspace":
            say("workspace", mount.get("Source", ""))
    if "TORCHTAP_SELFTEST=off" not in container["Config"].get("Env", []):
        verdict.show(docker.report(compose, container, patience_s=0), "All of it:  make selftest")


def has_gpu(container: Mapping[str, Any]) -> bool:
    """Whether it was started with a GPU: through the NVIDIA runtime's hook, or as a CDI device."""
    return bool(container["HostConfig"].get("DeviceRequests"))


def shell(argv: Sequence[str]) -> int:
    """A shell in what runs; in local mode also when nothing does. `scripts/shell COMMAND …` runs a command."""
    paths = Paths()
    settings = places.settings(paths)
    found = places.look(paths, settings)
    if found.in_docker and found.compose:
        command = access.shell_command(
            found.compose, argv, terminal=sys.stdin.isatty() and sys.stdout.isatty()
        )
        return proc.become(command, env=found.compose.env, cwd=paths.root)
    if not found.local and settings.get("MODE") != "local":
        raise Problem(
            "nothing runs here", "Start it:  make up     (or a shell without Docker:  make shell MODE=local)"
        )
    place, _ = venv.ensure(paths, forced=settings.get("VARIANT"), index=settings.get("TORCH_INDEX"))
    env = local.environment(paths, settings, place, os.environ)
    folder = local.workspace(paths, settings)
    program = list(argv) or [env.get("SHELL") or "/bin/sh"]
    if not argv and sys.stdin.isatty():
        say("shell", f"{paths.short(place.path)} is active here; exit or Ctrl-D ends it")
    rc = proc.become(program, env=env, cwd=folder)
    raise Problem(f"{program[0]}: command not found", code=rc)


SSH_FAILED = 255  # ssh's own failure, not that of the command in the container


def ssh(argv: Sequence[str]) -> int:
    """Log in to the container. Its host key comes through Docker, so that there is no first question about it."""
    paths = Paths()
    settings = places.settings(paths)
    found = places.look(paths, settings)
    if settings.get("MODE") == "local" or (found.local and not found.in_docker):
        raise Problem("local mode has no SSH: it runs on this machine already", "A shell:  make shell")
    if not found.in_docker or not found.compose or not found.container:
        raise Problem("nothing runs here", "Start it:  make up")
    if "sshd" not in access.started(found.compose)["services"]:
        raise Problem(
            "SSH is off in this container: it was started without a public key",
            "make up     (it takes the keys in ~/.ssh), or make shell",
        )
    asked = settings.get("SSH_KEY") not in {"", "none"}
    identity = (
        keys.find(settings, os.environ, Path.home()).identity if asked else keys.remembered(paths.identity)
    )
    known = access.known_hosts(found.compose, paths)
    command = access.ssh_command(found.container, identity, *known)
    if command is None:
        raise Problem("the container publishes no port for SSH", "A shell:  make shell")
    if not shutil.which("ssh"):
        raise Problem(
            "ssh is not installed on this machine",
            f"It would be:  {shlex.join(command)}",
            code=proc.NOT_FOUND,
        )
    if identity:
        return proc.become([*command, *argv], env=dict(os.environ))
    rc = proc.watch([*command, *argv])
    if rc == SSH_FAILED:
        print("If it was the key, name the one that was let in:  make ssh SSH_KEY=FILE.pub", file=sys.stderr)
    return rc


CACHES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints")


def clean(argv: Sequence[str]) -> int:
    """Remove caches; with --all also .venv, the images and make's own state. Volumes and the workspace stay."""
    if set(argv) - {"--all"}:
        raise Problem(f"unknown argument {argv[0]!r}: only --all is known")
    paths = Paths()
    for top in [paths.root, *(each for each in paths.root.iterdir() if each.is_dir())]:
        if top.name in {".git", ".venv", ".torchtap", "workspace"}:
            continue
        found = [
            each for each in (top.iterdir() if top == paths.root else top.rglob("*")) if each.name in CACHES
        ]
        for cache in found:
            shutil.rmtree(cache, ignore_errors=True)
    say("clean", "caches of Python, pytest, mypy and ruff")
    if argv:
        clean_all(paths)
    return 0


def clean_all(paths: Paths) -> None:
    settings = places.settings(paths)
    found = places.look(paths, settings)
    if found.local or found.in_docker:
        raise Problem("something runs here", "First:  make down")
    if found.compose:
        name = f"{settings.get('TORCHTAP_IMAGE', 'torchtap')}:*"
        images = proc.ask(["docker", "image", "ls", "--quiet", "--filter", f"reference={name}"]).out.split()
        if images and proc.watch(["docker", "image", "rm", *sorted(set(images))]) == 0:
            say("clean", f"{len(images)} image{'s' if len(images) > 1 else ''}")
        say("volumes", "are kept: they hold your home, keys and token. To remove them too:  make purge")
    for thing in purge.on_disk(paths):
        done = purge.remove(thing)
        if not done.ok:
            raise Problem(f"{thing.name} could not be removed: {done.said}", code=1)
        say("clean", f"{paths.short(Path(thing.name))} ({thing.note})")
