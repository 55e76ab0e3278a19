"""The simulated `nvidia-container-runtime-hook`: puts a simulated GPU into a container that is being made.

dockerd registers the device driver "nvidia" when a program of this name is on its PATH as it starts; `--gpus` and
Compose's device reservations then run it for the container: argument `prestart`, the container's state as JSON on
stdin, the container made but not yet running. Like the real one, it enters the container's mount namespace.

Runs inside the engine's private root, with that root's Python (3.12 or newer: os.setns).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.engine.simulate import hosts, toolkit

STATE = Path("/torchtap/simulate")  # the state folder's "simulate", as seen in the private root
CHOSEN_BY = "TORCHTAP_SIMULATED_HOST"  # in the container's environment; else the file STATE/current
LIBRARY_FOLDERS = ("/usr/lib/{machine}-linux-gnu", "/usr/lib64", "/usr/lib")
MODULE_TEXT = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (simulated)\n"
)


def main(arguments: list[str], state: Path = STATE) -> int:
    """`prestart`, or `cdi FOLDER` for what a CDI specification cannot say itself. Other stages: nothing to do.

    Exit status 1, with the toolkit's words on stderr, where the toolkit would refuse the container.
    """
    if not arguments or arguments[0] not in ("prestart", "cdi"):
        return 0
    container = json.load(sys.stdin)
    bundle = Path(container.get("bundle") or container["bundlePath"])
    config = json.loads((bundle / "config.json").read_text())
    root = bundle / config["root"]["path"]
    if arguments[0] == "cdi":
        # A createContainer hook is in the container's namespaces already (and the pid it is given is the one there).
        finish(root, json.loads((Path(arguments[1]) / "injection.json").read_text()))
        return 0
    try:
        prestart(config, container["pid"], root, state)
    except (toolkit.ToolkitError, hosts.HostError) as error:
        sys.stderr.write(f"Auto-detected mode as 'legacy'\nnvidia-container-cli: {error}\n")
        return 1
    return 0


def prestart(config: Mapping[str, Any], pid: int, root: Path, state: Path) -> None:
    """Inject what this container's environment asks for. Raises `ToolkitError`, `HostError`."""
    env = dict(variable.split("=", 1) for variable in config["process"].get("env", ()))
    asked = toolkit.request(env)
    if asked.devices is None:
        return
    host = hosts.load(env.get(CHOSEN_BY) or current_host(state), state / "hosts", hosts.HOSTS)
    if host.hook_error:
        raise toolkit.ToolkitError(host.hook_error)
    toolkit.check_requirements(env, host)
    host = toolkit.visible_gpus(host, asked)
    enter(pid)
    injected = toolkit.injection(host, asked, state / "lib", library_folder(root))
    stored = store(injected, state / "rendered")
    for target in injected.files:
        inside = below(root, target)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.touch()
        source = stored / target.lstrip("/")
        subprocess.run(["mount", "--bind", "-o", "ro", source, inside], check=True, capture_output=True)
    finish(root, json.loads((stored / "injection.json").read_text()), nodes=injected.nodes)


def current_host(state: Path) -> str:
    """The host that tests have chosen for containers that name none."""
    chosen = state / "current"
    return chosen.read_text().strip() if chosen.exists() else hosts.DEFAULT_HOST


def store(injected: toolkit.Injection, folder: Path) -> Path:
    """Write the files below a folder named after their content, and the rest as injection.json. Returns the folder."""
    rest = {"links": dict(injected.links), "module_version": injected.module_version}
    digest = hashlib.sha256(json.dumps(rest).encode())
    for target, content in sorted(injected.files.items()):
        digest.update(target.encode() + b"\0" + content)
    stored = folder / digest.hexdigest()[:16]
    if (stored / "injection.json").exists():
        return stored
    for target, content in injected.files.items():
        file = stored / target.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o755)
    beside = stored / f"injection.json.{os.getpid()}"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(json.dumps(rest))
    beside.replace(stored / "injection.json")  # last: its presence says that all is there
    return stored


def enter(pid: int) -> None:
    """Enter the container's mount namespace. Before pivot_root, this root is still seen there."""
    with Path(f"/proc/{pid}/ns/mnt").open() as namespace:
        os.setns(namespace.fileno(), os.CLONE_NEWNS)  # type: ignore[attr-defined,unused-ignore]  # Python >= 3.12


def finish(root: Path, rest: Mapping[str, Any], nodes: Mapping[str, toolkit.Node] | None = None) -> None:
    """Links, device nodes, /proc/driver/nvidia and the loader's cache."""
    for link, target in rest["links"].items():
        inside = below(root, link)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.unlink(missing_ok=True)
        inside.symlink_to(target)
    for path, node in (nodes or {}).items():
        inside = below(root, path)
        inside.unlink(missing_ok=True)
        os.mknod(inside, stat.S_IFCHR, os.makedev(node.major, node.minor))
        inside.chmod(node.mode)
    drivers = root / "proc/driver"
    if drivers.is_dir():
        options = ["-t", "tmpfs", "-o", "nosuid,nodev,noexec,mode=555,size=64k", "tmpfs"]
        subprocess.run(["mount", *options, drivers], check=True, capture_output=True)
        (drivers / "nvidia").mkdir()
        (drivers / "nvidia/version").write_text(MODULE_TEXT.format(version=rest["module_version"]))
    if (root / "sbin/ldconfig").exists():
        subprocess.run(["chroot", root, "/sbin/ldconfig"], check=False, capture_output=True)


def library_folder(root: Path) -> str:
    """Where this container's loader looks: Debian's multiarch folder, /usr/lib64, or /usr/lib."""
    folders = [folder.format(machine=os.uname().machine) for folder in LIBRARY_FOLDERS]
    return next((folder for folder in folders if below(root, folder).is_dir()), folders[-1])


def below(root: Path, path: str) -> Path:
    """A container's path as seen from outside."""
    return root / path.lstrip("/")
