"""What preflight looks at. Gathered once, before anything is judged; what cannot be read is None.

The picture of /dev and /sys comes before nvidia-smi, which creates device nodes when root runs it.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from host import disk, docker, keys, local, plan, ports, proc, up, venv
from host.engine import Engine
from host.gpu import HostGpus
from host.paths import Paths
from host.settings import Settings
from host.show import Problem
from torchtap.selftest.host import Host, read_host

TOOLKIT_CONFIG = Path("etc/nvidia-container-runtime/config.toml")
TOOL_TIMEOUT_S = 5.0
KERNEL_LOG_BYTES = 1 << 20
# What the driver and its rival say of themselves; the rest of the log is nobody's business.
KERNEL_WORDS = re.compile(r"NVRM|nvidia|Xid|nouveau", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tried:
    """A step that `make up` would take first: what it says, or the problem that it ends in. Neither: not tried."""

    seen: str = ""
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's Container Toolkit on this host, as far as it can be seen without root."""

    version: str | None = None  # of nvidia-ctk
    no_cgroups: bool | None = None  # None: there is no configuration file
    char_links: bool = True  # /dev/char has links to NVIDIA's nodes


@dataclass(frozen=True, slots=True)
class SeLinux:
    """`enforcing` None: this kernel has no SELinux. `containers_use_devices` None: no such boolean."""

    enforcing: bool | None = None
    containers_use_devices: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is judged."""

    settings: Settings
    engine: Engine
    gpus: HostGpus
    host: Host
    system: str = "Linux"
    release: str = ""
    machine: str = "x86_64"
    python: str = ""
    plan: plan.Plan | None = None
    refused: Problem | None = None  # why there is no plan
    tried: Mapping[str, Tried] = field(default_factory=dict)
    image: str = ""  # the name of the image that would be used
    image_here: bool | None = None  # None: not asked
    free: Mapping[str, int | None] = field(default_factory=dict)  # place → bytes
    checkout: str = "."
    venv_here: bool = False
    toolkit: Toolkit = Toolkit()
    selinux: SeLinux = SeLinux()
    kernel_log: str | None = None
    memlock_limit: int = resource.RLIM_INFINITY  # this user's hard limit, in bytes

    @property
    def local(self) -> bool:
        """Whether Docker plays no part: asked for, or chosen because there is none."""
        return self.settings.get("MODE") == "local" or (
            self.plan is not None and self.plan.place == plan.LOCAL
        )

    @property
    def cpu(self) -> bool:
        """Whether no GPU is wanted."""
        return self.settings.get("MODE") == "cpu" or self.settings.get("VARIANT") == "cpu"

    @property
    def mode(self) -> str:
        """The mode that make up is going to end in: where a container has the last word, what it will likely say."""
        if self.plan is None or not self.plan.prove or self.plan.must:
            return self.plan.mode if self.plan else "none"
        return "gpu" if self.engine.hints and (self.gpu_seen or not self.engine.local) else "cpu"

    @property
    def must_have_gpu(self) -> bool:
        """Whether the user named one."""
        return self.settings.get("MODE") == "gpu" or self.settings.get("GPUS") not in {"", "all"}

    @property
    def gpu_seen(self) -> bool:
        """Whether anything here speaks of an NVIDIA GPU."""
        return bool(self.gpus.present or self.gpus.gpus or self.host.pci or self.gpu_nodes)

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        return tuple(node.path for node in self.host.nodes if re.search(r"\d$|dxg$", node.path))

    @property
    def security(self) -> str:
        """`SecurityOptions` of docker info in one text: "name=seccomp,profile=builtin name=rootless"."""
        return " ".join(map(str, self.engine.info.get("SecurityOptions") or []))

    @property
    def rootless(self) -> bool:
        return "name=rootless" in self.security


def gather(paths: Paths, *, for_start: bool = True, root: Path = Path("/")) -> tuple[up.Situation, Facts]:
    """Look at this host. `for_start` False: not at what only `make up` needs (ports, keys, Compose files).

    Raises `Problem` only for `.env` and for values that cannot be right."""
    picture = read_host(root)
    situation = up.look(paths)
    chosen, refused = None, None
    try:
        chosen = plan.decide(situation.settings, situation.engine, situation.gpus)
    except Problem as problem:
        refused = problem
    in_docker = chosen is not None and chosen.place == plan.DOCKER
    image = docker.image(situation.settings, chosen) if chosen and in_docker else ""
    wants_gpu = bool(situation.gpus.present or picture.pci or picture.nodes)
    return situation, Facts(
        settings=situation.settings,
        engine=situation.engine,
        gpus=situation.gpus,
        host=picture,
        system=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        plan=chosen,
        refused=refused,
        tried=try_steps(situation, chosen, for_start=for_start),
        image=image,
        image_here=docker.has_image(image) if image else None,
        free={
            "images": disk.free_bytes(situation.engine.root) if situation.engine.root else None,
            "checkout": disk.free_bytes(paths.root),
            "venv": disk.free_bytes(paths.venv),
        },
        checkout=str(paths.root),
        venv_here=(paths.venv / venv.STAMP).exists(),
        toolkit=look_at_toolkit(root) if wants_gpu and situation.engine.local else Toolkit(),
        selinux=look_at_selinux(root),
        kernel_log=read_kernel_log() if wants_gpu else None,
        memlock_limit=resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
    )


def attempt(step: Callable[[], str]) -> Tried:
    try:
        return Tried(step())
    except Problem as problem:
        return Tried(problem=problem)


def try_steps(situation: up.Situation, chosen: plan.Plan | None, *, for_start: bool) -> dict[str, Tried]:
    """The steps before a start that change nothing, by the check that judges them."""
    in_docker = chosen is not None and chosen.place == plan.DOCKER
    steps = {} if chosen is None or in_docker else {"python.venv": attempt(check_python)}
    if chosen is None or not for_start:
        return steps
    return steps | (steps_in_docker(situation, chosen) if in_docker else steps_locally(situation))


def steps_locally(situation: up.Situation) -> dict[str, Tried]:
    paths, settings = situation.paths, situation.settings
    instance = local.running(paths)
    port = int(settings.get("JUPYTER_PORT", "8888"))
    address = settings.get("BIND_ADDRESS", "127.0.0.1").strip("[]")

    def jupyter() -> str:
        if instance is None:
            ports.check("JUPYTER_PORT", address, port)
        return f"port {port} is {'free' if instance is None else f'ours (pid {instance.pid})'}"

    return {
        "port.jupyter": attempt(jupyter),
        "files.compose": attempt(lambda: paths.short(local.workspace_path(paths, settings))),
    }


def steps_in_docker(situation: up.Situation, chosen: plan.Plan) -> dict[str, Tried]:
    settings = situation.settings
    found = attempt(lambda: keys.find(settings, os.environ, Path.home()).named)
    chosen_keys = keys.Keys((), "")
    running: list[Mapping[str, object] | None] = [None]

    def compose() -> str:
        running[0] = up.composable(situation, chosen, chosen_keys)
        return "compose.yaml and .env can be read" + ("; a container of ours runs" if running[0] else "")

    steps = {"ssh.key": found, "files.compose": attempt(compose)}

    def port_of(variable: str) -> Callable[[], str]:
        def check() -> str:
            wanted = up.ports_wanted(settings)
            up.check_port(situation, variable, wanted[variable], running[0])
            return f"port {wanted[variable]} can be had"

        return check

    steps |= {name: attempt(port_of(variable)) for name, variable in PORTS.items()}
    return steps


PORTS = {"port.jupyter": "JUPYTER_PORT", "port.ssh": "SSH_PORT"}


def check_python() -> str:
    venv.check_python()
    return f"Python {platform.python_version()} can make a virtual environment"


def look_at_toolkit(root: Path = Path("/")) -> Toolkit:
    """Version of nvidia-ctk, its no-cgroups setting, and whether /dev/char knows NVIDIA's devices (major 195)."""
    said = proc.ask(["nvidia-ctk", "--version"], timeout_s=TOOL_TIMEOUT_S)
    version = re.search(r"version v?(\d+\.\d+\S*)", said.out)
    try:
        text = (root / TOOLKIT_CONFIG).read_text(errors="replace")
        no_cgroups = re.search(r"(?m)^\s*no-cgroups\s*=\s*true\b", text) is not None
    except OSError:
        no_cgroups = None
    links = any((root / "dev/char" / f"195:{minor}").exists() for minor in (0, 255))
    return Toolkit(version[1] if version else None, no_cgroups, links)


def look_at_selinux(root: Path = Path("/")) -> SeLinux:
    folder = root / "sys/fs/selinux"
    return SeLinux(
        {"1": True, "0": False}.get(first_word(folder / "enforce")),
        {"1": True, "0": False}.get(first_word(folder / "booleans/container_use_devices")),
    )


def first_word(path: Path) -> str:
    try:
        return (path.read_text(errors="replace").split() or [""])[0]
    except OSError:
        return ""


def read_kernel_log() -> str | None:
    """The lines of the NVIDIA driver and of nouveau since boot; None where this user may not read the log."""
    said = proc.ask(["dmesg"], timeout_s=TOOL_TIMEOUT_S)
    if not said.ok:
        return None
    text = said.out[-KERNEL_LOG_BYTES:]
    return "\n".join(line for line in text.splitlines() if KERNEL_WORDS.search(line))
