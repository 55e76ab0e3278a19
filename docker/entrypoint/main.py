"""`start`: what tini runs. Ends by becoming s6-svscan or the user's command."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from entrypoint import apply, hostkey, log, overlay, paths, verdict
from entrypoint.account import acting_as
from entrypoint.gather import gather
from entrypoint.plan import Plan, PlanError, make_plan
from entrypoint.roles import MEANT, ROLES, Choice, choose, nearest
from entrypoint.settings import Settings, SettingsError

# Exit codes: those of `docker run` for commands (126, 127), and of the self-test (1), else 2 for a usage error.
CANNOT_RUN, NOT_FOUND, USAGE, SELFTEST_FAILED = 126, 127, 2, 1


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the role or command named by `words`. Returns only when that is impossible."""
    try:
        settings = Settings.read(environment)
        choice = choose(words)
        if choice.command and (code := _unusable(choice, environment)):
            return code
        return _carry_out(make_plan(settings, choice, gather(environment, settings)))
    except SettingsError as error:
        log.error("start", str(error))
        return USAGE
    except PlanError as error:
        log.error("start", str(error), *error.remedy)
        return USAGE
    except OSError as error:
        return _refused(error)


def _carry_out(plan: Plan) -> int:
    apply.apply(plan)
    if plan.command:
        return _become_command(plan)
    if plan.selftest == "strict" and not _passes_selftest(plan):
        return SELFTEST_FAILED
    _announce(plan)
    apply.supervise(plan)
    return CANNOT_RUN


def _refused(error: OSError) -> int:
    """The system said no: a full disk, a folder that even root may not change. One line, no traceback."""
    what = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    remedy = "The container cannot start without this. Look at its volumes and options "
    remedy += "(--read-only, --cap-drop, --user)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "The disk on which Docker keeps its containers is full. On the host: docker system df"
    log.error("start", f"{what}{error.strerror or error}", remedy)
    return CANNOT_RUN


def _unusable(choice: Choice, environment: Mapping[str, str]) -> int:
    """The exit code for a command that does not exist; 0 when it does."""
    name = choice.command[0]
    if choice.command == (name,) and name in MEANT:
        log.error("start", f"{name!r} alone is not a role; the role is called {MEANT[name]}")
        return NOT_FOUND
    path = environment.get("PATH", os.defpath)
    if "/" in name or shutil.which(name, path=path) or overlay.may_hold(name):
        return 0  # a path may lead into a volume that only the user can read: execvp will tell
    if name in ROLES:  # more words than the role, and no program has this name
        log.error("start", f"role {name} takes no words; a command of more words must be a program")
        return NOT_FOUND
    near = nearest(name, _commands(path))
    hint = (
        f"did you mean {near}?" if near else "roles: dev, jupyter, ssh, selftest; anything else is a command"
    )
    log.error("start", f"{name!r} is neither a role nor a command in this image", hint)
    return NOT_FOUND


def _commands(path: str) -> list[str]:
    folders = (folder for folder in path.split(os.pathsep) if os.path.isdir(folder))
    return sorted({name for folder in folders for name in os.listdir(folder)})


def _become_command(plan: Plan) -> int:
    try:
        apply.become(plan, plan.command)
    except FileNotFoundError:
        if shutil.which(plan.command[0], path=plan.environment.get("PATH")):
            why = "cannot be run: the interpreter in its first line is not in this image"
        else:
            why = "no such file"
        log.error("start", f"{plan.command[0]}: {why}")
        return NOT_FOUND
    except OSError as error:
        log.error("start", f"{plan.command[0]} cannot be run: {error.strerror}")
    return CANNOT_RUN


def _passes_selftest(plan: Plan) -> bool:
    with acting_as(plan.account.uid, plan.account.gid):
        verdict.make_room(plan.report)
    code = apply.run_as_user(
        plan, (str(paths.VENV / "bin" / "torchtap"), "selftest", "--output", str(plan.report))
    )
    if code:
        why = "failed" if code == 1 else f"could not run (exit code {code})"
        log.error(
            "selftest",
            f"{why}, so the services are not started (TORCHTAP_SELFTEST=strict)",
            "Mend what the report above names, or start with -e TORCHTAP_SELFTEST=warn to look around",
        )
    return code == 0


def _announce(plan: Plan) -> None:
    names = [service.name for service in plan.services]
    if "jupyter" in names:
        log.info(
            "jupyter",
            f"JupyterLab on port {plan.jupyter_port}. "
            "The link with its token: make url, or docker exec CONTAINER torchtap-url",
        )
    if "sshd" in names:
        count = len(plan.authorized_keys)
        log.info(
            "ssh", f"sshd on port {plan.ssh_port}, user dev, {count} public key{'s' if count > 1 else ''}"
        )
        log.info("ssh", f"host key {hostkey.fingerprint(hostkey.public_of(plan.run))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
