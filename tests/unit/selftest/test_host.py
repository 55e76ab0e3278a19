"""The picture of the host, from a file system made for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchtap.selftest.host import VARIABLES, read_host, read_version_text


def machine(root: Path, files: dict[str, str], folders: tuple[str, ...] = ("dev", "sys/module")) -> Path:
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def pci(address: str, vendor: str, kind: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/{address}"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/class": f"{kind}\n"}


def test_a_gpu_host_in_a_container(tmp_path: Path):
    """Nodes, module, PCI function with its driver, container, variables."""
    root = machine(
        tmp_path,
        {
            **{
                f"dev/{name}": "" for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null")
            },
            "sys/module/nvidia/version": "580.65.06\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  now\n",
            **pci("0000:41:00.0", "0x10de", "0x030200"),
            **pci("0000:41:00.1", "0x10de", "0x040300"),
            **pci("0000:00:01.0", "0x8086", "0x030000"),
            ".dockerenv": "",
        },
    )
    (root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:41:00.0/driver").symlink_to(root / "sys/bus/pci/drivers/nvidia")
    host = read_host(root, {"NVIDIA_VISIBLE_DEVICES": "all", "HOME": "/home/dev", "API_KEY": "secret"})
    assert [node.path for node in host.nodes] == ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"]
    assert [(gpu.address, gpu.driver) for gpu in host.pci or ()] == [("0000:41:00.0", "nvidia")]
    assert (host.module_loaded, host.kernel_driver, host.container, host.wsl) == (
        True,
        "580.65.06",
        "docker",
        False,
    )
    assert dict(host.env) == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert "secret" not in host.describe()


def test_what_tells_causes_apart(tmp_path: Path):
    """/proc/devices, /dev/nvidia-caps and the seccomp mode; what is not there is None."""
    devices = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n{}\nBlock devices:\n  7 loop\n"
    for line, registered in (("507 nvidia-uvm", True), ("", False)):
        files = {
            "proc/devices": devices.format(line),
            "proc/self/status": "Name:\tpython\nSeccomp:\t2\nSeccomp_filters:\t1\n",
            "dev/nvidia-caps/nvidia-cap1": "",
            "dev/nvidia-caps/nvidia-cap2": "",
        }
        host = read_host(machine(tmp_path, files), {})
        assert (host.uvm_registered, host.mig_nodes, host.seccomp) == (registered, 2, 2)
    assert "nvidia-uvm in /proc/devices: no" in host.describe()
    for text in ("", "lorem ipsum", "Character devices:\n  1 mem\n", "195\nnvidia\n"):
        (tmp_path / "proc/devices").write_text(text)
        assert read_host(tmp_path, {}).uvm_registered is None, text
    for text in ("", "Seccomp:\n", "Seccomp:\t2 x\n", "NoSeccomp:\t0\n"):
        (tmp_path / "proc/self/status").write_text(text)
        assert read_host(tmp_path, {}).seccomp is None, text
    empty = read_host(machine(tmp_path / "empty", {}, ()), {})
    assert (empty.uvm_registered, empty.mig_nodes, empty.seccomp) == (None, None, None)
    assert read_host(machine(tmp_path / "no caps", {}), {}).mig_nodes == 0


def test_what_cannot_be_read_is_not_taken_for_absent(tmp_path: Path):
    """No /sys: None, and said so."""
    host = read_host(machine(tmp_path, {}, ()), {})
    assert (host.module_loaded, host.pci, host.nodes, host.container) == (None, None, (), None)
    assert host.describe().count("cannot be read") == 2


def test_an_empty_sys_is_an_answer(tmp_path: Path):
    """No module, no GPU: False and nothing."""
    root = machine(tmp_path, {}, ("dev", "sys/module", "sys/bus/pci/devices"))
    host = read_host(root, {})
    assert (host.module_loaded, host.pci) == (False, ())


def test_a_node_that_this_user_may_not_use_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By its mode; root may always, so the question is put to access()."""
    root = machine(tmp_path, {"dev/nvidia0": ""})
    asked: list[int] = []

    def refuse(path: Path, how: int) -> bool:
        asked.append(how)
        return False

    monkeypatch.setattr("torchtap.selftest.host.os.access", refuse)
    assert not read_host(root, {}).nodes[0].usable
    assert asked == [6]  # reading and writing


@pytest.mark.parametrize(
    ("mark", "container"),
    [
        (".dockerenv", "docker"),
        ("run/.containerenv", "podman"),
        ("var/run/secrets/kubernetes.io", "kubernetes"),
        ("opt/torchtap/manifest.json", "torchtap image"),
    ],
)
def test_containers_are_known_by_their_marks(tmp_path: Path, mark: str, container: str):
    """Each mark, and the variable that Kubernetes sets."""
    assert read_host(machine(tmp_path, {mark: ""}), {}).container == container
    assert (
        read_host(machine(tmp_path / "other", {}), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).container
        == "kubernetes"
    )


def test_wsl_is_known_by_its_kernel(tmp_path: Path):
    """And its GPU by /dev/dxg."""
    root = machine(
        tmp_path, {"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2", "dev/dxg": ""}
    )
    host = read_host(root, {})
    assert host.wsl
    assert [node.path for node in host.nodes] == ["/dev/dxg"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue", "535.261.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.80  Release", "595.80"),
        ("lorem ipsum", None),
        ("", None),
    ],
)
def test_both_forms_of_the_version_file_are_read(text: str, version: str | None):
    """The open module writes it differently."""
    assert read_version_text(text) == version


def test_a_hostile_variable_cannot_write_to_the_terminal(tmp_path: Path):
    """Its control characters are made visible."""
    assert read_host(tmp_path, {VARIABLES[0]: "all\x1b[2J"}).env[VARIABLES[0]] == "all\\x1b[2J"


def test_shared_memory_limits_and_infiniband_are_looked_at(tmp_path: Path):
    """Of this process and this file system; where /dev/shm is missing its size is not known."""
    host = read_host(machine(tmp_path, {"sys/class/infiniband/mlx5_0/node_type": "1\n"}), {})
    assert host.shared_memory is None
    assert host.infiniband
    assert host.limits.keys() == {"memlock", "nofile", "stack"}
    here = read_host(machine(tmp_path, {}, ("dev/shm",)), {})
    at = os.statvfs(tmp_path)
    assert here.shared_memory == at.f_blocks * at.f_frsize
    assert "ulimit nofile: " in here.describe()
