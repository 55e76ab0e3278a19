"""`make selftest`: preflight, then the self-test in the image or in `.venv`, and its reports in ./selftest-report."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torchtap
from host import docker, handout, keys, local, places, plan, proc, reports, up, venv
from host.paths import Paths
from host.preflight import checks, facts, page
from host.project import SERVICE, Compose, failed
from host.settings import Settings
from host.show import Problem, say

Run = Callable[[], int]  # the self-test, ready to be run
INSIDE = "/tmp/selftest-report"  # of the container, which is its own and goes with it
EXPECTED = ("GPUS", "NAME", "DRIVER_MIN")
CODES = frozenset(
    {0, 1, 2, 3, 129, 130, 143}
)  # of torchtap selftest; 3: --nagios, the last three: interrupted
ALONE = frozenset({"--json", "--one-line", "--nagios", "-"})  # words with which stdout is for a program
COULD_NOT_RUN = 2
DOCKER_FAILED = 125


def selftest(argv: Sequence[str]) -> int:
    """Run it where `make up` would start, and pass its exit code on: 0, 1, or 2 for "could not run"."""
    paths = Paths()
    words = [*options_of(places.settings(paths)), *argv]
    # stdout is the report's alone where a program reads it
    aside = sys.stderr if ALONE & {*argv} else sys.stdout
    with reports.draft(paths) as draft:
        with contextlib.redirect_stdout(aside):
            situation, chosen = look_first(paths, draft)
            up.tell(situation, chosen)
            if chosen.place == plan.LOCAL:
                run = locally(situation, words, draft)
            else:
                run = in_docker(situation, chosen, words, draft)
        rc = run()
        if rc == COULD_NOT_RUN and not draft.has("report.json"):  # a wrong option: the last reports stay
            return rc
        names = draft.publish()
    with contextlib.redirect_stdout(aside):
        say("reports", f"{reports.FOLDER}/: {', '.join(names)}")
    return rc


def look_first(paths: Paths, draft: reports.Draft) -> tuple[up.Situation, plan.Plan]:
    """Preflight: tell what is not well, and go on unless it makes the self-test impossible (`Problem`)."""
    situation, found = facts.gather(paths, for_start=False)
    results = checks.judge_all(found, for_start=False)
    document = page.document(found, results, torchtap.__version__)
    draft.write("preflight.json", json.dumps(document, indent=2) + "\n")
    page.draw(results, all_of_them=False)
    say("preflight", f"{page.verdict(results).value}: {page.counts(results)}")
    try:
        return situation, plan.decide(situation.settings, situation.engine, situation.gpus)
    except Problem as problem:
        draft.publish()
        raise Problem(f"cannot run: {problem.what}") from None  # what to do is told above


def options_of(settings: Settings) -> list[str]:
    """LEVEL and MINUTES as the self-test's own options. Raises `Problem` where they contradict each other."""
    level, minutes = settings.get("LEVEL"), settings.get("MINUTES")
    if minutes and level != "burn":
        raise Problem(
            f"MINUTES={minutes} is for LEVEL=burn; the level is {level or 'quick'}",
            f"make selftest LEVEL=burn MINUTES={minutes}",
        )
    return [*(["--level", level] if level else []), *(["--minutes", minutes] if minutes else [])]


def expectations(environ: Mapping[str, str]) -> dict[str, str]:
    """What this host is expected to have: TORCHTAP_EXPECT_*, also without the prefix for the known ones.

    >>> expectations({"EXPECT_GPUS": "8", "TORCHTAP_EXPECT_NAME": "H200", "EXPECT_ME": "no"})
    {'TORCHTAP_EXPECT_GPUS': '8', 'TORCHTAP_EXPECT_NAME': 'H200'}
    """
    short = {f"TORCHTAP_EXPECT_{name}": environ.get(f"EXPECT_{name}", "") for name in EXPECTED}
    long = {name: value for name, value in environ.items() if name.startswith("TORCHTAP_EXPECT_")}
    return {name: value for name, value in {**short, **long}.items() if value}


def code_of(rc: int, program: str) -> int:
    """The exit code to end with. Raises `Problem` for one that the self-test itself does not have."""
    if rc in CODES:
        return rc
    if rc == proc.NOT_FOUND:
        raise Problem(f"{program} cannot be run")
    memlock = handout.remedies("rlimit type 8")[0].replace("make up", "make selftest")
    raise Problem(
        f"the self-test did not come to its end: {program} ended with exit code {rc} (its own words are above)",
        *([f"rlimit type 8?  {memlock}"] if rc == DOCKER_FAILED else []),
    )


