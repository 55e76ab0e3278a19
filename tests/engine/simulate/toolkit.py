"""What NVIDIA's Container Toolkit would do for one container, as data: which files, links and device nodes.

`request` reads the container's environment, `check_requirements` and `visible_gpus` refuse what the toolkit refuses
(with its words), `injection` says what goes into the container. hook.py and cdi.py carry it out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.engine.simulate import smi, stubs
from tests.engine.simulate.fields import numbers
from tests.engine.simulate.hosts import Host

DEFAULT_CAPABILITIES = frozenset({"compute", "utility"})
NVIDIA_MAJOR, UVM_MAJOR = 195, 511  # 195 is fixed; nvidia-uvm's is given at load, often 511 or near
UVM_MINORS = {"nvidia-uvm": 0, "nvidia-uvm-tools": 1}
CONTROL_MINOR = 255  # /dev/nvidiactl
NULL_DEVICE = (1, 3)  # /dev/null's numbers
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


class ToolkitError(RuntimeError):
    """The toolkit refuses the container. The text is what `nvidia-container-cli` says."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a container asks for. `devices` None: no GPU at all; empty: libraries, but no device."""

    devices: tuple[str, ...] | None
    capabilities: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A character device."""

    major: int
    minor: int
    mode: int


@dataclass(frozen=True, kw_only=True)
class Injection:
    """What goes into the container. Paths are the container's."""

    files: Mapping[str, bytes] = field(default_factory=dict)  # mounted read-only, executable
    links: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    module_version: str = ""  # for /proc/driver/nvidia/version


def request(env: Mapping[str, str]) -> Request:
    """What NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES ask for.

    >>> request({"NVIDIA_VISIBLE_DEVICES": "0,1", "NVIDIA_DRIVER_CAPABILITIES": "utility"}).devices
    ('0', '1')
    >>> print(request({"NVIDIA_VISIBLE_DEVICES": "void"}).devices)
    None
    """
    named = env.get("NVIDIA_VISIBLE_DEVICES", "")
    listed = env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    capabilities = frozenset(filter(None, listed.split(","))) or DEFAULT_CAPABILITIES
    if "all" in capabilities:
        capabilities = DEFAULT_CAPABILITIES
    if named in ("", "void"):
        return Request(devices=None, capabilities=capabilities)
    return Request(devices=() if named == "none" else tuple(named.split(",")), capabilities=capabilities)


def check_requirements(env: Mapping[str, str], host: Host) -> None:
    """Refuse a host that does not meet NVIDIA_REQUIRE_*: alternatives apart by spaces, conditions by commas.

    Raises `ToolkitError`. NVIDIA_DISABLE_REQUIRE switches it off, as with the toolkit.
    """
    if env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true"):
        return
    for name, value in sorted(env.items()):
        alternatives = value.split() if name.startswith("NVIDIA_REQUIRE_") else []
        if alternatives and not any(all(map(_holds(host), each.split(","))) for each in alternatives):
            raise ToolkitError(
                f"requirement error: unsatisfied condition: {alternatives[0]}, please update your driver to a newer "
                "version, or use an earlier cuda container"
            )


def visible_gpus(host: Host, asked: Request) -> Host:
    """The host with only the GPUs that are asked for, by index, UUID or MIG UUID; "all" is all.

    nvidia-smi counts them from 0 again; their device nodes keep the host's numbers (cell "minor").
    Raises `ToolkitError` for a device that the host does not have.
    """
    names = asked.devices or ()
    numbered = [{"minor": gpu["index"], **gpu} for gpu in host.gpus]
    if "all" in names:
        return replace(host, gpus=tuple(numbered))
    chosen = []
    for name in names:
        found = [gpu for gpu in numbered if name in _names_of(host, gpu)]
        if not found:
            raise ToolkitError(f"device error: {name}: unknown device")
        chosen += [gpu for gpu in found if gpu not in chosen]
    mig = {str(place): host.mig[gpu["index"]] for place, gpu in enumerate(chosen) if gpu["index"] in host.mig}
    return replace(host, gpus=tuple({**gpu, "index": str(n)} for n, gpu in enumerate(chosen)), mig=mig)


def injection(host: Host, asked: Request, libraries: Path, library_folder: str) -> Injection:
    """What a container gets that sees `host` (see `visible_gpus`), with its libraries in `library_folder`."""
    compute = "compute" in asked.capabilities and "libcuda" not in host.missing
    utility = "utility" in asked.capabilities
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}

    def library(name: str, content: bytes) -> None:
        # As the toolkit: the file carries the driver's version, the names that programs load are links to it.
        files[f"{library_folder}/{name}.so.{host.driver}"] = content
        links[f"{library_folder}/{name}.so.1"] = f"{name}.so.{host.driver}"

    if utility and "nvidia-smi" not in host.missing:
        files["/usr/bin/nvidia-smi"] = smi.render(host, cuda_visible=compute).encode()
    if utility and "libnvidia-ml" not in host.missing:
        library("libnvidia-ml", stubs.libnvidia_ml(libraries, host, len(host.gpus)))
    if compute:
        library("libcuda", stubs.libcuda(libraries, host))
        links[f"{library_folder}/libcuda.so"] = "libcuda.so.1"
    return Injection(
        files=files, links=links, nodes=_nodes(host), module_version=host.kernel_module or host.driver
    )


def _nodes(host: Host) -> dict[str, Node]:
    numbers = {"nvidiactl": (NVIDIA_MAJOR, CONTROL_MINOR)}
    numbers |= {name: (UVM_MAJOR, minor) for name, minor in UVM_MINORS.items()}
    numbers |= {f"nvidia{gpu['minor']}": (NVIDIA_MAJOR, int(gpu["minor"])) for gpu in host.gpus}
    # No driver stands behind these numbers: opening one fails (EPERM: no device cgroup rule allows it). Only a host
    # that is meant to fail so gets them; the others get /dev/null's, which anyone can open.
    if host.nodes != "denied":
        numbers = dict.fromkeys(numbers, NULL_DEVICE)
    mode = 0o600 if host.nodes == "unreadable" else 0o666
    return {
        f"/dev/{name}": Node(major=major, minor=minor, mode=mode)
        for name, (major, minor) in numbers.items()
        if name not in host.missing
    }


def _names_of(host: Host, gpu: Mapping[str, str]) -> set[str]:
    return {gpu["index"], gpu.get("uuid", ""), *(uuid for _, uuid in host.mig.get(gpu["index"], ()))}


def _holds(host: Host) -> Callable[[str], bool]:
    geforce = any("GeForce" in gpu.get("name", "") for gpu in host.gpus)
    capability = host.gpus[0].get("compute_cap", "0") if host.gpus else "0"
    facts = {"cuda": host.cuda, "driver": host.driver, "arch": capability}

    def holds(condition: str) -> bool:
        parsed = re.fullmatch(r"(\w+)(>=|<=|!=|>|<|=)([\w.]+)", condition)
        if parsed is None:
            raise ToolkitError(f"requirement error: invalid expression: {condition}")
        name, sign, wanted = parsed.groups()
        if name == "brand":
            return COMPARE[sign]("geforce" if geforce else "tesla", wanted)
        if name not in facts:
            raise ToolkitError(f"requirement error: invalid expression: {condition}")
        return COMPARE[sign](numbers(facts[name]), numbers(wanted))

    return holds
