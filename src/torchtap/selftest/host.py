"""The picture of the host: device nodes, kernel driver, PCI devices, environment.

Taken before the first nvidia-smi or cuInit, because both create /dev/nvidiactl when they run as root. Reads only
directory entries and small files: it opens no device, so it cannot hang on a broken GPU (opening is a step of the
test process).
"""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchtap.selftest.process import visible

# What decides whether a GPU is visible, and nothing else: a report may be sent to strangers.
VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "TORCHTAP_DEVICE",
    "VARIANT",
)
# Files that only exist in a container, and whose.
CONTAINER_MARKS = {
    ".dockerenv": "docker",
    "run/.containerenv": "podman",
    "var/run/secrets/kubernetes.io": "kubernetes",
    "opt/torchtap/manifest.json": "torchtap image",
}
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, nothing is put there
NVIDIA_VENDOR = "0x10de"
# 0x03xxxx: display controllers, which all GPUs are. 0x0680 is an NVSwitch, 0x0403 the sound of a graphics card.
DISPLAY_CLASS = "0x03"
_NODE = re.compile(r"nvidia\d+|nvidiactl|nvidia-uvm|dxg")
_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One device node. `usable`: whether this user may read and write it, by its mode and owner."""

    path: str
    mode: int
    uid: int
    gid: int
    usable: bool

    def __str__(self) -> str:
        return f"{self.path} (mode {stat.S_IMODE(self.mode):04o}, {self.uid}:{self.gid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """One NVIDIA GPU on the PCI bus, and the kernel driver that holds it ("" for none)."""

    address: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the system says about GPUs. None stands for "could not be read", never for "not there"."""

    nodes: tuple[Node, ...]
    module_loaded: bool | None
    driver_text: str  # /proc/driver/nvidia/version, "" where there is none
    module_version: str  # /sys/module/nvidia/version, likewise
    pci: tuple[PciGpu, ...] | None
    wsl: bool
    container: str | None  # docker, podman, kubernetes; None: no sign of a container
    env: Mapping[str, str]
    uid: int
    shared_memory: int | None = None  # bytes of /dev/shm, all of it
    limits: Mapping[str, int] = field(
        default_factory=dict
    )  # memlock, nofile, stack of this process; -1: none
    infiniband: bool = False  # whether NCCL may use it, which locks memory
    uvm_registered: bool | None = (
        None  # whether /proc/devices lists nvidia-uvm; None: it lists no driver of NVIDIA's
    )
    mig_nodes: int | None = None  # nodes in /dev/nvidia-caps: an instance takes two; None: no /dev to look at
    seccomp: int | None = None  # of this process: 0 none, 1 strict, 2 a filter, as containers have

    @property
    def kernel_driver(self) -> str | None:
        """The loaded kernel module's version, or None where no file tells it.

        >>> read_version_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build")
        '580.65.06'
        """
        return read_version_text(self.driver_text) or (
            self.module_version if re.fullmatch(r"\d+(\.\d+)+", self.module_version) else None
        )

    def describe(self) -> str:
        """All of it as text: the evidence of the checks that look at it."""
        unknown = "cannot be read"
        pci = (
            unknown
            if self.pci is None
            else ", ".join(f"{gpu.address} (driver: {gpu.driver or 'none'})" for gpu in self.pci)
        )
        module = {True: "loaded", False: "not loaded", None: unknown}[self.module_loaded]
        lines = [
            f"device nodes: {', '.join(map(str, self.nodes)) or 'none'}",
            f"kernel module nvidia: {module}",
            f"NVIDIA GPUs on the PCI bus: {pci or 'none'}",
            f"container: {self.container or 'no'}; WSL: {'yes' if self.wsl else 'no'}; uid {self.uid}",
        ]
        lines += [
            f"{what}: {value}"
            for what, value in (
                ("nvidia-uvm in /proc/devices", _yes_no(self.uvm_registered)),
                ("nodes in /dev/nvidia-caps", self.mig_nodes or None),
                ("seccomp mode", self.seccomp),
            )
            if value is not None
        ]
        if self.driver_text:
            lines.append(self.driver_text.strip())
        lines += [f"{name}={value}" for name, value in self.env.items()]
        lines += [
            f"ulimit {name}: {'unlimited' if value < 0 else value}" for name, value in self.limits.items()
        ]
        lines += [] if self.shared_memory is None else [f"{SHARED_MEMORY}: {self.shared_memory >> 20} MiB"]
        return "\n".join(lines)


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def read_version_text(text: str) -> str | None:
    """The version in the text of /proc/driver/nvidia/version, which has two forms; None for anything else.

    >>> read_version_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jul  8")
    '535.261.03'
    """
    found = _VERSION.search(text)
    return found[1] if found else None