# ---- without Docker ------------------------------------------------------------------------------------------------


def locally(situation: up.Situation, words: Sequence[str], draft: reports.Draft) -> Run:
    """In `.venv`, made or mended first."""
    paths, settings = situation.paths, situation.settings
    forced, index = settings.get("VARIANT"), settings.get("TORCH_INDEX")
    place, _ = venv.ensure(paths, forced=forced, index=index, host=situation.gpus)
    command: list[str | Path] = [place.bin / "torchtap", "selftest", "--report", draft.folder, *words]
    env = local.environment(paths, settings, place, os.environ) | expectations(os.environ)
    return lambda: code_of(proc.foreground(command, env=env), ".venv/bin/torchtap")


# ---- with Docker ---------------------------------------------------------------------------------------------------


def in_docker(situation: up.Situation, chosen: plan.Plan, words: Sequence[str], draft: reports.Draft) -> Run:
    """In a container of its own, which is removed afterwards.

    Its reports are copied out of it rather than written into a mount: so they are the caller's also with a rootless
    engine, with SELinux, and with an engine on another machine.
    """
    settings, name = situation.settings, docker.image(situation.settings, chosen)
    if not docker.has_image(name):
        say("image", f"{name} is not built yet. That takes some minutes and downloads about 3 GB.")
        there = (situation.paths.venv / venv.STAMP).exists()
        say(
            "",
            f"Without it:  make selftest MODE=local     ({'.venv is here' if there else 'fills .venv instead'})",
        )
        up.built(situation, chosen, keys.Keys((), ""))
    limits = limits_of(up.composed(situation, chosen, keys.Keys((), "")))
    device: list[str] = ["--env", "TORCHTAP_DEVICE=cpu"]
    if chosen.mode == "gpu":
        proof = handout.prove(name, settings.get("GPUS"))
        # Refused: look for the GPU all the same. A host that should have one must not pass as "no GPU, by design".
        device = [*proof.way.run] if proof.way else ["--env", "TORCHTAP_DEVICE=gpu"]
        if not proof.way:
            print(f"Docker hands out no GPU: {proof.words}", file=sys.stderr)
    # Both or none: with --tty alone it depends on the client's version whether Ctrl-C reaches the container. (Not
    # sys.stdout, which is stderr for --json.)
    terminal = ["--interactive", "--tty"] if os.isatty(0) and os.isatty(1) else []
    # The container's own name is its id, which says nothing about the host.
    host = os.environ.get("TORCHTAP_HOST") or situation.engine.info.get("Name") or socket.gethostname()
    variables = {"TORCHTAP_HOST": str(host), **expectations(os.environ)}
    given = [word for each in variables.items() for word in ("--env", "=".join(each))]
    container = f"torchtap-selftest-{os.getpid()}"
    command = ["docker", "run", "--name", container, *terminal, *limits, *given, *device, name]
    command += ["selftest", "--report", INSIDE, *words]

    def run() -> int:
        try:
            rc = proc.foreground(command, env=os.environ)
            # Fails where it came to no report; its exit code says so too.
            proc.ask(["docker", "cp", f"{container}:{INSIDE}/.", draft.folder])
        finally:
            proc.ask(["docker", "rm", "--force", "--volumes", container])
        if rc == COULD_NOT_RUN:
            say("note", f"if {name} is older than this checkout:  make build")
        return code_of(rc, "docker run")

    return run


def limits_of(compose: Compose) -> list[str]:
    """Shared memory and limits as compose.yaml gives them to the service: host.shm and host.limits judge those.

    Raises `Problem` when Compose cannot read its files.
    """
    done = compose.ask("config", "--format", "json")
    try:
        service = json.loads(done.out)["services"][SERVICE]
    except (ValueError, KeyError, TypeError):
        raise failed("Compose cannot read its configuration", done) from None
    return options_for(service)


def options_for(service: Mapping[str, object]) -> list[str]:
    """The options of docker run for what Compose says of the service.

    >>> options_for({"shm_size": "8589934592", "ulimits": {"memlock": -1, "nofile": {"soft": 1024, "hard": 4096}}})
    ['--shm-size=8589934592', '--ulimit=memlock=-1', '--ulimit=nofile=1024:4096']
    """
    options = [f"--shm-size={service['shm_size']}"] if service.get("shm_size") else []
    ulimits = service.get("ulimits")
    for name, limit in (ulimits if isinstance(ulimits, Mapping) else {}).items():
        value = f"{limit['soft']}:{limit['hard']}" if isinstance(limit, Mapping) else limit
        options.append(f"--ulimit={name}={value}")
    return options
