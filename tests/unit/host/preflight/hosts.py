"""Hosts as preflight's facts, and what must be said of each: one row a kind of host.

The `docker info` answers are shortened to the keys that are read. Those of Docker 26 and 28 were seen here; 19.03,
rootless, snap, Docker Desktop and Podman are put together from public reports (moby's API documentation,
docker-snap#148, nvidia-docker#1637) and were not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from host import proc
from host.engine import Engine, State, cdi_devices, hints
from host.gpu import CAPABILITY, FIELDS, HostGpus, Said, read_csv
from host.plan import decide
from host.preflight.facts import Facts, SeLinux, Toolkit, Tried
from host.settings import Settings
from host.show import Problem
from torchtap.selftest.host import Host, Node, PciGpu

GB = 1_000_000_000
UUID = "GPU-11111111-2222-3333-4444-55555555550{index}"
QUERY = ("nvidia-smi", f"--query-gpu={','.join((*FIELDS, CAPABILITY))}", "--format=csv,noheader")
PLUGINS = {"Plugins": [{"Name": "buildx", "Version": "v0.24.0"}, {"Name": "compose", "Version": "v2.36.2"}]}
PLAIN: dict[str, Any] = {
    "ServerVersion": "28.2.2",
    "OperatingSystem": "Ubuntu 24.04.2 LTS",
    "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}},
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "CgroupDriver": "cgroupfs",
    "CgroupVersion": "2",
    "DockerRootDir": "/var/lib/docker",
    "Name": "here",
    "ClientInfo": PLUGINS,
}
NVIDIA = {**PLAIN, "Runtimes": {"runc": {}, "nvidia": {}}}
CDI = {
    **PLAIN,
    "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}],
    "CgroupDriver": "systemd",
}
ROOTLESS = {**PLAIN, "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]}
SNAP = {**PLAIN, "DockerRootDir": "/var/snap/docker/common/var-lib-docker"}
DESKTOP = {**PLAIN, "OperatingSystem": "Docker Desktop", "Name": "docker-desktop"}
OLD = {key: value for key, value in PLAIN.items() if key != "CgroupVersion"} | {"ServerVersion": "19.03.15"}
# The engine of tests/engine, as it answered: Debian 13's, in a private root.
DEBIAN = {
    **PLAIN,
    "ServerVersion": "26.1.5+dfsg1",
    "OperatingSystem": "Debian GNU/Linux 13 (trixie) (containerized)",
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "CgroupVersion": "1",
    "CDISpecDirs": ["/torchtap/simulate/cdi"],
    "DiscoveredDevices": None,
    "ClientInfo": {"Plugins": [{"Name": "buildx", "Version": "0.13.1+ds1"}]},
}
SELINUX = {**NVIDIA, "SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]}


def engine(
    info: Mapping[str, Any] = PLAIN, *, compose: str = "2.36.2", local: bool = True, **more: Any
) -> Engine:
    """An engine that answered `info`."""
    devices = cdi_devices(info, local=False)
    return Engine(
        **{
            "state": State.READY,
            "version": str(info["ServerVersion"]),
            "compose": compose,
            "root": Path(str(info["DockerRootDir"])) if local else None,
            "local": local,
            "hints": hints(info, devices, None),
            "cdi": bool(devices),
            "info": info,
            **more,
        }
    )


def gpus(*rows: tuple[str, str], driver: str = "590.48.01") -> HostGpus:
    """What nvidia-smi said of GPUs: (name, compute capability) each."""
    out = "".join(
        f"{index}, {UUID.format(index=index)}, {name}, {driver}, {capability}\n"
        for index, (name, capability) in enumerate(rows)
    )
    known, listed = read_csv(out)
    return HostGpus(present=True, driver=known, gpus=listed, said=Said(QUERY, proc.Done(0, out)))


def said(out: str, rc: int, err: str = "") -> HostGpus:
    """An nvidia-smi that said something else."""
    return HostGpus(present=True, trouble=out, said=Said(QUERY, proc.Done(rc, out, err)))


def picture(*drivers: str, wsl: bool = False, nodes: tuple[str, ...] = (), pci: bool = True) -> Host:
    """The host's /dev and /sys: one NVIDIA GPU on the PCI bus for each driver name."""
    return Host(
        nodes=tuple(Node(path=path, mode=0o20666, uid=0, gid=0, usable=True) for path in nodes),
        module_loaded="nvidia" in drivers,
        driver_text="",
        module_version="",
        pci=tuple(PciGpu(address=f"0000:{n:02x}:00.0", driver=each) for n, each in enumerate(drivers, 1))
        if pci
        else None,
        wsl=wsl,
        container=None,
        env={},
        uid=1000,
    )


