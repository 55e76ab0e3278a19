"""Device nodes: whether this process is given a GPU at all."""

from __future__ import annotations

from collections.abc import Mapping

from torchtap.selftest.check import Check, Judged, UnreadableError, failed, passed, skipped
from torchtap.selftest.facts import Facts, StepState

HIDING = ("", "void", "none")  # values of NVIDIA_VISIBLE_DEVICES with which the toolkit adds no GPU
# What open() says: which of our words for it. EIO is left to nvidia-smi: the driver is there and the GPU is not.
ERRNO_CAUSES = {
    "EPERM": "devices_revoked",  # a device cgroup
    "EACCES": "no_permission",  # owner, group, mode, SELinux
    "ENXIO": "node_stale",
    "ENODEV": "node_stale",
}
# What nvidia-smi can only say where a driver answers it, or does not answer any more.
SPEAKS_OF_DRIVER = frozenset(
    {
        "driver_library_mismatch",
        "smi_hung",
        "devices_revoked",
        "no_permission",
        "no_devices",
        "wsl_blocked",
        "gpu_lost",
        "gpu_fell_off_bus",
        "gpu_requires_reset",
        "power_cable",
        "interrupt_issue",
        "nvml_error",
    }
)


def judge_nodes(facts: Facts) -> Judged:
    """The picture taken before anything ran, and what opening the nodes said.

    A driver that answers wins over every picture. Nodes may be missing and all be well: on a bare host nvidia-smi and
    cuInit create them. And a node may be refused and all be well: it is another container's GPU.
    """
    host = facts.host
    names = [node.path.removeprefix("/dev/") for node in host.nodes]
    gpus = [name for name in names if name == "dxg" or name.removeprefix("nvidia").isdecimal()]
    if not gpus:
        return passed("made when first used") if _answers(facts) else _judge_absence(facts)
    opened = _opened(facts)
    values = {"nodes": names, "opened": opened, "uid": host.uid}
    for path, errno in opened.items():
        cause = ERRNO_CAUSES.get(errno)
        if cause is None or facts.cuda_started or (facts.simulated and cause == "node_stale"):
            continue
        note = f": {path} ({errno})"
        return failed(
            cause, f"{path} cannot be opened: {errno}", **values, node=path, errno=errno, node_note=note
        )
    if not opened and (locked := [node for node in host.nodes if not node.usable]):
        note = f": {locked[0]}"
        return failed("no_permission", f"{locked[0]} is not for uid {host.uid}", **values, node_note=note)
    return passed(", ".join(names) + ("" if opened else " (not opened)"), **values)


def _answers(facts: Facts) -> bool:
    return facts.cuda_started or (facts.smi is not None and bool(facts.smi.rows))


def _speaks_of_driver(facts: Facts) -> bool:
    judgement = facts.smi.judgement if facts.smi is not None else None
    causes = {each.cause for each in judgement.findings} if judgement is not None else set()
    return bool(causes & SPEAKS_OF_DRIVER)


def _opened(facts: Facts) -> Mapping[str, str]:
    """Path -> "ok" or the error's name; empty where the test process did not come to it."""
    if facts.child is None or facts.child.step("nodes").state is not StepState.DONE:
        return {}
    nodes = facts.child.step("nodes").value.get("nodes")
    if not isinstance(nodes, dict) or not all(isinstance(end, str) for end in nodes.values()):
        raise UnreadableError(f"nodes: {nodes!r} does not say how opening them ended")
    return nodes


def _judge_absence(facts: Facts) -> Judged:
    """No GPU node: who is missing, the GPU, the driver, or the container's share of both?"""
    host = facts.host
    pci = host.pci or ()
    seen = "; ".join(
        (
            "no /dev/nvidia*",
            {True: "kernel module loaded", False: "no kernel module", None: "kernel modules not readable"}[
                host.module_loaded
            ],
            "PCI bus not readable"
            if host.pci is None
            else f"on the PCI bus: {', '.join(gpu.address for gpu in pci) or 'no NVIDIA GPU'}",
        )
    )
    values: dict[str, object] = {"module_loaded": host.module_loaded, "container": host.container}
    if host.wsl and not host.container:
        return failed("wsl_no_gpu", "WSL without /dev/dxg", **values)
    if host.module_loaded:
        visible = host.env.get("NVIDIA_VISIBLE_DEVICES")
        if not host.container:
            return failed("nodes_missing", seen, **values)
        if visible is not None and visible in HIDING:
            return failed("gpu_hidden_from_container", seen, **values, visible=visible or "''")
        return failed("container_without_gpu", seen, **values)
    # The picture knows of no driver, and nvidia-smi spoke with one: it knows better, and driver.smi says what it said.
    if _speaks_of_driver(facts):
        return skipped("not_applicable", f"{seen}; nvidia-smi tells more")
    for gpu in pci:
        bound = {"nouveau": "nouveau_bound", "vfio-pci": "vfio_bound"}.get(gpu.driver)
        if bound:
            return failed(bound, seen, **values, address=gpu.address)
    if pci:
        note = f", although the PCI bus has a GPU ({pci[0].address})"
        return failed("driver_not_loaded", seen, **values, address=pci[0].address, pci_note=note)
    # WSL's kernel shows neither a module nor a PCI device, with and without a GPU.
    if host.module_loaded is None or host.pci is None or host.wsl:
        return failed("nothing_visible", seen, **values)
    return failed("no_gpu_in_container" if host.container else "no_gpu_in_host", seen, **values)


CHECKS = (
    Check(
        id="device.nodes",
        title="Is this process given a GPU?",
        reads=(
            "/dev/nvidia*",
            "/dev/dxg",
            "/sys/module/nvidia",
            "/sys/bus/pci/devices",
            "env:NVIDIA_VISIBLE_DEVICES",
            "child:nodes",
        ),
        judge=judge_nodes,
        causes=(
            "no_gpu_in_host",
            "no_gpu_in_container",
            "container_without_gpu",
            "gpu_hidden_from_container",
            "nothing_visible",
            "wsl_no_gpu",
            "driver_not_loaded",
            "nouveau_bound",
            "vfio_bound",
            "nodes_missing",
            "no_permission",
            "devices_revoked",
            "node_stale",
        ),
        source="NVIDIA Container Toolkit (devices.go); nvidia-container-toolkit#33, #210; nvidia-docker#1730",
        see="ls -l /dev/nvidia*; lspci -d 10de:; lsmod | grep nvidia",
    ),
)
