"""From facts to what start will do. Pure: no file is touched here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint import caches, certificates, lastimage, overlay, paths, proxies, threads
from entrypoint.account import IMAGE_ID, LOWEST_EXTRA_ID, NAME, Account
from entrypoint.backoff import BEGAN, WAIT
from entrypoint.certificates import Trust
from entrypoint.gather import Facts, Folder
from entrypoint.keys import collect
from entrypoint.lastimage import Image
from entrypoint.roles import Choice
from entrypoint.settings import SECRETS, Settings
from entrypoint.stop import STOPPING

SSH_HINT = '-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"'
FALLBACK_SSH_PORT = 2222
ENOUGH_SHARED_MEMORY = 1 << 30  # Docker's default is 64 MB
HOST_KEY = "ssh_host_ed25519_key"  # in the state volume; sshd finds it by a link of the run directory
# Of the shell that started the container, not of the container.
NOT_PASSED_ON = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


class PlanError(RuntimeError):
    """The container cannot start like this; the message is one line, `remedy` are the lines that say what to do."""

    def __init__(self, message: str, *remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Notice:
    """A line of the log: level is info, warning or error; `more` are the lines below it."""

    level: str
    subject: str
    text: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that s6 keeps. `once`: it runs to its end and is not started again."""

    name: str
    argv: tuple[str, ...]
    as_root: bool = False
    once: bool = False


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
    selftest_first: bool
    stop_grace_s: float
    notices: tuple[Notice, ...]
    trust: Trust = field(default_factory=Trust)
    home_is_the_users: bool = False  # brought along from the host: nothing is put into it
    safe: bool = False  # without the overlay


_NO_TERMINAL = Notice(
    "error",
    "ssh",
    "CAP_AUDIT_WRITE is missing, so sshd will end every login with a terminal; commands, scp and editors work",
    ("Add: --cap-add AUDIT_WRITE",),
)


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
    notices += _about_volumes(facts, home, state, serves=bool(choice.services))
    state_is_closed = not facts.state.writable and facts.state.is_hosts and facts.state.uid != 0
    report_is_kept = state != facts.state.path or not (facts.state.full or state_is_closed)
    account = Account(facts.uid, facts.gid, facts.groups, str(home))
    usable = [folder.path for folder in (facts.current, facts.workspace) if folder.readable]
    working_directory = usable[0] if usable else home
    notices += _about_workspace(settings, facts, working_directory)

    wanted = set(choice.services)
    keys = collect(facts.key_sources)
    port = settings.ssh_port
    cannot = _no_sshd(facts)
    if "sshd" in wanted and cannot:
        wanted.discard("sshd")
        notices.append(cannot)
    if "sshd" in wanted:
        notices += [Notice("error", "ssh", problem) for problem in keys.problems]
        if not keys.lines:
            wanted.discard("sshd")
            notices.append(_no_key(facts, jupyter="jupyter" in wanted))
        elif not facts.can_audit:
            notices.append(_NO_TERMINAL)
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
        notices += _about_jupyter(settings, facts)
    notices += _about_certificates(facts.trust)
    if choice.services:
        notices += _about_limits(facts)
    environment = _environment(settings, facts, account, facts.run, state)
    services = [_SERVICES[name](facts, facts.run, port) for name in choice.services if name in wanted]
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
        selftest_first=bool(services) and settings.selftest == "strict",
        stop_grace_s=settings.stop_grace_s,
        notices=tuple(notices),
        trust=facts.trust,
        home_is_the_users=home == facts.home.path != paths.HOME,
        safe=settings.safe,
    )


