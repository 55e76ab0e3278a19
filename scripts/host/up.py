"""`make up`: decide, prepare, start, wait, and tell how to get in. Also `make build`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host import (
    access,
    docker,
    engine,
    gpu,
    handout,
    keys,
    local,
    places,
    plan,
    ports,
    project,
    venv,
    verdict,
)
from host.lock import held
from host.paths import Paths
from host.settings import Settings
from host.show import Problem, say, ticking, warn

HEALTHY_PATIENCE_S = 180.0
PORTS = (("JUPYTER_PORT", "8888", 8888), ("SSH_PORT", "2222", 22))  # variable, default, port in the container
LOOPBACK = ("127.", "::1", "[::1]")


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that is decided on."""

    paths: Paths
    settings: Settings
    engine: engine.Engine
    gpus: gpu.HostGpus


def look(paths: Paths) -> Situation:
    """Gather the facts. Raises `Problem` for a broken `.env` or a bad value, before anything else is asked."""
    settings = places.settings(paths)
    mode_is_local = settings.get("MODE") == "local"
    with ticking("look") as ticker:
        found = engine.Engine(engine.State.UNREACHABLE) if mode_is_local else engine.look(tick=ticker.tick)
        return Situation(paths, settings, found, gpu.look(tick=ticker.tick))


def tell(situation: Situation, chosen: plan.Plan) -> None:
    """One line a choice, with its reason."""
    if chosen.place == plan.DOCKER:
        say("engine", str(situation.engine))
    say("host", str(situation.gpus))
    say("mode", f"{chosen.mode}: {chosen.mode_why}")
    if chosen.place == plan.DOCKER:
        say("variant", f"{chosen.variant.name}, PyTorch {chosen.variant.torch}: {chosen.variant_why}")
    for note in chosen.notes:
        warn(note)
    device = situation.settings.get("TORCHTAP_DEVICE")
    if device and chosen.place == plan.DOCKER:
        warn(f"TORCHTAP_DEVICE={device} is not heeded: in Docker MODE sets it, as in make up MODE=cpu")
    address = situation.settings.get("BIND_ADDRESS")
    if address and not address.startswith(LOOPBACK):
        warn(
            f"BIND_ADDRESS={address} opens JupyterLab{'' if chosen.mode == 'local' else ' and SSH'} to your network"
        )


def up(argv: Sequence[str]) -> int:
    """Start the environment, or say that it runs already."""
    no_arguments(argv)
    paths = Paths()
    with held(paths):
        situation = look(paths)
        chosen = plan.decide(situation.settings, situation.engine, situation.gpus)
        tell(situation, chosen)
        return up_local(situation) if chosen.place == plan.LOCAL else up_docker(situation, chosen)


def no_arguments(argv: Sequence[str]) -> None:
    if argv:
        raise Problem(
            f"{argv[0]!r} is not understood: give variables, as in `make up MODE=cpu`", "make help lists them"
        )


# ---- local -------------------------------------------------------------------------------------------------------


def up_local(situation: Situation) -> int:
    paths, settings = situation.paths, situation.settings
    running = local.running(paths)
    if running is None:
        address = settings.get("BIND_ADDRESS", "127.0.0.1").strip("[]")
        ports.check("JUPYTER_PORT", address, int(settings.get("JUPYTER_PORT", "8888")))
        local.workspace(paths, settings)
    forced, index = settings.get("VARIANT"), settings.get("TORCH_INDEX")
    place, variant = venv.ensure(paths, forced=forced, index=index, host=situation.gpus)
    say("venv", f"{paths.short(place.path)}, PyTorch {variant.torch} {variant.name}")
    env = local.environment(paths, settings, place, os.environ)
    policy = settings.get("TORCHTAP_SELFTEST", "warn")
    report = None
    if policy != "off":
        paths.local.mkdir(mode=0o700, parents=True, exist_ok=True)
        report = local.selftest(paths, env, place)
        if policy == "strict" and (report is None or report["verdict"] not in {"pass", "warn"}):
            verdict.show(report, "All of it:  make selftest MODE=local")
            raise Problem(
                "the self-test did not pass, so nothing is started (TORCHTAP_SELFTEST=strict)", code=1
            )
    if running:
        say(
            "running",
            f"JupyterLab runs already (pid {running.pid}, port {running.port}); it is left as it is",
        )
    else:
        began = time.monotonic()
        running = local.start(paths, settings, place, env)
        say("ready", f"JupyterLab answers after {time.monotonic() - began:.1f} s; it goes on until make down")
    if policy != "off":
        verdict.show(report, "All of it:  make selftest MODE=local")
    say("jupyter", local.url(paths, running))
    return 0


