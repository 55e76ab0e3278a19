"""From facts to what start will do. Pure: no file is touched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint import lastimage, paths
from entrypoint.account import IMAGE_ID, Account
from entrypoint.certificates import Trust
from entrypoint.environment import variables
from entrypoint.gather import Facts
from entrypoint.keys import collect
from entrypoint.lastimage import Image
from entrypoint.notices import (
    NO_TERMINAL,
    SSH_HINT,
    Notice,
    about_certificates,
    about_jupyter,
    about_limits,
    about_volumes,
    about_workspace,
    instead_of,
    no_key,
    no_sshd,
)
from entrypoint.roles import Choice
from entrypoint.services import SERVICES, Service
from entrypoint.settings import Settings

FALLBACK_SSH_PORT = 2222


class PlanError(RuntimeError):
    """The container cannot start like this; the message is one line, `remedy` are the lines that say what to do."""

    def __init__(self, message: str, *remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that `apply` does, in the order in which it does it."""

    role: str
    run: Path
    account: Account
    is_root: bool
    home: Path
    home_to_own: bool  # give the home, with what is in it, to the user
    home_of: tuple[int, ...]  # whose files those are
    state: Path
    state_to_take: bool  # make the folder root's; one of the host stays its owner's
    report: Path  # of the self-test
    workspace_to_own: bool
    folders_to_own: tuple[Path, ...]
    image: Image | None  # what the home and the state remember of this start; None: nothing
    examples_to_copy: bool  # the notebooks, into a workspace that holds nothing yet
    working_directory: Path
    environment: Mapping[str, str]
    authorized_keys: tuple[str, ...]
    ssh_port: int
    jupyter_token: str  # empty: the kept one, or a new one
    jupyter_port: int
    device: str  # auto, gpu or cpu: what health may miss
    services: tuple[Service, ...]
    command: tuple[str, ...]
    selftest: str  # warn, strict or off; off where nothing is served
    stop_grace_s: float
    notices: tuple[Notice, ...]
    trust: Trust = field(default_factory=Trust)
    home_is_the_users: bool = False  # brought along from the host: nothing is put into it
    safe: bool = False  # without the overlay