def run_script(service: Service, plan: Plan) -> str:
    """The `run` file of a service for s6-supervise.

    >>> from types import SimpleNamespace as Some
    >>> some = Some(is_root=True, account=Account(7, 8, (44,), "/h"), working_directory=Path("/workspace"))
    >>> print(run_script(Service(name="x", argv=("prog", "a b")), some), end="")
    #!/bin/sh
    [ ! -s wait ] || sleep "$(cat wait)"
    : >began
    cd /workspace && exec setpriv --reuid 7 --regid 8 --groups 8,44 -- prog 'a b'
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
    start = f"cd {shlex.quote(str(plan.working_directory))} && exec {shlex.join((*drop, *service.argv))}"
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


def _sshd(facts: Facts, run: Path, port: int) -> Service:  # noqa: ARG001 - one signature for the table below
    # The keys are in the run directory, which start has just made root's or its own. What is above it may be open to
    # all, a tmpfs on /run with mode 1777 say, and sshd would then refuse every login without a word in the log.
    options = [f"AuthorizedKeysFile={run}/authorized_keys", "StrictModes=no"]
    key = run / HOST_KEY
    argv = ("/usr/sbin/sshd", "-D", "-e", "-f", str(paths.SSHD_CONFIG), "-p", str(port), "-h", str(key))
    return Service(name="sshd", argv=(*argv, *(f"-o{option}" for option in options)), as_root=True)


def _jupyter(facts: Facts, run: Path, port: int) -> Service:  # noqa: ARG001 - one signature for the table below
    return Service(name="jupyter", argv=(str(paths.BIN / "jupyter-service"),))


_SERVICES = {"sshd": _sshd, "jupyter": _jupyter}


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
    return _instead(facts, home, "home", "settings and caches", notices), False


def _state(facts: Facts, notices: list[Notice]) -> Path:
    state, kept = facts.state, "Jupyter's token and the SSH host keys"
    if state.full and not facts.token_is_kept:
        instead = Path(f"/tmp/torchtap-state-{facts.uid}")
        text = f"{state.path} is full: {state.full.said}, and it holds no token yet"
        remedy = f"Using {instead}: {kept} are gone when the container is. Make room there, then restart"
        notices.append(Notice("warning", "state", text, (remedy,)))
        return instead
    if state.changeable if facts.is_root else state.writable and not facts.state_of_others:
        return state.path
    return _instead(facts, state, "state", kept, notices)


def _instead(facts: Facts, folder: Folder, what: str, kept: str, notices: list[Notice]) -> Path:
    """A folder that is gone with the container, and the warning that says so."""
    instead = Path(f"/tmp/torchtap-{what}-{facts.uid}")
    who = f"uid {facts.uid}, gid {facts.gid}"
    text = f"{folder.path} cannot be written by {who}: it {folder.described}"
    if folder.writable and what == "state":
        text = (
            f"{folder.path} holds what another user made ({', '.join(facts.state_of_others)}); this is {who}"
        )
    if facts.is_root and what == "home" and facts.home_in_use:
        text += ", and another running container uses it"
    remedy = f"Using {instead}: {kept} are gone when the container is"
    notices.append(Notice("warning", what, text, (remedy, _mount_for(facts, folder))))
    return instead


def _mount_for(facts: Facts, folder: Folder) -> str:
    """What to add, so that this folder is kept."""
    if not facts.is_root:
        return f"Add: -v FOLDER:{folder.path}, with a folder that belongs to {facts.uid}:{facts.gid}"
    mount = f"Add: -v VOLUME:{folder.path}, with another volume"
    if folder.exists and folder.is_directory and not folder.read_only and folder.uid != 0:
        mount += f"; or -e HOST_UID={folder.uid}, whose it is"
    return mount


def _about_volumes(facts: Facts, home: Path, state: Path, *, serves: bool) -> list[Notice]:
    """What was found in them: no room, another image's or another user's things, another container."""
    notices = _about_room(facts)
    if home == facts.home.path:
        if lastimage.is_newer(facts.home_image):
            notices.append(_newer("home", home))
        elif said := lastimage.changes(facts.home_image, facts.image):
            notices.append(Notice("info", "home", *said))
        if facts.home.uid in _previous(facts)[2:] and facts.home.uid != facts.uid and facts.is_root:
            text = f"{home} was {facts.home.uid}'s, as dev was before. It is given to {facts.uid}:{facts.gid}"
            notices.append(Notice("info", "home", text))
    if state == facts.state.path and lastimage.is_newer(facts.state_image):
        notices.append(_newer("state", state))
    if facts.new_volumes:
        given = ", ".join(map(str, facts.new_volumes))
        text = f"{given}: root's and empty, as the engine makes them. Given to {facts.uid}:{facts.gid}"
        notices.append(Notice("info", "volumes", text))
    if serves and facts.state_in_use and state == facts.state.path:
        text = f"another running container uses {state} too: token and host key are the same in both"
        notices.append(Notice("info", "state", text))
    return notices


def _newer(subject: str, folder: Path) -> Notice:
    text = f"a newer Torchtap has used {folder}: what it noted there is left as it is"
    return Notice("warning", subject, text, ("Use that image again, or another volume",))


def _about_room(facts: Facts) -> list[Notice]:
    """One line for each file system that is full, however many of the folders lie on it."""
    full: dict[int, list[Folder]] = {}
    for folder in (facts.home, facts.workspace, facts.state):
        if folder.full:
            full.setdefault(folder.full.device, []).append(folder)
    notices = []
    for folders in full.values():
        where = " and ".join(str(folder.path) for folder in folders)
        text = f"{where}: no room: {folders[0].full.said if folders[0].full else ''}"
        look = f"docker exec CONTAINER du -xah {folders[0].path} | sort -h | tail"
        remedy = "Services start all the same, but nothing new can be kept there. What is large:"
        notices.append(Notice("warning", "disk", text, (remedy, look)))
    return notices


def _no_sshd(facts: Facts) -> Notice | None:
    """Why nobody could log in, whatever key there is; None where somebody can."""
    if facts.uid == 0:
        why, remedy = (
            "dev is root here (HOST_UID=0), and root may not log in",
            "Give HOST_UID the id of a user",
        )
    elif not facts.is_root and facts.uid < LOWEST_EXTRA_ID:
        why = f"user id {facts.uid} (from --user) has no name here"
        remedy = f"Give --user an id of {LOWEST_EXTRA_ID} or more, or HOST_UID={facts.uid} in place of --user"
    elif facts.run != paths.RUN_CANDIDATES[0]:
        why = f"{paths.RUN_CANDIDATES[0]} cannot be written"
        remedy = f"With --read-only add: --tmpfs /run{'' if facts.is_root else ':mode=1777'}"
    elif not facts.can_chroot:
        why = "CAP_SYS_CHROOT is missing, and sshd would end every login at once"
        return Notice("error", "ssh", f"not started: {why}", ("Add: --cap-add SYS_CHROOT",))
    else:
        return None
    return Notice("warning", "ssh", f"not started: {why}", (remedy,))


def _about_workspace(settings: Settings, facts: Facts, instead: Path) -> list[Notice]:
    workspace = facts.workspace
    if workspace.readable and workspace.writable:
        return []
    owner = f"{facts.uid}:{facts.gid}"
    if facts.workspace_is_new and workspace.uid != 0:
        return []
    if facts.workspace_is_new:
        text = f"{workspace.path} was root's and empty: Docker made it. It is {owner}'s now"
        return [Notice("info", "workspace", text)]
    asked = ""
    if not facts.is_root:
        asked = " (from --user)"
    elif settings.uid is not None:
        asked = " (from HOST_UID)"
    can = "written" if workspace.readable else "read"
    text = f"{workspace.path} cannot be {can} by uid {facts.uid}, gid {facts.gid}{asked}: it {workspace.described}"
    more = []
    if not workspace.is_directory:
        more.append("Mount a folder there: -v FOLDER:/workspace")
    elif workspace.read_only:
        more.append("Mount a folder or volume there that can be written: -v FOLDER:/workspace, without :ro")
    elif facts.rootless and workspace.uid == 0:
        more.append(
            "This engine is rootless: your own user is root in here. Add: -e HOST_UID=0 (sshd stays off then)"
        )
    else:
        if asked and workspace.is_mounted and workspace.uid != 0:
            option = "HOST_UID and HOST_GID" if facts.is_root else "--user"
            more.append(f"Leave out {option} (then the owner's ids are used), or")
        more.append(_chown_for(workspace, owner))
    if not workspace.readable:
        more.append(f"Until then JupyterLab opens {instead}")
    return [Notice("warning", "workspace", text, tuple(more))]


def _about_jupyter(settings: Settings, facts: Facts) -> list[Notice]:
    notices = []
    if not facts.jupyter_port_free:
        remedy = "JupyterLab tries again until it is free. Another port: -e JUPYTER_PORT_IN_CONTAINER=8889"
        text = f"port {settings.jupyter_port} cannot be used here: another program has it, or it may not be taken"
        notices.append(Notice("error", "jupyter", text, (remedy,)))
    if settings.jupyter_open:
        text = (
            "no token and no password (JUPYTER_OPEN_TO_ANYONE=1): whoever reaches its port runs code as dev"
        )
        notices.append(Notice("warning", "jupyter", text))
    return notices


def _chown_for(workspace: Folder, owner: str) -> str:
    """The line that makes a workspace the user's: a folder of the host, a volume, or none at all so far."""
    if not workspace.is_mounted:
        return f"Add: -v FOLDER:{workspace.path}, with a folder that belongs to {owner}"
    if workspace.is_hosts:
        return f"On the host: sudo chown -R {owner} FOLDER"
    docker = f"docker run --rm --user 0 --entrypoint chown -v VOLUME:{workspace.path} IMAGE"
    return f"{docker} -R {owner} {workspace.path}"