# ---- Docker ------------------------------------------------------------------------------------------------------


def before(situation: Situation, chosen: plan.Plan) -> tuple[keys.Keys, Mapping[str, Any] | None]:
    """What must be right before anything is built: keys, files, ports. Returns the keys and what runs already."""
    wanted = ports_wanted(situation.settings)
    chosen_keys = keys.find(situation.settings, os.environ, Path.home())
    running = composable(situation, chosen, chosen_keys)
    for variable, port in wanted.items():
        check_port(situation, variable, port, running)
    return chosen_keys, running


def ports_wanted(settings: Settings) -> dict[str, int]:
    """Each variable of `PORTS` with its port. Raises `Problem` when two are the same."""
    wanted = {variable: int(settings.get(variable, default)) for variable, default, _ in PORTS}
    if len({*wanted.values()}) < len(wanted):
        port = next(iter(wanted.values()))
        raise Problem(f"{' and '.join(wanted)} are both {port}: give two different ports")
    return wanted


def composable(situation: Situation, chosen: plan.Plan, chosen_keys: keys.Keys) -> Mapping[str, Any] | None:
    """Whether workspace, certificates and Compose files can be used. Returns the container that runs already."""
    paths, settings = situation.paths, situation.settings
    local.workspace_path(paths, settings)
    bundle = settings.get("TORCHTAP_CA_BUNDLE")
    if bundle and not (paths.root / Path(bundle).expanduser()).is_file():
        raise Problem(f"TORCHTAP_CA_BUNDLE={bundle}: no such file")
    composed(situation, chosen, chosen_keys).check()
    same_project(paths, settings)
    container = project.plain(paths, settings, os.environ).container()
    return container if project.is_running(container) else None


def check_port(situation: Situation, variable: str, port: int, running: Mapping[str, Any] | None) -> None:
    """Raises `Problem` when another program listens there. Our own container, which is replaced, is none."""
    ours = {where[1] for each in PORTS if running and (where := project.published(running, each[2]))}
    if situation.engine.local and port not in ours:
        address = situation.settings.get("BIND_ADDRESS", "127.0.0.1").strip("[]")
        ports.check(variable, address, port)


def same_project(paths: Paths, settings: Settings) -> None:
    """Say that another project's name means another home. Raises `Problem` while the one before still runs."""
    before = project.renamed(paths, settings)
    if before is None:
        return
    now = settings.get("COMPOSE_PROJECT_NAME", project.DEFAULT_NAME)
    old = project.plain(paths, settings, {**os.environ, "COMPOSE_PROJECT_NAME": before})
    if project.is_running(old.container()):
        raise Problem(
            f"a container of project {before} runs here, and this call means project {now}, with another home",
            f"Go on with it:  make up COMPOSE_PROJECT_NAME={before}",
            f"Or stop it first:  COMPOSE_PROJECT_NAME={before} make down",
        )
    warn(f"project {now}, where the last make up was project {before}: home, token and keys are others")


def make_workspace(paths: Paths, settings: Settings) -> None:
    """Make the folder before Docker does, which would make it root's."""
    path = local.workspace_path(paths, settings)
    if path.exists():
        return
    local.workspace(paths, settings)
    if os.getuid() == 0:
        ids = project.owner(os.environ) or (1000, 1000)  # the image's own user
        os.chown(path, *ids)


def up_docker(situation: Situation, chosen: plan.Plan) -> int:
    paths, settings = situation.paths, situation.settings
    chosen_keys, runs = before(situation, chosen)
    say("ssh", chosen_keys.named)
    make_workspace(paths, settings)

    compose = built(situation, chosen, chosen_keys)
    chosen, way = settle_gpu(situation, chosen)
    variables = project.compose_variables(paths, settings, chosen, way, chosen_keys, os.environ)
    project.remember(paths, settings, variables, way)
    keys.remember(chosen_keys, paths.identity)
    compose = project.Compose(paths, project.environment(os.environ, variables))
    say("start", "the container" if runs is None else replacing(runs, paths, variables, settings, chosen))
    try:
        docker.start(compose)
        began = time.monotonic()
        container = docker.wait_healthy(compose, HEALTHY_PATIENCE_S)
        say("ready", f"healthy after {time.monotonic() - began:.1f} s")
    except BaseException:
        undo(compose, runs is not None)
        raise
    finish(situation, compose, container, chosen_keys)
    return 0