def make_plan(settings: Settings, choice: Choice, facts: Facts) -> Plan:
    """Decide everything.

    Raises `PlanError` when there is nowhere to write run-time files, or nothing to run.
    """
    if not facts.can_be_user:
        raise PlanError(
            f"root may not become user {facts.uid}:{facts.gid} here: CAP_SETUID or CAP_SETGID is missing",
            f"Add: --user {facts.uid}:{facts.gid}, or leave out --cap-drop",
        )
    if facts.run is None:
        raise PlanError(
            "no place to write: /run and /tmp are read-only for this user",
            "With --read-only add: --tmpfs /run --tmpfs /tmp",
        )
    notices: list[Notice] = []
    home, home_to_own = _home(facts, notices)
    state = _state(facts, notices)
    notices += about_volumes(facts, home, state, _previous(facts), serves=bool(choice.services))
    state_is_closed = not facts.state.writable and facts.state.is_hosts and facts.state.uid != 0
    report_is_kept = state != facts.state.path or not (facts.state.full or state_is_closed)
    account = Account(facts.uid, facts.gid, facts.groups, str(home))
    usable = [folder.path for folder in (facts.current, facts.workspace) if folder.readable]
    working_directory = usable[0] if usable else home
    notices += about_workspace(settings, facts, working_directory)

    wanted = set(choice.services)
    keys = collect(facts.key_sources)
    port = settings.ssh_port
    cannot = no_sshd(facts)
    if "sshd" in wanted and cannot:
        wanted.discard("sshd")
        notices.append(cannot)
    if "sshd" in wanted:
        notices += [Notice("error", "ssh", problem) for problem in keys.problems]
        if not keys.lines:
            wanted.discard("sshd")
            notices.append(no_key(facts, jupyter="jupyter" in wanted))
        elif not facts.can_audit:
            notices.append(NO_TERMINAL)
        if "sshd" in wanted and not facts.ssh_port_free:
            port = FALLBACK_SSH_PORT
            notices.append(
                Notice(
                    "warning", "ssh", f"port {settings.ssh_port} cannot be used here; sshd listens on {port}"
                )
            )
    if choice.services and not wanted:
        if cannot:
            raise PlanError(f"role ssh has nothing to run: sshd is {cannot.text}", *cannot.more)
        raise PlanError(
            "role ssh has nothing to run: sshd needs a public key", *keys.problems, f"Add: {SSH_HINT}"
        )

    if "jupyter" in wanted:
        notices += about_jupyter(settings, facts)
    notices += about_certificates(facts.trust)
    if choice.services:
        notices += about_limits(facts)
    environment = variables(settings, facts, account, facts.run, state)
    services = [SERVICES[name](facts.run, port) for name in choice.services if name in wanted]
    if services and settings.selftest == "warn":
        services.append(Service(name="selftest", argv=(str(paths.BIN / "after-ready"),), once=True))
    return Plan(
        role=choice.role,
        run=facts.run,
        account=account,
        is_root=facts.is_root,
        home=home,
        home_to_own=home_to_own,
        home_of=_previous(facts),
        state=state,
        state_to_take=facts.is_root
        and (state != facts.state.path or not facts.state.is_hosts or facts.state.uid == 0),
        report=state / paths.REPORT if report_is_kept else Path(f"/tmp/torchtap-{facts.uid}-{paths.REPORT}"),
        workspace_to_own=facts.workspace_is_new,
        folders_to_own=(*facts.made_for_mounts, *facts.new_volumes),
        image=facts.image,
        examples_to_copy="jupyter" in wanted
        and facts.workspace_is_empty
        and not facts.workspace.full
        and not facts.examples_given
        and (facts.workspace.writable or facts.workspace_is_new),
        working_directory=working_directory,
        environment=environment,
        authorized_keys=keys.lines if "sshd" in wanted else (),
        ssh_port=port,
        jupyter_token=settings.jupyter_token,
        jupyter_port=settings.jupyter_port,
        device=settings.device,
        services=tuple(services),
        command=choice.command,
        selftest=settings.selftest if services else "off",
        stop_grace_s=settings.stop_grace_s,
        notices=tuple(notices),
        trust=facts.trust,
        home_is_the_users=home == facts.home.path != paths.HOME,
        safe=settings.safe,
    )


def _previous(facts: Facts) -> tuple[int, ...]:
    """Whose files in a home volume are the user's to have: root's, the image's, and those of dev's earlier id.

    The note of that id lies in the home, where the user can write it. So it counts only for a home that belongs to it.
    """
    before = facts.home_image
    known = before is not None and before.uid == facts.home.uid and not lastimage.is_newer(before)
    return (0, IMAGE_ID, facts.home.uid) if known else (0, IMAGE_ID)


def _home(facts: Facts, notices: list[Notice]) -> tuple[Path, bool]:
    """Where the home is, and whether it has to be given to the user first."""
    home = facts.home
    # Root's (a volume that another image made) or the image's. A folder of the host stays its owner's.
    ours = facts.is_root and home.changeable and home.uid in _previous(facts) and not home.is_hosts
    if ours and home.uid != facts.uid and not (facts.home_in_use and home.uid != 0):
        return home.path, True
    if home.writable:
        return home.path, False
    return instead_of(facts, home, "home", "settings and caches", notices), False


def _state(facts: Facts, notices: list[Notice]) -> Path:
    state, kept = facts.state, "Jupyter's token and the SSH host keys"
    if state.full and not facts.token_is_kept:
        instead = Path(f"/tmp/torchtap-state-{facts.uid}")
        text = f"{state.path} is full: {state.full.said}, and it holds no token yet"
        remedy = f"Using {instead}: {kept} are gone when the container is. Make room there, then restart"
        notices.append(Notice("warning", "state", text, (remedy,)))
        return instead
    may = state.changeable if facts.is_root else state.writable
    if may and not facts.state_of_others:
        return state.path
    return instead_of(facts, state, "state", kept, notices)