def facts(of: Engine, smi: HostGpus | None = None, host: Host | None = None, /, **more: Any) -> Facts:
    """Facts, with the plan that make up would make of them. `env`: variables that the user set."""
    env = more.pop("env", {})
    settings = Settings(env, dict.fromkeys(env, "the environment"))
    smi = smi or HostGpus()
    plan, refused = None, None
    try:
        plan = decide(settings, of, smi)
    except Problem as problem:
        refused = problem
    in_docker = plan is not None and plan.place == "docker"
    given = {
        "tried": {
            name: Tried("as it should be")
            for name in ("files.compose", "ssh.key", "port.jupyter", "port.ssh")
        }
        if in_docker
        else {},
        "image": f"torchtap:{plan.variant.name}" if plan and in_docker else "",
        "image_here": False,
        "free": dict.fromkeys(("images", "checkout", "venv"), 100 * GB),
        "release": "6.8.0-60-generic",
        "python": "3.12.3",
        "kernel_log": "",
        "memlock_limit": -1,
    }
    base = Facts(settings=settings, engine=of, gpus=smi, host=host or picture(), plan=plan, refused=refused)
    return replace(base, **{**given, **more})


H200 = gpus(("NVIDIA H200", "9.0"))
ONE = picture("nvidia", nodes=("/dev/nvidia0", "/dev/nvidiactl"))
ABSENT = Engine(State.NO_CLIENT)
DENIED = Engine(State.NO_PERMISSION, "permission denied while trying to connect to the Docker daemon socket")
XID = "[  100.5] NVRM: Xid (PCI:0000:5e:00): 79, pid=1234, GPU has fallen off the bus."


@dataclass(frozen=True, slots=True)
class Row:
    """A host: its facts, and every check that neither passes nor is skipped, as "check status cause"."""

    name: str
    facts: Facts
    says: tuple[str, ...] = ()