def read_host(root: Path = Path("/"), env: Mapping[str, str] | None = None) -> Host:
    """Look at the machine. `root` is where its file system begins, so that tests can show another machine.

    Never raises for what it finds: a folder that cannot be read is None in the result.
    """
    environ = os.environ if env is None else env
    module = root / "sys/module"
    return Host(
        nodes=_nodes(root),
        module_loaded=(module / "nvidia").is_dir() if module.is_dir() else None,
        driver_text=_text(root / "proc/driver/nvidia/version"),
        module_version=_text(module / "nvidia/version").strip(),
        pci=_pci(root / "sys/bus/pci/devices"),
        wsl="microsoft" in _text(root / "proc/sys/kernel/osrelease").lower(),
        container=_container(root, environ),
        env={name: visible(os.fsencode(environ[name])) for name in VARIABLES if name in environ},
        uid=os.getuid(),
        shared_memory=_size(root / SHARED_MEMORY.lstrip("/")),
        limits=_limits(),
        infiniband=bool(_names(root / "sys/class/infiniband")),
        uvm_registered=_uvm_registered(_text(root / "proc/devices")),
        mig_nodes=_mig_nodes(root / "dev"),
        seccomp=_seccomp(_text(root / "proc/self/status")),
    )


def _uvm_registered(devices: str) -> bool | None:
    """By /proc/devices, which lists kernel drivers by major number, one a line. A sandbox may show an empty one."""
    names = {line.split()[1] for line in devices.splitlines() if re.fullmatch(r"\s*\d+ \S+", line, re.ASCII)}
    if "nvidia-uvm" in names:
        return True
    return False if names & {"nvidia", "nvidia-frontend", "nvidiactl"} else None


def _mig_nodes(dev: Path) -> int | None:
    """How many nodes open parts of MIG. No folder is none; no /dev at all says nothing."""
    if not dev.is_dir():
        return None
    return sum(name.startswith("nvidia-cap") for name in _names(dev / "nvidia-caps") or ())


def _seccomp(status: str) -> int | None:
    found = re.search(r"^Seccomp:\s*(\d)$", status, re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def _size(folder: Path) -> int | None:
    """Bytes of the file system that is mounted there; None where nothing is."""
    try:
        at = os.statvfs(folder)
    except OSError:
        return None
    return at.f_blocks * at.f_frsize if folder.is_dir() else None


def _limits() -> dict[str, int]:
    kinds = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "stack": resource.RLIMIT_STACK,
    }
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {name: -1 if value == resource.RLIM_INFINITY else value for name, value in soft.items()}


def _nodes(root: Path) -> tuple[Node, ...]:
    found = []
    for name in sorted(_names(root / "dev") or ()):
        path = root / "dev" / name
        if not _NODE.fullmatch(name):
            continue
        try:
            at = path.stat()
        except OSError:
            continue  # gone in the meantime
        usable = os.access(path, os.R_OK | os.W_OK)
        found.append(Node(path=f"/dev/{name}", mode=at.st_mode, uid=at.st_uid, gid=at.st_gid, usable=usable))
    return tuple(found)


def _pci(devices: Path) -> tuple[PciGpu, ...] | None:
    addresses = _names(devices)
    if addresses is None:
        return None
    gpus = []
    for address in sorted(addresses):
        device = devices / address
        vendor, kind = _text(device / "vendor").strip(), _text(device / "class").strip()
        if vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASS):
            driver = device / "driver"
            gpus.append(PciGpu(address=address, driver=driver.resolve().name if driver.exists() else ""))
    return tuple(gpus)


def _container(root: Path, env: Mapping[str, str]) -> str | None:
    for mark, name in CONTAINER_MARKS.items():
        if (root / mark).exists():
            return name
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in env else None


def _names(folder: Path) -> list[str] | None:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names are all that is wanted
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return visible(path.read_bytes()[:4096])
    except OSError:
        return ""