def replacing(
    runs: Mapping[str, Any], paths: Paths, variables: Mapping[str, str], settings: Settings, chosen: plan.Plan
) -> str:
    """In words, what happens to the container that runs: what differs, and how long its processes get to end."""
    different = project.differences(runs, paths, variables, chosen.mode, docker.image(settings, chosen))
    if settings.get("COMPOSE_FILE") or "compose.override" in variables["COMPOSE_FILE"]:
        different = []  # the user's own files may set all of it otherwise
    if not different:
        return "the container; the one that runs is replaced if it differs"
    grace = runs["Config"].get("StopTimeout") or settings.get("STOP_GRACE", "30")
    return (
        f"replaces the running container: {', '.join(different)}; what runs in it gets SIGTERM and {grace} s"
    )


def composed(situation: Situation, chosen: plan.Plan, chosen_keys: keys.Keys) -> project.Compose:
    """Compose with all that is decided before a container has told whether there is a GPU."""
    paths, settings = situation.paths, situation.settings
    variables = project.compose_variables(paths, settings, chosen, None, chosen_keys, os.environ)
    return project.Compose(paths, project.environment(os.environ, variables))


def built(
    situation: Situation, chosen: plan.Plan, chosen_keys: keys.Keys, *, pull: bool = False
) -> project.Compose:
    """The image, built anew where something changed; with BUILD=no the one that is there."""
    settings = situation.settings
    compose = composed(situation, chosen, chosen_keys)
    if settings.get("BUILD") == "no":
        if not docker.has_image(docker.image(settings, chosen)):
            raise Problem(
                f"BUILD=no, but there is no image {docker.image(settings, chosen)}", "Leave BUILD=no out"
            )
    else:
        docker.build(compose, situation.engine, docker.image(settings, chosen), pull=pull)
    return compose


def settle_gpu(situation: Situation, chosen: plan.Plan) -> tuple[plan.Plan, handout.Way | None]:
    """The last word on gpu or cpu: a container that asks for the GPU. Raises `Problem` when there must be one."""
    if not chosen.prove:
        return chosen, None
    wish = situation.settings.get("GPUS")
    proof = handout.prove(docker.image(situation.settings, chosen), wish)
    if proof.way:
        say("gpu", f"Docker hands it out ({proof.way.name}): {proof.words}")
        return chosen, proof.way
    if chosen.must:
        raise Problem(
            f"Docker cannot hand out the GPU: {proof.words}",
            *handout.remedies(proof.words, wish),
            "Without a GPU:  make up MODE=cpu",
            code=1,
        )
    say("mode", f"cpu after all; Docker hands out no GPU: {proof.words}")
    if situation.gpus.present:  # then it is worth mending
        for line in handout.remedies(proof.words, wish):
            say("", line)
    return chosen.on_cpu(proof.words), None


def undo(compose: project.Compose, ran_before: bool) -> None:
    """After a failed start: take away what this run started. Volumes stay; so does what ran before."""
    if ran_before:
        warn("a container ran before; it, or the one that took its place, is left as it is: make status")
        return
    done = compose.ask("down", "--timeout", "10", timeout_s=90)
    say(
        "undo",
        "what was started is removed; volumes stay"
        if done.ok
        else f"NOT removed: {done.said}. Try make down",
    )


def finish(situation: Situation, compose: project.Compose, container: Any, chosen_keys: keys.Keys) -> None:
    """Verdict, URL, ssh command."""
    if situation.settings.get("TORCHTAP_SELFTEST") != "off":
        verdict.show(docker.report(compose, container, docker.REPORT_PATIENCE_S), "All of it:  make selftest")
    say("jupyter", access.url(compose, container))
    if situation.settings.get("SSH_KEY") == "none":
        say("ssh", "off, as SSH_KEY=none asks")
        return
    if not chosen_keys.lines:
        say("ssh", "off, without a key. Make a pair (ssh-keygen -t ed25519), then make up")
        return
    command = access.ssh_command(container, chosen_keys.identity)
    if command:
        say("ssh", shlex.join(command))


# ---- build -------------------------------------------------------------------------------------------------------


def build(argv: Sequence[str]) -> int:
    """`make build`: the image, and nothing started."""
    no_arguments(argv)
    situation = look(Paths())
    engine.demand(situation.engine)
    chosen = plan.decide(situation.settings, situation.engine, situation.gpus)
    say("variant", f"{chosen.variant.name}, PyTorch {chosen.variant.torch}: {chosen.variant_why}")
    built(situation, chosen, keys.Keys((), ""))
    return 0