HOSTS: tuple[Row, ...] = (
    Row("plain_engine_without_gpu", facts(engine())),
    Row("debian_13", facts(engine(DEBIAN, compose="2.26.1-4"))),
    Row("nvidia_runtime", facts(engine(NVIDIA), H200, ONE)),
    Row("cdi_and_systemd", facts(engine(CDI), H200, ONE, toolkit=Toolkit("1.17.8", None, False))),
    Row("cpu_asked_for_on_a_sick_gpu_host", facts(engine(), said("x", 9), picture(""), env={"MODE": "cpu"})),
    Row(
        "mac",
        facts(engine(DESKTOP), None, picture(pci=False), system="Darwin", machine="arm64"),
        ("host.system warn system_untested", "engine.place warn engine_desktop"),
    ),
    Row(
        "gpus_named_for_the_cpu",
        facts(engine(), env={"MODE": "cpu", "GPUS": "0"}),
        ("up.choice warn choice_warned",),
    ),
    Row("arm", facts(engine(), machine="aarch64"), ("host.system warn machine_untested",)),
    Row("no_docker", facts(ABSENT), ("engine.docker warn docker_absent",)),
    Row("podman", facts(Engine(State.PODMAN)), ("engine.docker warn docker_absent",)),
    Row(
        "no_docker_but_asked_for", facts(ABSENT, env={"MODE": "cpu"}), ("engine.docker fail docker_unusable",)
    ),
    Row("no_rights", facts(DENIED), ("engine.docker fail no_rights",)),
    Row("docker_19_03", facts(engine(OLD)), ("engine.docker fail docker_too_old",)),
    Row(
        "version_that_is_none",
        facts(engine({**PLAIN, "ServerVersion": "dev"})),
        ("engine.docker unknown unreadable",),
    ),
    Row(
        "no_compose",
        facts(Engine(State.NO_COMPOSE, version="28.2.2", info=PLAIN)),
        ("engine.compose fail compose_unusable",),
    ),
    Row(
        "old_compose",
        facts(
            Engine(
                State.OLD_COMPOSE,
                "2.17.2, and 2.26 is needed",
                version="28.2.2",
                compose="2.17.2",
                info=PLAIN,
            )
        ),
        ("engine.compose fail compose_unusable",),
    ),
    Row(
        "no_buildx",
        facts(engine({**PLAIN, "ClientInfo": {"Plugins": []}})),
        ("engine.buildx warn no_buildx",),
    ),
    Row("remote", facts(engine(local=False)), ("engine.place warn engine_remote",)),
    Row(
        "desktop_on_linux",
        facts(engine(DESKTOP), H200, ONE, env={}),
        (
            "engine.place fail engine_desktop",
            "engine.gpu fail engine_without_gpu",
        ),
    ),
    Row("snap", facts(engine(SNAP)), ("engine.place warn engine_snap",)),
    Row("rootless_without_gpu", facts(engine(ROOTLESS))),
    Row(
        "rootless_memlock",
        facts(engine(ROOTLESS), memlock_limit=8_388_608),
        ("engine.place warn rootless_memlock",),
    ),
    Row("rootless_memlock_given", facts(engine(ROOTLESS), memlock_limit=65536, env={"MEMLOCK": "65536"})),
    Row(
        "rootless_without_no_cgroups",
        facts(engine({**ROOTLESS, "Runtimes": {"nvidia": {}}}), H200, ONE, toolkit=Toolkit("1.17.8", False)),
        ("engine.place warn rootless_cgroups",),
    ),
    Row(
        "rootless_with_no_cgroups",
        facts(engine({**ROOTLESS, "Runtimes": {"nvidia": {}}}), H200, ONE, toolkit=Toolkit("1.17.8", True)),
    ),
    Row("gpu_and_no_toolkit", facts(engine(), H200, ONE), ("engine.gpu fail engine_without_gpu",)),
    Row(
        "no_cgroups_in_a_rootful_engine",
        facts(engine(NVIDIA), H200, ONE, toolkit=Toolkit("1.17.8", True)),
        ("engine.gpu warn no_cgroups_rootful",),
    ),
    Row(
        "nvidia_docker_1730",
        facts(
            engine({**NVIDIA, "CgroupDriver": "systemd"}), H200, ONE, toolkit=Toolkit("1.11.0", None, False)
        ),
        ("engine.cgroups warn devices_may_be_revoked",),
    ),
    Row(
        "no_cgroup_driver_told",
        facts(engine({**NVIDIA, "CgroupDriver": ""}), H200, ONE),
        ("engine.cgroups unknown unreadable",),
    ),
    Row(
        "selinux",
        facts(engine(SELINUX), H200, ONE, selinux=SeLinux(True, False)),
        ("host.selinux warn selinux_confines",),
    ),
    Row("selinux_allows", facts(engine(SELINUX), H200, ONE, selinux=SeLinux(True, True))),
    Row("selinux_permissive", facts(engine(SELINUX), H200, ONE, selinux=SeLinux(False, False))),
    Row("no_gpu_but_asked_for", facts(engine(), env={"MODE": "gpu"}), ("gpu.pci fail no_gpu_in_host",)),
    Row("gpu_of_a_number_but_none", facts(engine(), env={"GPUS": "0"}), ("gpu.pci fail no_gpu_in_host",)),
    Row(
        "wsl2",
        facts(engine({**DESKTOP, "Runtimes": {"nvidia": {}}}), H200, picture(wsl=True, nodes=("/dev/dxg",))),
    ),
    Row("wsl_without_gpu", facts(engine(), None, picture(wsl=True)), ("gpu.pci warn wsl_without_gpu",)),
    Row(
        "nouveau",
        facts(engine(NVIDIA), HostGpus(), picture("nouveau")),
        ("gpu.pci fail nouveau_bound",),
    ),
    Row("vfio", facts(engine(NVIDIA), HostGpus(), picture("vfio-pci")), ("gpu.pci fail vfio_bound",)),
    Row(
        "driver_not_installed",
        facts(engine(NVIDIA), HostGpus(), picture("")),
        ("gpu.pci fail driver_not_bound",),
    ),
    Row(
        "one_given_to_a_vm",
        facts(engine(NVIDIA), H200, picture("nvidia", "vfio-pci")),
        ("gpu.pci warn vfio_bound",),
    ),
    Row("nothing_readable", facts(engine(), None, picture(pci=False)), ("gpu.pci unknown pci_unreadable",)),
    Row("no_smi", facts(engine(NVIDIA), HostGpus(True), ONE), ("driver.smi fail smi_missing",)),
    Row(
        "mismatch",
        facts(engine(NVIDIA), said("Failed to initialize NVML: Driver/library version mismatch\n", 18), ONE),
        ("driver.smi fail driver_library_mismatch",),
    ),
    Row(
        "nvml_unknown_error",
        facts(engine(NVIDIA), said("Failed to initialize NVML: Unknown Error\n", 255), ONE),
        ("driver.smi fail devices_revoked",),
    ),
    Row(
        "no_library",
        facts(
            engine(NVIDIA),
            said("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", 12),
            ONE,
        ),
        ("driver.smi fail driver_libraries_missing",),
    ),
    Row(
        "no_devices",
        facts(engine(NVIDIA), said("No devices were found\n", 6), ONE),
        ("driver.smi fail no_devices",),
    ),
    Row(
        "hang",
        facts(engine(NVIDIA), said("", proc.TIMED_OUT, "nvidia-smi gave no answer in 20 s"), ONE),
        ("driver.smi fail smi_hung",),
    ),
    Row(
        "garbage",
        facts(engine(NVIDIA), said("!!\x00 lorem, ipsum\n", 0), ONE),
        ("driver.smi unknown smi_unreadable",),
    ),
    Row(
        "seven_of_eight",
        facts(engine(NVIDIA), gpus(*[("NVIDIA H100 80GB HBM3", "9.0")] * 7), picture(*["nvidia"] * 8)),
        ("gpu.count fail gpus_missing",),
    ),
    Row(
        "driver_470",
        facts(engine(NVIDIA), gpus(("Tesla T4", "7.5"), driver="470.82.01"), ONE),
        ("driver.version fail driver_too_old_for_all",),
    ),
    Row(
        "driver_550_and_cu130",
        facts(engine(NVIDIA), gpus(("Tesla T4", "7.5"), driver="550.54.15"), ONE, env={"VARIANT": "cu130"}),
        ("driver.version fail driver_too_old",),
    ),
    Row("driver_550", facts(engine(NVIDIA), gpus(("Tesla T4", "7.5"), driver="550.54.15"), ONE)),
    Row(
        "driver_not_told",
        facts(engine(NVIDIA), gpus(("Tesla T4", "7.5"), driver="[N/A]"), ONE),
        ("driver.version unknown driver_unknown",),
    ),
    Row(
        "blackwell_and_driver_560",
        facts(engine(NVIDIA), gpus(("NVIDIA B200", "10.0"), driver="560.35.05"), ONE),
        ("gpu.variant fail no_variant_fits",),
    ),
    Row(
        "volta_beside_blackwell",
        facts(
            engine(NVIDIA),
            gpus(("NVIDIA B200", "10.0"), ("Tesla P100-PCIE-16GB", "6.0")),
            picture(*["nvidia"] * 2),
        ),
        ("gpu.variant warn variant_misses_gpu",),
    ),
    Row(
        "capability_by_name",
        facts(engine(NVIDIA), gpus(("Tesla V100-SXM2-16GB", "[N/A]"), driver="535.54.03"), ONE),
    ),
    Row(
        "gpu_that_nobody_knows",
        facts(engine(NVIDIA), gpus(("NVIDIA X1", "[N/A]")), ONE),
        ("gpu.variant unknown capability_unknown",),
    ),
    Row(
        "gpu_5_of_1",
        facts(engine(NVIDIA), H200, ONE, env={"GPUS": "5"}),
        ("gpu.variant fail in_the_way", "up.choice fail in_the_way"),
    ),
    Row(
        "xid_in_the_kernel_log",
        facts(engine(NVIDIA), H200, ONE, kernel_log=XID),
        ("host.kernel_log warn kernel_log_trouble",),
    ),
    Row("kernel_log_closed", facts(engine(NVIDIA), H200, ONE, kernel_log=None)),
    Row(
        "disk_full",
        facts(engine(), free={"images": 9 * GB, "checkout": 100 * GB}),
        ("disk.images fail disk_full",),
    ),
    Row(
        "disk_tight",
        facts(engine(), free={"images": 16 * GB, "checkout": 9 * GB}),
        ("disk.images warn disk_tight",),
    ),
    Row("image_here", facts(engine(), image_here=True, free={"images": 9 * GB, "checkout": 9 * GB})),
    Row(
        "disk_unreadable",
        facts(engine(), free={"images": None, "checkout": 9 * GB}),
        ("disk.images unknown disk_unreadable",),
    ),
    Row(
        "no_room_for_venv",
        facts(ABSENT, free={"venv": 2 * GB}, env={"MODE": "local"}),
        ("disk.checkout fail disk_full_venv",),
    ),
    Row(
        "port_taken",
        facts(
            engine(),
            tried={
                "port.jupyter": Tried(
                    problem=Problem(
                        "port 8888 (JUPYTER_PORT) is taken on 127.0.0.1 by jupyter-lab (pid 4711)",
                        "Choose another:  make up JUPYTER_PORT=8889",
                    )
                )
            },
        ),
        ("port.jupyter fail port_taken",),
    ),
)
