"""Before a dev container is made: what `make up` would have decided goes into `.env`, and the workspace is made.

Called by `initializeCommand` of .devcontainer. Builds and starts nothing: the dev container's own client does that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from host import engine, keys, plan, project, up
from host.lock import held
from host.paths import Paths


def prepare(argv: Sequence[str]) -> int:
    """Decide as `make up` does, up to the proof that Docker hands out a GPU: the chosen configuration says that."""
    up.no_arguments(argv)
    paths = Paths()
    with held(paths):
        situation = up.look(paths)
        engine.demand(situation.engine)
        chosen = plan.decide(situation.settings, situation.engine, situation.gpus)
        up.tell(situation, chosen)
        found = keys.find(situation.settings, os.environ, Path.home())
        up.make_workspace(paths, situation.settings)
        variables = project.compose_variables(paths, situation.settings, chosen, None, found, os.environ)
        if (
            chosen.mode == "gpu"
        ):  # what the configuration names; the block's own COMPOSE_FILE is for `docker compose`
            variables["COMPOSE_FILE"] = variables["COMPOSE_FILE"].replace(":compose.cpu.yaml", "")
        project.remember(paths, situation.settings, variables, None)
    return 0