def _no_key(facts: Facts, *, jupyter: bool) -> Notice:
    looked = ", ".join(
        f"{source.name} {source.absent}" if source.text is None
        else f"{source.name} holds none"
        for source in facts.key_sources
    )  # fmt: skip
    rest = "JupyterLab runs as usual. " if jupyter else ""
    return Notice(
        "warning", "ssh", f"not started, no public key: {looked}", (f"{rest}For SSH add:  {SSH_HINT}",)
    )


def _about_certificates(trust: Trust) -> list[Notice]:
    problems = [Notice("warning", "certificates", problem) for problem in trust.problems]
    return [*problems, *([Notice("info", "certificates", trust.said)] if trust.certificates else [])]


def _about_limits(facts: Facts) -> list[Notice]:
    """What the container has less of than programs think, or than training needs."""
    notices = []
    cpus = facts.processors
    if set_here := threads.variables(cpus, facts.environment):
        text = f"{cpus.usable} of {cpus.visible} CPUs are this container's: "
        notices.append(Notice("info", "cpu", text + ", ".join(f"{k}={v}" for k, v in set_here.items())))
    if facts.shared_memory is not None and facts.shared_memory < ENOUGH_SHARED_MEMORY:
        text = f"/dev/shm holds {facts.shared_memory >> 20} MB: too little for workers of a DataLoader, and for NCCL"
        notices.append(Notice("info", "memory", text, ("Add: --shm-size 8g (compose.yaml has it)",)))
    return notices


