"""What of this checkout runs now: in Docker, or in local mode on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from host import engine, env_file, local, project
from host.paths import Paths
from host.settings import Settings, settle
from host.show import Problem


@dataclass(frozen=True, slots=True)
class Running:
    """Either or both, or neither."""

    local: local.Instance | None
    compose: project.Compose | None  # None: there is no engine to ask
    container: Mapping[str, Any] | None  # the service's container, running or not

    @property
    def in_docker(self) -> bool:
        return project.is_running(self.container)


def settings(paths: Paths, environ: Mapping[str, str] = os.environ) -> Settings:
    """What the user set in the environment and in `.env`. Raises `Problem` for what cannot be read."""
    return settle(environ, env_file.load(paths.env_file, environ).user)


def look(paths: Paths, chosen: Settings) -> Running:
    """Look where MODE allows. Docker is not asked when only local mode is meant, or when it is not there."""
    mode = chosen.get("MODE")
    instance = local.running(paths) if mode in {"", "local"} else None
    if mode == "local":
        return Running(instance, None, None)
    found = engine.look()
    if not found.ready:
        if mode or (found.state not in engine.ABSENT and instance is None):
            engine.demand(found)
        return Running(instance, None, None)
    compose = project.plain(paths, chosen, os.environ)
    return Running(instance, compose, compose.container())


def one(paths: Paths, chosen: Settings) -> Running:
    """The place that a command about "the environment" means: Docker where it runs there, else local mode.

    Raises `Problem` when nothing runs.
    """
    found = look(paths, chosen)
    if found.in_docker:
        return Running(None, found.compose, found.container)
    if found.local is None:
        mode = chosen.get("MODE")
        raise Problem(f"nothing runs here{f' in mode {mode}' if mode else ''}", "Start it:  make up")
    return found
