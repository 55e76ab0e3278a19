"""What the log says before anything starts: each line names what is wrong, and what to add or to paste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint import lastimage, paths, threads
from entrypoint.account import LOWEST_EXTRA_ID
from entrypoint.certificates import Trust
from entrypoint.gather import Facts, Folder
from entrypoint.settings import Settings

SSH_HINT = '-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"'
ENOUGH_SHARED_MEMORY = 1 << 30  # Docker's default is 64 MB


@dataclass(frozen=True, slots=True)
class Notice:
    """A line of the log: level is info, warning or error; `more` are the lines below it."""

    level: str
    subject: str
    text: str
    more: tuple[str, ...] = ()


NO_TERMINAL = Notice(
    "error",
    "ssh",
    "CAP_AUDIT_WRITE is missing, so sshd will end every login with a terminal; commands, scp and editors work",
    ("Add: --cap-add AUDIT_WRITE",),
)


def about_volumes(
    facts: Facts, home: Path, state: Path, previous: Sequence[int], *, serves: bool
) -> list[Notice]:
    """What was found in them: no room, another image's or another user's things, another container."""
    notices = _about_room(facts)
    if home == facts.home.path:
        if lastimage.is_newer(facts.home_image):
            notices.append(_newer("home", home))
        elif said := lastimage.changes(facts.home_image, facts.image):
            notices.append(Notice("info", "home", *said))
        if facts.home.uid in previous[2:] and facts.home.uid != facts.uid and facts.is_root:
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
        look = f"docker exec -u dev CONTAINER du -xah {folders[0].path} | sort -h | tail"
        remedy = "Services start all the same, but nothing new can be kept there. What is large:"
        notices.append(Notice("warning", "disk", text, (remedy, look)))
    return notices


def instead_of(facts: Facts, folder: Folder, what: str, kept: str, notices: list[Notice]) -> Path:
    """A folder that is gone with the container, and the warning that says so."""
    instead = Path(f"/tmp/torchtap-{what}-{facts.uid}")
    who = f"uid {facts.uid}, gid {facts.gid}"
    text = f"{folder.path} cannot be written by {who}: it {folder.described}"
    if facts.state_of_others and what == "state":
        text = (
            f"{folder.path} holds what another user made ({', '.join(facts.state_of_others)}); this is {who}"
        )
    if facts.is_root and (
        (what == "home" and facts.home_in_use) or (what == "state" and facts.state_of_others)
    ):
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


def no_sshd(facts: Facts) -> Notice | None:
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


def no_key(facts: Facts, *, jupyter: bool) -> Notice:
    looked = ", ".join(
        f"{source.name} {source.absent}" if source.text is None
        else f"{source.name} holds none"
        for source in facts.key_sources
    )  # fmt: skip
    rest = "JupyterLab runs as usual. " if jupyter else ""
    return Notice(
        "warning", "ssh", f"not started, no public key: {looked}", (f"{rest}For SSH add:  {SSH_HINT}",)
    )


def about_workspace(settings: Settings, facts: Facts, instead: Path) -> list[Notice]:
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


def _chown_for(workspace: Folder, owner: str) -> str:
    """The line that makes a workspace the user's: a folder of the host, a volume, or none at all so far."""
    if not workspace.is_mounted:
        return f"Add: -v FOLDER:{workspace.path}, with a folder that belongs to {owner}"
    if workspace.is_hosts:
        return f"On the host: sudo chown -R {owner} FOLDER"
    docker = f"docker run --rm --user 0 --entrypoint chown -v VOLUME:{workspace.path} IMAGE"
    return f"{docker} -R {owner} {workspace.path}"


def about_jupyter(settings: Settings, facts: Facts) -> list[Notice]:
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


def about_certificates(trust: Trust) -> list[Notice]:
    problems = [Notice("warning", "certificates", problem) for problem in trust.problems]
    return [*problems, *([Notice("info", "certificates", trust.said)] if trust.certificates else [])]


def about_limits(facts: Facts) -> list[Notice]:
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