def _environment(
    settings: Settings, facts: Facts, account: Account, run: Path, state: Path
) -> dict[str, str]:
    """What every process of the user gets: the container's own variables, less secrets, plus who and where."""
    kept = {k: v for k, v in facts.environment.items() if k not in SECRETS and k not in NOT_PASSED_ON}
    where = {"HOME": account.home, "TORCHTAP_STATE": str(state)}
    if kept.get("JUPYTER_RUNTIME_DIR", paths.JUPYTER_RUNTIME) in ("", paths.JUPYTER_RUNTIME):
        where["JUPYTER_RUNTIME_DIR"] = str(run / "jupyter")
    if "PATH" in kept:
        kept["PATH"] = overlay.path_here(kept["PATH"], run)
    if kept.get("SHELL"):
        where["SHELL"] = facts.shell
    device = {} if settings.device == "auto" else {"TORCHTAP_DEVICE": settings.device}
    computed = {
        **threads.variables(facts.processors, kept),
        **certificates.variables(facts.trust, run, kept),
        **proxies.variables(kept),
        **caches.places(account.home, kept),
    }
    if facts.home.full and account.home == str(facts.home.path):
        # IPython must write before a kernel can begin: its history and profile are in /tmp then.
        computed.setdefault("IPYTHONDIR", kept.get("IPYTHONDIR") or f"/tmp/torchtap-ipython-{facts.uid}")
    return {**kept, **computed, **device, **where, "USER": NAME, "LOGNAME": NAME}
