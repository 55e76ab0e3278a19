"""What s6 keeps running: the services and their `run` and `finish` files."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoint import paths
from entrypoint.backoff import BEGAN, WAIT
from entrypoint.stop import STOPPING

if TYPE_CHECKING:
    from entrypoint.plan import Plan

HOST_KEY = "ssh_host_ed25519_key"  # in the state volume; sshd finds it by a link of the run directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that s6 keeps. `once`: it runs to its end and is not started again."""

    name: str
    argv: tuple[str, ...]
    as_root: bool = False
    once: bool = False


def run_script(service: Service, plan: Plan) -> str:
    """The `run` file of a service for s6-supervise.

    >>> from types import SimpleNamespace as Some
    >>> from entrypoint.account import Account
    >>> some = Some(is_root=True, account=Account(7, 8, (44,), "/h"), working_directory=Path("/workspace"))
    >>> print(run_script(Service(name="x", argv=("prog", "a b")), some), end="")
    #!/bin/sh
    [ ! -s wait ] || sleep "$(cat wait)"
    : >began
    cd /workspace && unset OLDPWD && exec setpriv --reuid 7 --regid 8 --groups 8,44 -- prog 'a b'
    """
    drop: tuple[str, ...] = ()
    if plan.is_root and not service.as_root:
        groups = ",".join(map(str, (plan.account.gid, *plan.account.groups)))
        drop = (
            "setpriv",
            "--reuid",
            str(plan.account.uid),
            "--regid",
            str(plan.account.gid),
            "--groups",
            groups,
            "--",
        )
    folder = shlex.quote(str(plan.working_directory))
    start = f"cd {folder} && unset OLDPWD && exec {shlex.join((*drop, *service.argv))}"
    # The wait is here and not in `finish`: s6 can end it at once when the container stops.
    return f'#!/bin/sh\n[ ! -s {WAIT} ] || sleep "$(cat {WAIT})"\n: >{BEGAN}\n{start}\n'


def finish_script(service: Service, plan: Plan) -> str:
    """The `finish` file of a service: what s6-supervise runs when it has ended.

    >>> from types import SimpleNamespace as Some
    >>> print(finish_script(Service(name="x", argv=("prog",)), Some(run=Path("/run/x"))), end="")
    #!/bin/sh
    [ -e /run/x/stopping ] || exec /opt/torchtap/bin/ended x "$1" "$2"
    """
    if service.once:
        return "#!/bin/sh\nexit 125\n"  # 125: do not start it again
    note = shlex.quote(str(plan.run / STOPPING))
    return f'#!/bin/sh\n[ -e {note} ] || exec {paths.BIN / "ended"} {service.name} "$1" "$2"\n'


def _sshd(run: Path, port: int) -> Service:
    # The keys are in the run directory, which start has just made root's or its own. What is above it may be open to
    # all, a tmpfs on /run with mode 1777 say, and sshd would then refuse every login without a word in the log.
    options = [f"AuthorizedKeysFile={run}/authorized_keys", "StrictModes=no"]
    key = run / HOST_KEY
    argv = ("/usr/sbin/sshd", "-D", "-e", "-f", str(paths.SSHD_CONFIG), "-p", str(port), "-h", str(key))
    return Service(name="sshd", argv=(*argv, *(f"-o{option}" for option in options)), as_root=True)


def _jupyter(run: Path, port: int) -> Service:  # noqa: ARG001 - one signature for the table below
    return Service(name="jupyter", argv=(str(paths.BIN / "jupyter-service"),))


SERVICES = {"sshd": _sshd, "jupyter": _jupyter}
